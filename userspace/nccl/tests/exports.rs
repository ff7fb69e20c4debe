//! The exported structures, without a daemon. With this test cargo builds the shared library, too, which
//! `test_plugin.py` loads.

use std::ffi::CStr;

use nccl_net_sumac::abi::SUCCESS;
use nccl_net_sumac::export::{
    ncclCollNetPlugin_v8, ncclCollNetPlugin_v10, ncclCollNetPlugin_v12, ncclNetPlugin_v8, ncclNetPlugin_v10,
    ncclNetPlugin_v12,
};

#[test]
fn all_structures_have_the_name_by_which_the_log_and_nccl_net_know_the_plugin() {
    let names = [
        ncclNetPlugin_v8.name,
        ncclNetPlugin_v10.name,
        ncclNetPlugin_v12.name,
        ncclCollNetPlugin_v8.name,
        ncclCollNetPlugin_v10.name,
        ncclCollNetPlugin_v12.name,
    ];
    for name in names {
        // SAFETY: a static string.
        assert_eq!(unsafe { CStr::from_ptr(name) }, c"Sumac");
    }
}

#[test]
fn every_version_supports_the_same_reductions() {
    let calls = [
        ncclCollNetPlugin_v8.reduce_support,
        ncclCollNetPlugin_v10.reduce_support,
        ncclCollNetPlugin_v12.reduce_support,
    ];
    for reduce_support in calls {
        for (data_type, red_op, expected) in [(7, 0, 1), (9, 3, 1), (8, 0, 0), (7, 4, 0)] {
            let mut supported = -1;
            // SAFETY: a pointer to a number.
            assert_eq!(unsafe { reduce_support(data_type, red_op, &raw mut supported) }, SUCCESS);
            assert_eq!(supported, expected, "reduction {red_op} of type {data_type}");
        }
        // SAFETY: NULL is an error, and not written to.
        assert_ne!(unsafe { reduce_support(7, 0, std::ptr::null_mut()) }, SUCCESS);
    }
}

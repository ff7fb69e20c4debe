//! Version 10 of the interface: NCCL 2.26 and later.

use std::ffi::{c_char, c_int, c_void};

use super::v8::{Init, Listen};
use super::{Allreduce, DebugLogger, MakeVDevice, Recv, ResultCode, Send, Sge, VDevice};

properties! {
    /// `ncclNetProperties_v10_t`.
    (force_flush) {
        v_props: VDevice<4>,
        max_p2p_bytes: usize,
        max_coll_bytes: usize,
    }
}

/// Initializes the point-to-point network.
pub type InitNet =
    unsafe extern "C" fn(logger: Option<DebugLogger>, profiler: Option<unsafe extern "C" fn()>) -> ResultCode;
/// Connects to a handle.
pub type ConnectNet = unsafe extern "C" fn(
    dev: c_int,
    config: *mut c_void,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    device_comm: *mut *mut c_void,
) -> ResultCode;

net! {
    /// `ncclNet_v10_t`.
    (InitNet) {
        make_v_device: Option<MakeVDevice>,
    }
}

coll_net! {
    /// `ncclCollNet_v10_t`.
    (Init) {
        make_v_device: Option<MakeVDevice>,
    }
}

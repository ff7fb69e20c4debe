//! Version 12 of the interface: NCCL 2.30.

use std::ffi::{c_char, c_int, c_void};

use super::{Allreduce, DebugLogger, MakeVDevice, Recv, ResultCode, Send, Sge, VDevice};

properties! {
    /// `ncclNetProperties_v12_t`.
    (force_flush) {
        v_props: VDevice<8>,
        max_p2p_bytes: usize,
        max_coll_bytes: usize,
        max_multi_request_size: c_int,
        rail_id: i16,
        plane_id: i16,
    }
}

/// Initializes the point-to-point network for a communicator.
pub type InitNet = unsafe extern "C" fn(
    context: *mut *mut c_void,
    comm_id: u64,
    config: *mut c_void,
    logger: Option<DebugLogger>,
    profiler: Option<unsafe extern "C" fn()>,
) -> ResultCode;
/// Initializes the collective network for a communicator.
pub type InitColl =
    unsafe extern "C" fn(context: *mut *mut c_void, comm_id: u64, logger: Option<DebugLogger>) -> ResultCode;
/// Makes a handle to connect to.
pub type Listen = unsafe extern "C" fn(
    context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> ResultCode;
/// Connects to a handle.
pub type ConnectNet = unsafe extern "C" fn(
    context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    device_comm: *mut *mut c_void,
) -> ResultCode;
/// Ends a communicator's use of the network.
pub type Finalize = unsafe extern "C" fn(context: *mut c_void) -> ResultCode;
/// Takes attributes of a communicator's traffic: absent in this plugin.
pub type SetNetAttr = unsafe extern "C" fn(context: *mut c_void, attributes: *mut c_void) -> ResultCode;

net! {
    /// `ncclNet_v12_t`.
    (InitNet) {
        make_v_device: Option<MakeVDevice>,
        finalize: Finalize,
        set_net_attr: Option<SetNetAttr>,
    }
}

coll_net! {
    /// `ncclCollNet_v12_t`.
    (InitColl) {
        make_v_device: Option<MakeVDevice>,
        finalize: Finalize,
    }
}

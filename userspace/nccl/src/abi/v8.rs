//! Version 8 of the interface: NCCL 2.20 and later.

use std::ffi::{c_char, c_int, c_void};

use super::{DebugLogger, ResultCode};

properties! {
    /// `ncclNetProperties_v8_t`.
    () {}
}

/// `ncclNetSGE_v8_t`.
#[repr(C)]
pub struct Sge {
    pub mhandle: *mut c_void,
    pub address: *mut c_void,
    pub size: u32,
}

/// Initializes a network.
pub type Init = unsafe extern "C" fn(logger: Option<DebugLogger>) -> ResultCode;
/// Makes a handle to connect to.
pub type Listen =
    unsafe extern "C" fn(dev: c_int, handle: *mut c_void, listen_comm: *mut *mut c_void) -> ResultCode;
/// Connects to a handle.
pub type ConnectNet = unsafe extern "C" fn(
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    device_comm: *mut *mut c_void,
) -> ResultCode;
/// Sends a message.
pub type Send = unsafe extern "C" fn(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// Receives messages.
pub type Recv = unsafe extern "C" fn(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// Reduces a tensor over all ranks.
pub type Allreduce = unsafe extern "C" fn(
    comm: *mut c_void,
    send_data: *mut c_void,
    recv_data: *mut c_void,
    count: c_int,
    data_type: c_int,
    red_op: c_int,
    send_mhandle: *mut c_void,
    recv_mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
net! {
    /// `ncclNet_v8_t`.
    (Init) {}
}

coll_net! {
    /// `ncclCollNet_v8_t`.
    (Init) {}
}

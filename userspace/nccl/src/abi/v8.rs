//! Version 8 of the interface: NCCL 2.20 and later.

use std::ffi::{c_char, c_int, c_void};

use super::{
    Accept, Close, ConnectColl, DebugLogger, DeregMr, Devices, FlushColl, FlushRecv, GetDeviceMr,
    RecvConsumed, ReduceSupport, RegMr, RegMrDmaBuf, ResultCode, Test,
};

/// `ncclNetProperties_v8_t`.
#[repr(C)]
pub struct Properties {
    pub name: *mut c_char,
    pub pci_path: *mut c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub net_device_type: c_int,
    pub net_device_version: c_int,
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
/// Returns a device's properties.
pub type GetProperties = unsafe extern "C" fn(dev: c_int, props: *mut Properties) -> ResultCode;
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
/// Gathers a window of the ranks' blocks.
pub type Allgather = unsafe extern "C" fn(
    comm: *mut c_void,
    send_data: *mut c_void,
    parts_count: c_int,
    recv_parts: *mut Sge,
    bytes_per_rank: usize,
    window_offset: usize,
    window_bytes: usize,
    send_mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// Reduces a window of the ranks' blocks.
pub type ReduceScatter = unsafe extern "C" fn(
    comm: *mut c_void,
    parts_count: c_int,
    send_parts: *mut Sge,
    recv_data: *mut c_void,
    bytes_per_rank: usize,
    window_offset: usize,
    window_bytes: usize,
    data_type: c_int,
    red_op: c_int,
    recv_mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;

/// `ncclNet_v8_t`.
#[repr(C)]
pub struct Net {
    pub name: *const c_char,
    pub init: Init,
    pub devices: Devices,
    pub get_properties: GetProperties,
    pub listen: Listen,
    pub connect: ConnectNet,
    pub accept: Accept,
    pub reg_mr: RegMr,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: Send,
    pub irecv: Recv,
    pub iflush: FlushRecv,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: GetDeviceMr,
    pub irecv_consumed: RecvConsumed,
}

/// `ncclCollNet_v8_t`.
#[repr(C)]
pub struct CollNet {
    pub name: *const c_char,
    pub init: Init,
    pub devices: Devices,
    pub get_properties: GetProperties,
    pub listen: Listen,
    pub connect: ConnectColl,
    pub reduce_support: ReduceSupport,
    pub reg_mr: RegMr,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub iallreduce: Allreduce,
    pub iallgather: Allgather,
    pub ireducescatter: ReduceScatter,
    pub iflush: FlushColl,
    pub test: Test,
    pub close_coll: Close,
    pub close_listen: Close,
}

// SAFETY: the pointer is that of a static string, which nothing changes.
unsafe impl Sync for Net {}
// SAFETY: as above.
unsafe impl Sync for CollNet {}

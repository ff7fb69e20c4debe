//! Version 12 of the interface: NCCL 2.30.

use std::ffi::{c_char, c_int, c_void};

use super::{
    Accept, Allgather, Allreduce, Close, ConnectColl, DebugLogger, DeregMr, Devices, FlushColl, FlushRecv,
    GetDeviceMr, MakeVDevice, Recv, RecvConsumed, ReduceScatter, ReduceSupport, RegMr, RegMrDmaBuf,
    ResultCode, Send, Test,
};

/// The devices of which a virtual one consists, `ncclNetVDeviceProps_v12_t`.
#[repr(C)]
pub struct VDevice {
    pub ndevs: c_int,
    pub devs: [c_int; 8],
}

/// `ncclNetProperties_v12_t`.
#[repr(C)]
pub struct Properties {
    pub name: *mut c_char,
    pub pci_path: *mut c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub force_flush: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub net_device_type: c_int,
    pub net_device_version: c_int,
    pub v_props: VDevice,
    pub max_p2p_bytes: usize,
    pub max_coll_bytes: usize,
    pub max_multi_request_size: c_int,
    pub rail_id: i16,
    pub plane_id: i16,
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
/// Returns a device's properties.
pub type GetProperties = unsafe extern "C" fn(dev: c_int, props: *mut Properties) -> ResultCode;
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

/// `ncclNet_v12_t`.
#[repr(C)]
pub struct Net {
    pub name: *const c_char,
    pub init: InitNet,
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
    pub make_v_device: Option<MakeVDevice>,
    pub finalize: Finalize,
    pub set_net_attr: Option<SetNetAttr>,
}

/// `ncclCollNet_v12_t`.
#[repr(C)]
pub struct CollNet {
    pub name: *const c_char,
    pub init: InitColl,
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
    pub make_v_device: Option<MakeVDevice>,
    pub finalize: Finalize,
}

// SAFETY: the pointer is that of a static string, which nothing changes.
unsafe impl Sync for Net {}
// SAFETY: as above.
unsafe impl Sync for CollNet {}

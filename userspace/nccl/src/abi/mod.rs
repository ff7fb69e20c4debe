//! The binary interface of NCCL's network plugins: what the versions share. Written from the description in
//! NCCL's `nccl_net.h`; `tests/nccl_abi.h` has the same in C.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// Declares a version's properties, with the members that it has after `reg_is_global`, and those at
/// the end.
macro_rules! properties {
    ($(#[$doc:meta])* ($($member:ident),*) { $($added:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        pub struct Properties {
            pub name: *mut c_char,
            pub pci_path: *mut c_char,
            pub guid: u64,
            pub ptr_support: c_int,
            pub reg_is_global: c_int,
            $(pub $member: c_int,)*
            pub speed: c_int,
            pub port: c_int,
            pub latency: f32,
            pub max_comms: c_int,
            pub max_recvs: c_int,
            pub net_device_type: c_int,
            pub net_device_version: c_int,
            $(pub $added: $type,)*
        }
    };
}

/// Declares a version's point-to-point network, with the type of `init` and the members that follow version
/// 8's. The other types in which the versions differ are those of the version's module.
macro_rules! net {
    ($(#[$doc:meta])* ($init:ty) { $($added:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        pub struct Net {
            pub name: *const c_char,
            pub init: $init,
            pub devices: $crate::abi::Devices,
            pub get_properties: $crate::abi::GetProperties<Properties>,
            pub listen: Listen,
            pub connect: ConnectNet,
            pub accept: $crate::abi::Accept,
            pub reg_mr: $crate::abi::RegMr,
            pub reg_mr_dma_buf: $crate::abi::RegMrDmaBuf,
            pub dereg_mr: $crate::abi::DeregMr,
            pub isend: Send,
            pub irecv: Recv,
            pub iflush: $crate::abi::FlushRecv,
            pub test: $crate::abi::Test,
            pub close_send: $crate::abi::Close,
            pub close_recv: $crate::abi::Close,
            pub close_listen: $crate::abi::Close,
            pub get_device_mr: $crate::abi::GetDeviceMr,
            pub irecv_consumed: $crate::abi::RecvConsumed,
            $(pub $added: $type,)*
        }

        // SAFETY: the pointer is that of a static string, which nothing changes.
        unsafe impl Sync for Net {}
    };
}

/// Declares a version's collective network, as [`net`].
macro_rules! coll_net {
    ($(#[$doc:meta])* ($init:ty) { $($added:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        pub struct CollNet {
            pub name: *const c_char,
            pub init: $init,
            pub devices: $crate::abi::Devices,
            pub get_properties: $crate::abi::GetProperties<Properties>,
            pub listen: Listen,
            pub connect: $crate::abi::ConnectColl,
            pub reduce_support: $crate::abi::ReduceSupport,
            pub reg_mr: $crate::abi::RegMr,
            pub reg_mr_dma_buf: $crate::abi::RegMrDmaBuf,
            pub dereg_mr: $crate::abi::DeregMr,
            pub iallreduce: Allreduce,
            pub iallgather: $crate::abi::Allgather<Sge>,
            pub ireducescatter: $crate::abi::ReduceScatter<Sge>,
            pub iflush: $crate::abi::FlushColl,
            pub test: $crate::abi::Test,
            pub close_coll: $crate::abi::Close,
            pub close_listen: $crate::abi::Close,
            $(pub $added: $type,)*
        }

        // SAFETY: the pointer is that of a static string, which nothing changes.
        unsafe impl Sync for CollNet {}
    };
}

#[cfg(test)]
mod tests;
pub mod v10;
pub mod v12;
pub mod v8;

/// `ncclResult_t`.
pub type ResultCode = c_int;

/// The call succeeded.
pub const SUCCESS: ResultCode = 0;
/// The daemon, or the system, failed.
pub const SYSTEM_ERROR: ResultCode = 2;
/// The plugin failed, or was asked for something that it does not do.
pub const INTERNAL_ERROR: ResultCode = 3;
/// An argument is wrong.
pub const INVALID_ARGUMENT: ResultCode = 4;
/// The calls, or the ranks' settings, do not fit together.
pub const INVALID_USAGE: ResultCode = 5;
/// Another rank, or its host, failed.
pub const REMOTE_ERROR: ResultCode = 6;

/// Bytes of the handle that `listen` writes.
pub const HANDLE_BYTES: usize = 128;
/// Memory of the host.
pub const POINTER_HOST: c_int = 1;
/// The plugin has no code for the GPU.
pub const DEVICE_HOST: c_int = 0;
/// No such identifier.
pub const ID_UNDEFINED: i16 = -1;

/// `NCCL_LOG_WARN`.
pub const LOG_WARN: c_int = 2;
/// `NCCL_LOG_INFO`.
pub const LOG_INFO: c_int = 3;
/// `NCCL_INIT | NCCL_NET`, the subsystems of the plugin's messages.
pub const LOG_NET: c_ulong = 1 | 16;

/// `ncclDebugLogger_t`.
pub type DebugLogger = unsafe extern "C" fn(
    level: c_int,
    flags: c_ulong,
    file: *const c_char,
    line: c_int,
    format: *const c_char,
    ...
);

/// Returns the number of devices.
pub type Devices = unsafe extern "C" fn(ndev: *mut c_int) -> ResultCode;
/// Returns a device's properties.
pub type GetProperties<P> = unsafe extern "C" fn(dev: c_int, props: *mut P) -> ResultCode;
/// Completes a connection from its receiver's side.
pub type Accept = unsafe extern "C" fn(
    listen_comm: *mut c_void,
    recv_comm: *mut *mut c_void,
    device_comm: *mut *mut c_void,
) -> ResultCode;
/// Registers memory.
pub type RegMr = unsafe extern "C" fn(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> ResultCode;
/// Registers memory of a DMA buffer.
pub type RegMrDmaBuf = unsafe extern "C" fn(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    mhandle: *mut *mut c_void,
) -> ResultCode;
/// Ends a registration.
pub type DeregMr = unsafe extern "C" fn(comm: *mut c_void, mhandle: *mut c_void) -> ResultCode;
/// Makes received data visible to the GPU: of several receives.
pub type FlushRecv = unsafe extern "C" fn(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// Makes received data visible to the GPU.
pub type FlushColl = unsafe extern "C" fn(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// Tests a request for its end.
pub type Test = unsafe extern "C" fn(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> ResultCode;
/// Closes a communicator.
pub type Close = unsafe extern "C" fn(comm: *mut c_void) -> ResultCode;
/// Returns a registration for code of the GPU.
pub type GetDeviceMr =
    unsafe extern "C" fn(comm: *mut c_void, mhandle: *mut c_void, device: *mut *mut c_void) -> ResultCode;
/// Reports a receive that the GPU has consumed.
pub type RecvConsumed = unsafe extern "C" fn(comm: *mut c_void, n: c_int, request: *mut c_void) -> ResultCode;
/// Makes a device of several: absent in this plugin.
pub type MakeVDevice = unsafe extern "C" fn(d: *mut c_int, props: *mut c_void) -> ResultCode;
/// Joins the ranks of a collective communicator.
pub type ConnectColl = unsafe extern "C" fn(
    handles: *mut *mut c_void,
    nranks: c_int,
    rank: c_int,
    listen_comm: *mut c_void,
    coll_comm: *mut *mut c_void,
) -> ResultCode;
/// Returns whether a reduction of a type is supported.
pub type ReduceSupport =
    unsafe extern "C" fn(data_type: c_int, red_op: c_int, supported: *mut c_int) -> ResultCode;
/// Sends a message, since version 10.
pub type Send = unsafe extern "C" fn(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    phandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// Receives messages, since version 10.
pub type Recv = unsafe extern "C" fn(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    phandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// Reduces a tensor over all ranks, since version 9.
pub type Allreduce = unsafe extern "C" fn(
    comm: *mut c_void,
    send_data: *mut c_void,
    recv_data: *mut c_void,
    count: usize,
    data_type: c_int,
    red_op: c_int,
    send_mhandle: *mut c_void,
    recv_mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// Gathers a window of the ranks' blocks, in the parts of a version.
pub type Allgather<S> = unsafe extern "C" fn(
    comm: *mut c_void,
    send_data: *mut c_void,
    parts_count: c_int,
    recv_parts: *mut S,
    bytes_per_rank: usize,
    window_offset: usize,
    window_bytes: usize,
    send_mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// Reduces a window of the ranks' blocks, in the parts of a version.
pub type ReduceScatter<S> = unsafe extern "C" fn(
    comm: *mut c_void,
    parts_count: c_int,
    send_parts: *mut S,
    recv_data: *mut c_void,
    bytes_per_rank: usize,
    window_offset: usize,
    window_bytes: usize,
    data_type: c_int,
    red_op: c_int,
    recv_mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;

/// The devices of which a virtual one consists, `ncclNetVDeviceProps_v10_t` and later.
#[repr(C)]
pub struct VDevice<const N: usize> {
    pub ndevs: c_int,
    pub devs: [c_int; N],
}

/// A part of a window in memory, `ncclNetSGE` since version 9.
#[repr(C)]
pub struct Sge {
    /// The part's registration.
    pub mhandle: *mut c_void,
    /// The address of the first byte.
    pub address: *mut c_void,
    /// Number of bytes.
    pub size: usize,
}

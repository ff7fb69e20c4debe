//! The exported structures, one for each version and network, and the calls in which the versions differ.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::{DebugLogger, ResultCode, v8, v10, v12};
use crate::{coll, comm, net};

/// The networks' name: `NCCL_NET=Sumac` chooses it, and NCCL's log has it.
const NAME: *const c_char = c"Sumac".as_ptr();

/// Exports the point-to-point network of a version, with the members in which the versions differ.
macro_rules! net {
    ($(#[$doc:meta])* $name:ident: $version:ident { $($member:ident: $value:expr),* $(,)? }) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub static $name: $version::Net = $version::Net {
            name: NAME,
            devices: comm::devices,
            get_properties: net::get_properties,
            accept: net::accept,
            reg_mr: comm::reg_mr,
            reg_mr_dma_buf: comm::reg_mr_dma_buf,
            dereg_mr: comm::dereg_mr,
            iflush: net::iflush,
            test: comm::test,
            close_send: comm::close_pair,
            close_recv: comm::close_pair,
            close_listen: comm::close_listen,
            get_device_mr: net::get_device_mr,
            irecv_consumed: net::irecv_consumed,
            $($member: $value),*
        };
    };
}

net! {
    /// The point-to-point network of version 8.
    ncclNetPlugin_v8: v8 {
        init: init_v8, listen: net::listen, connect: connect_v8, isend: isend_v8, irecv: irecv_v8,
    }
}
net! {
    /// The point-to-point network of version 10.
    ncclNetPlugin_v10: v10 {
        init: init_v10, listen: net::listen, connect: connect_v10, isend: net::isend, irecv: net::irecv,
        make_v_device: None,
    }
}
net! {
    /// The point-to-point network of version 12.
    ncclNetPlugin_v12: v12 {
        init: init_v12, listen: listen_v12, connect: connect_v12, isend: net::isend, irecv: net::irecv,
        make_v_device: None, finalize: comm::finalize, set_net_attr: None,
    }
}

/// Exports the collective network of a version, as [`net`].
macro_rules! coll_net {
    ($(#[$doc:meta])* $name:ident: $version:ident { $($member:ident: $value:expr),* $(,)? }) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub static $name: $version::CollNet = $version::CollNet {
            name: NAME,
            devices: comm::devices,
            get_properties: net::get_properties,
            connect: coll::connect,
            reduce_support: coll::reduce_support,
            reg_mr: comm::reg_mr,
            reg_mr_dma_buf: comm::reg_mr_dma_buf,
            dereg_mr: comm::dereg_mr,
            iflush: coll::iflush,
            test: comm::test,
            close_coll: comm::close_coll,
            close_listen: comm::close_listen,
            $($member: $value),*
        };
    };
}

coll_net! {
    /// The collective network of version 8.
    ncclCollNetPlugin_v8: v8 {
        init: init_v8, listen: coll::listen, iallreduce: iallreduce_v8, iallgather: coll::iallgather,
        ireducescatter: coll::ireducescatter,
    }
}
coll_net! {
    /// The collective network of version 10.
    ncclCollNetPlugin_v10: v10 {
        init: init_v8, listen: coll::listen, iallreduce: coll::iallreduce, iallgather: coll::iallgather,
        ireducescatter: coll::ireducescatter, make_v_device: None,
    }
}
coll_net! {
    /// The collective network of version 12.
    ncclCollNetPlugin_v12: v12 {
        init: init_coll_v12, listen: listen_coll_v12, iallreduce: coll::iallreduce,
        iallgather: coll::iallgather, ireducescatter: coll::ireducescatter, make_v_device: None,
        finalize: comm::finalize,
    }
}

unsafe extern "C" fn init_v8(logger: Option<DebugLogger>) -> ResultCode {
    net::init(logger)
}

unsafe extern "C" fn init_v10(
    logger: Option<DebugLogger>,
    _profiler: Option<unsafe extern "C" fn()>,
) -> ResultCode {
    net::init(logger)
}

unsafe extern "C" fn init_v12(
    context: *mut *mut c_void,
    _comm_id: u64,
    _config: *mut c_void,
    logger: Option<DebugLogger>,
    _profiler: Option<unsafe extern "C" fn()>,
) -> ResultCode {
    // SAFETY: NCCL's pointer to a pointer.
    unsafe { init_context(context, logger) }
}

unsafe extern "C" fn init_coll_v12(
    context: *mut *mut c_void,
    _comm_id: u64,
    logger: Option<DebugLogger>,
) -> ResultCode {
    // SAFETY: NCCL's pointer to a pointer.
    unsafe { init_context(context, logger) }
}

/// Initializes the plugin for a communicator. It keeps nothing for each, so their context is NULL.
///
/// # Safety
/// `context` is NULL or has room for a pointer.
unsafe fn init_context(context: *mut *mut c_void, logger: Option<DebugLogger>) -> ResultCode {
    if !context.is_null() {
        // SAFETY: as the caller warrants.
        unsafe { context.write(std::ptr::null_mut()) };
    }
    net::init(logger)
}

unsafe extern "C" fn listen_v12(
    _context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's arguments of `listen`.
    unsafe { net::listen(dev, handle, listen_comm) }
}

unsafe extern "C" fn listen_coll_v12(
    _context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's arguments of `listen`.
    unsafe { coll::listen(dev, handle, listen_comm) }
}

unsafe extern "C" fn connect_v8(
    _dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    _device_comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's arguments of `connect`.
    unsafe { net::connect(handle, send_comm) }
}

unsafe extern "C" fn connect_v10(
    _dev: c_int,
    _config: *mut c_void,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    _device_comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's arguments of `connect`.
    unsafe { net::connect(handle, send_comm) }
}

unsafe extern "C" fn connect_v12(
    _context: *mut c_void,
    _dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    _device_comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's arguments of `connect`.
    unsafe { net::connect(handle, send_comm) }
}

/// A size of version 8 as later versions have it; a negative one is an error of the call, as too long.
fn size(number: c_int) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

unsafe extern "C" fn isend_v8(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's arguments of `isend`.
    unsafe { net::isend(comm, data, size(bytes), tag, mhandle, std::ptr::null_mut(), request) }
}

unsafe extern "C" fn irecv_v8(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's array of `n` numbers, of which the first is read if there is one.
    let mut first = if n > 0 && !sizes.is_null() { size(unsafe { sizes.read() }) } else { 0 };
    // SAFETY: NCCL's arguments of `irecv`, which reads one size.
    unsafe { net::irecv(comm, n, data, &raw mut first, tags, mhandles, std::ptr::null_mut(), request) }
}

unsafe extern "C" fn iallreduce_v8(
    comm: *mut c_void,
    send_data: *mut c_void,
    recv_data: *mut c_void,
    count: c_int,
    data_type: c_int,
    red_op: c_int,
    send_mhandle: *mut c_void,
    recv_mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    let count = size(count);
    // SAFETY: NCCL's arguments of `iallreduce`.
    unsafe {
        coll::iallreduce(
            comm,
            send_data,
            recv_data,
            count,
            data_type,
            red_op,
            send_mhandle,
            recv_mhandle,
            request,
        )
    }
}

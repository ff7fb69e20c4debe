//! Communicators and requests, and the calls on them that both networks have.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use sumac_client::boundary::HandleTable;

use crate::abi::{HANDLE_BYTES, POINTER_HOST, ResultCode, SUCCESS};
use crate::address::Address;
use crate::arguments::write;
use crate::background::Background;
use crate::error::{PluginError, entry};
use crate::group::Group;
use crate::link::PairLink;
use crate::tcp::TcpAcceptor;

/// An object of NCCL's `listen`, `connect` or `accept`.
pub(crate) enum Comm {
    /// Waits for a connection, or for the ranks of a collective communicator.
    Listener(Listener),
    Pair(Arc<PairLink>),
    Group(Arc<Group>),
}

/// A listener, and the connection that it accepts.
pub(crate) struct Listener {
    pub(crate) address: Address,
    pub(crate) accepting: Mutex<Accepting>,
}

/// The connection that a listener accepts.
pub(crate) enum Accepting {
    /// The jobs of one are opened with the first call of `accept`.
    Idle,
    Jobs(Background<PairLink>),
    Tcp(TcpAcceptor),
}

/// A request of NCCL's.
pub(crate) enum Request {
    /// A message of a connection, by its number.
    Message(Arc<PairLink>, u64),
    /// A collective operation, by its number.
    Collective(Arc<Group>, u64),
    /// One that had nothing to do.
    Ended,
}

pub(crate) static COMMS: HandleTable<c_void, Comm> = HandleTable::new("communicator");
pub(crate) static REQUESTS: HandleTable<c_void, Request> = HandleTable::new("request");
/// The registrations of memory: nothing but their sizes is kept.
static REGISTRATIONS: HandleTable<c_void, usize> = HandleTable::new("registration");

impl Comm {
    pub(crate) fn listener(&self) -> Result<&Listener, PluginError> {
        match self {
            Comm::Listener(listener) => Ok(listener),
            Comm::Pair(_) | Comm::Group(_) => Err(PluginError::argument("the communicator is no listener")),
        }
    }

    pub(crate) fn pair(&self) -> Result<&Arc<PairLink>, PluginError> {
        match self {
            Comm::Pair(pair) => Ok(pair),
            Comm::Listener(_) | Comm::Group(_) => {
                Err(PluginError::argument("the communicator is none of a connection"))
            }
        }
    }

    pub(crate) fn group(&self) -> Result<&Arc<Group>, PluginError> {
        match self {
            Comm::Group(group) => Ok(group),
            Comm::Listener(_) | Comm::Pair(_) => {
                Err(PluginError::argument("the communicator is no collective one"))
            }
        }
    }
}

/// Writes the request of a call: NULL if it was not begun, for NCCL to call again.
///
/// # Safety
/// As [`crate::arguments::write`].
pub(crate) unsafe fn write_request(
    out: *mut *mut c_void,
    request: Option<Request>,
) -> Result<(), PluginError> {
    let handle = request.map_or(std::ptr::null_mut(), |request| REQUESTS.insert(Arc::new(request)));
    // SAFETY: as the caller warrants.
    unsafe { write(out, handle) }
}

/// Writes the handle of a listener, and its communicator.
///
/// # Safety
/// Both pointers are NULL, which is an error, or have room: `handle` for as many bytes as a handle.
pub(crate) unsafe fn write_listener(
    address: Address,
    accepting: Accepting,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> Result<(), PluginError> {
    // SAFETY: as the caller warrants.
    unsafe { write(handle.cast::<[u8; HANDLE_BYTES]>(), address.encode()) }?;
    let listener = Comm::Listener(Listener { address, accepting: Mutex::new(accepting) });
    // SAFETY: as the caller warrants.
    unsafe { write(listen_comm, COMMS.insert(Arc::new(listener))) }
}

/// Returns the number of devices: one.
pub(crate) unsafe extern "C" fn devices(ndev: *mut c_int) -> ResultCode {
    // SAFETY: NCCL's pointer to a number.
    entry(|| unsafe { write(ndev, 1) })
}

/// Registers host memory: requests copy it, so there is nothing to prepare.
pub(crate) unsafe extern "C" fn reg_mr(
    comm: *mut c_void,
    _data: *mut c_void,
    size: usize,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> ResultCode {
    entry(|| {
        COMMS.get(comm)?;
        if kind != POINTER_HOST {
            let message =
                format!("memory of kind {kind} is not supported: the plugin takes host memory alone");
            return Err(PluginError::usage(message));
        }
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { write(mhandle, REGISTRATIONS.insert(Arc::new(size))) }
    })
}

/// Refuses DMA buffers.
pub(crate) unsafe extern "C" fn reg_mr_dma_buf(
    _comm: *mut c_void,
    _data: *mut c_void,
    _size: usize,
    _kind: c_int,
    _offset: u64,
    _fd: c_int,
    _mhandle: *mut *mut c_void,
) -> ResultCode {
    entry(|| Err(PluginError::usage("DMA buffers are not supported: the plugin takes host memory alone")))
}

/// Ends a registration.
pub(crate) unsafe extern "C" fn dereg_mr(_comm: *mut c_void, mhandle: *mut c_void) -> ResultCode {
    entry(|| Ok(REGISTRATIONS.remove(mhandle).map(drop)?))
}

/// Tests a request for its end.
pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> ResultCode {
    entry(|| {
        // SAFETY: NCCL's pointer to a number.
        unsafe { write(done, 0) }?;
        let found = REQUESTS.get(request)?;
        let size = match &*found {
            Request::Message(pair, number) => pair.messages().test(*number)?,
            Request::Collective(group, number) => group.test(*number)?,
            Request::Ended => Some(0),
        };
        let Some(size) = size else { return Ok(()) };
        // Another thread may have tested the same request.
        REQUESTS.remove(request)?;
        // SAFETY: as above; NCCL passes NULL where it needs no size.
        unsafe {
            if !sizes.is_null() {
                sizes.write(c_int::try_from(size).unwrap_or(c_int::MAX));
            }
            write(done, 1)
        }
    })
}

/// Closes a listener. A connection that it has not accepted yet is given up.
pub(crate) unsafe extern "C" fn close_listen(comm: *mut c_void) -> ResultCode {
    entry(|| {
        COMMS.get(comm)?.listener()?;
        Ok(COMMS.remove(comm).map(drop)?)
    })
}

/// Closes a communicator of a connection. Its requests end with it.
pub(crate) unsafe extern "C" fn close_pair(comm: *mut c_void) -> ResultCode {
    entry(|| {
        let pair = COMMS.get(comm)?.pair()?.clone();
        COMMS.remove(comm)?;
        REQUESTS.remove_all(|request| matches!(request, Request::Message(of, _) if Arc::ptr_eq(of, &pair)));
        pair.messages().close();
        Ok(())
    })
}

/// Closes a collective communicator. Its requests end with it.
pub(crate) unsafe extern "C" fn close_coll(comm: *mut c_void) -> ResultCode {
    entry(|| {
        let group = COMMS.get(comm)?.group()?.clone();
        COMMS.remove(comm)?;
        REQUESTS
            .remove_all(|request| matches!(request, Request::Collective(of, _) if Arc::ptr_eq(of, &group)));
        group.close();
        Ok(())
    })
}

/// Ends a communicator's use of the plugin, which keeps nothing for each.
pub(crate) unsafe extern "C" fn finalize(_context: *mut c_void) -> ResultCode {
    SUCCESS
}

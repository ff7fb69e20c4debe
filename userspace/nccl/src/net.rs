//! The calls of NCCL's point-to-point network.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sumac_client::{JobOptions, Mode};

use crate::abi::{DebugLogger, ResultCode};
use crate::address::{Address, daemon_id};
use crate::arguments::{address, bytes, write};
use crate::background::Background;
use crate::comm::{Accepting, COMMS, Comm, Listener, Request, write_listener, write_request};
use crate::daemon;
use crate::device::{self, Versioned};
use crate::error::{PluginError, entry};
use crate::link::PairLink;
use crate::log;
use crate::opening::open_first;
use crate::pair::{Pair, RECEIVER, SENDER};
use crate::tcp::{TcpAcceptor, TcpPair};

/// The time for the other side of a connection to come; NCCL itself waits without end.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(300);

/// Connections that are being made, by the random number in the listener's handle.
static CONNECTING: LazyLock<Mutex<HashMap<[u8; 16], Connecting>>> = LazyLock::new(Mutex::default);

/// A connection that is being made.
struct Connecting {
    link: Background<PairLink>,
    begun: Instant,
}

/// Initializes the plugin: fails, so that NCCL goes on without it, if there is no daemon.
pub(crate) fn init(logger: Option<DebugLogger>) -> ResultCode {
    log::set(logger);
    entry(|| device::find().map_err(|error| error.context("the plugin is not used")))
}

/// Returns a device's properties.
pub(crate) unsafe extern "C" fn get_properties<P: Versioned>(dev: c_int, props: *mut P) -> ResultCode {
    // SAFETY: NCCL's pointer to a structure of this version.
    entry(|| unsafe { write(props, P::of(dev)?) })
}

/// Makes a handle to connect to.
pub(crate) unsafe extern "C" fn listen(
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> ResultCode {
    entry(|| {
        device::check(dev)?;
        let mut address = Address::new(&daemon::socket())?;
        let accepting = match Transport::of_environment()? {
            Transport::Direct => Accepting::Idle,
            Transport::Tcp => {
                let (acceptor, tcp) = TcpAcceptor::bind(device::ip()?)?;
                address.tcp = Some(tcp);
                Accepting::Tcp(acceptor)
            }
        };
        // SAFETY: NCCL's buffer and pointer.
        unsafe { write_listener(address, accepting, handle, listen_comm) }
    })
}

/// The job of a connection between two daemons.
fn between_daemons(address: &Address, rank: u16) -> Result<JobOptions, PluginError> {
    Ok(daemon::job_options(address.job("net"), rank, 2)?.mode(Mode::Direct).timeout(CONNECT_TIMEOUT))
}

/// The job of a connection between two ranks at one daemon.
fn at_one_daemon(address: &Address, rank: u16) -> Result<JobOptions, PluginError> {
    let options = daemon::job_options(address.job("host"), rank, 2)?.mode(Mode::Direct);
    Ok(options.local_world(2).timeout(CONNECT_TIMEOUT))
}

/// Connects to a handle: NULL until the connection is there.
pub(crate) unsafe extern "C" fn connect(handle: *mut c_void, send_comm: *mut *mut c_void) -> ResultCode {
    entry(|| {
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { write(send_comm, std::ptr::null_mut()) }?;
        // SAFETY: a handle that NCCL has received from the listener.
        let address = unsafe { address(handle) }?;
        let mut connecting = CONNECTING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(begun) = connecting.get(&address.id) else {
            // NCCL asks for no more of them once a communicator was aborted.
            connecting.retain(|_, other| other.begun.elapsed() < 2 * CONNECT_TIMEOUT);
            let link = begin_connecting(address)?;
            connecting.insert(address.id, Connecting { link, begun: Instant::now() });
            return Ok(());
        };
        let Some(outcome) = begun.link.take() else { return Ok(()) };
        connecting.remove(&address.id);
        drop(connecting);
        let link = Comm::Pair(Arc::new(outcome.map_err(|error| error.context("connecting"))?));
        // SAFETY: as above.
        unsafe { write(send_comm, COMMS.insert(Arc::new(link))) }
    })
}

fn begin_connecting(address: Address) -> Result<Background<PairLink>, PluginError> {
    if let Some(tcp) = address.tcp {
        return Background::begin(move |_| TcpPair::connect(tcp, &address.id));
    }
    // The listener does not know where the connection comes from, and waits for both jobs.
    let is_same = daemon_id(&daemon::socket())? == address.daemon;
    let job = if is_same { at_one_daemon } else { between_daemons }(&address, SENDER)?;
    Background::begin(move |is_given_up| Pair::link(true, open_first(&[job], is_given_up)?))
}

/// Accepts a connection: NULL until it is there.
pub(crate) unsafe extern "C" fn accept(
    listen_comm: *mut c_void,
    recv_comm: *mut *mut c_void,
    _device_comm: *mut *mut c_void,
) -> ResultCode {
    entry(|| {
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { write(recv_comm, std::ptr::null_mut()) }?;
        let comm = COMMS.get(listen_comm)?;
        let Listener { address, accepting } = comm.listener()?;
        let mut accepting = accepting.lock().unwrap_or_else(PoisonError::into_inner);
        let accepted = match &mut *accepting {
            Accepting::Idle => {
                *accepting = Accepting::Jobs(begin_accepting(address)?);
                Ok(None)
            }
            Accepting::Jobs(opening) => opening.take().transpose(),
            Accepting::Tcp(acceptor) => acceptor.accept(&address.id),
        };
        let Some(link) = accepted.map_err(|error| error.context("accepting a connection"))? else {
            return Ok(());
        };
        let link = Comm::Pair(Arc::new(link));
        // SAFETY: as above.
        unsafe { write(recv_comm, COMMS.insert(Arc::new(link))) }
    })
}

fn begin_accepting(address: &Address) -> Result<Background<PairLink>, PluginError> {
    let jobs = [between_daemons(address, RECEIVER)?, at_one_daemon(address, RECEIVER)?];
    Background::begin(move |is_given_up| Pair::link(false, open_first(&jobs, is_given_up)?))
}

/// The way of messages.
#[derive(Clone, Copy)]
enum Transport {
    Direct,
    Tcp,
}

impl Transport {
    fn of_environment() -> Result<Transport, PluginError> {
        match std::env::var("SUMAC_NCCL_P2P").as_deref() {
            Err(_) | Ok("" | "direct") => Ok(Transport::Direct),
            Ok("tcp") => Ok(Transport::Tcp),
            Ok(other) => Err(PluginError::usage(format!("SUMAC_NCCL_P2P={other}: direct or tcp"))),
        }
    }
}

/// Sends a message.
pub(crate) unsafe extern "C" fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    _tag: c_int,
    _mhandle: *mut c_void,
    _phandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    entry(|| {
        let comm = COMMS.get(comm)?;
        let pair = comm.pair()?;
        let begun = pair.send(bytes(data, size)?)?;
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { write_request(request, begun.map(|number| Request::Message(pair.clone(), number))) }
    })
}

/// Receives a message.
pub(crate) unsafe extern "C" fn irecv(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    _tags: *mut c_int,
    _mhandles: *mut *mut c_void,
    _phandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    entry(|| {
        if n != 1 || data.is_null() || sizes.is_null() {
            return Err(PluginError::argument(format!("a receive of {n} messages: of one at a time alone")));
        }
        // SAFETY: NCCL's arrays of `n` elements.
        let (data, size) = unsafe { (data.read(), sizes.read()) };
        let comm = COMMS.get(comm)?;
        let pair = comm.pair()?;
        let begun = pair.receive(bytes(data, size)?)?;
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { write_request(request, begun.map(|number| Request::Message(pair.clone(), number))) }
    })
}

/// Does nothing: host memory needs no flush.
pub(crate) unsafe extern "C" fn iflush(
    _comm: *mut c_void,
    _n: c_int,
    _data: *mut *mut c_void,
    _sizes: *mut c_int,
    _mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's pointer to a pointer.
    entry(|| unsafe { write_request(request, None) })
}

/// Refuses registrations for code of the GPU.
pub(crate) unsafe extern "C" fn get_device_mr(
    _comm: *mut c_void,
    _mhandle: *mut c_void,
    _device: *mut *mut c_void,
) -> ResultCode {
    entry(|| Err(PluginError::usage("the plugin has no code for the GPU")))
}

/// Refuses reports of code of the GPU.
pub(crate) unsafe extern "C" fn irecv_consumed(
    _comm: *mut c_void,
    _n: c_int,
    _request: *mut c_void,
) -> ResultCode {
    entry(|| Err(PluginError::usage("the plugin has no code for the GPU")))
}

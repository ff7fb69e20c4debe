//! The calls of NCCL's collective network.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sumac_client::{DType, JobOptions, Mode, NonFinitePolicy, Reduction};

use crate::abi::{ResultCode, Sge};
use crate::address::{Address, ranks_per_daemon};
use crate::comm::{COMMS, Comm, Request, write, write_request};
use crate::daemon;
use crate::error::{PluginError, entry};
use crate::group::{Group, Reducing, Window};
use crate::memory::UserBytes;
use crate::net::{address, bytes};
use crate::opening::{self, OpenedJob};

/// Slots of each lane of a job that is not its processes' first.
const SLOTS_OF_OTHERS: u32 = 64;
/// The times that a job is asked for which the control plane refuses, and the time between them.
const ROUNDS: usize = 4;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(500);

/// Collective communicators that this process has had.
static COMMUNICATORS: AtomicUsize = AtomicUsize::new(0);

/// Whether this process has had no collective communicator yet.
pub(crate) fn is_first() -> bool {
    COMMUNICATORS.load(Ordering::Relaxed) == 0
}

/// `ncclDataType_t` of the supported types.
const DTYPES: [(c_int, DType); 4] =
    [(2, DType::Int32), (6, DType::Float16), (7, DType::Float32), (9, DType::Bfloat16)];
/// `ncclRedOp_t` of the supported reductions.
const REDUCTIONS: [(c_int, Reduction); 3] = [(0, Reduction::Sum), (2, Reduction::Max), (3, Reduction::Min)];

fn reducing(data_type: c_int, red_op: c_int) -> Option<Reducing> {
    let dtype = DTYPES.iter().find(|(number, _)| *number == data_type)?.1;
    let reduction = REDUCTIONS.iter().find(|(number, _)| *number == red_op)?.1;
    Some(Reducing { dtype, reduction })
}

/// The reduction that NCCL asks for.
pub(crate) fn required(data_type: c_int, red_op: c_int) -> Result<Reducing, PluginError> {
    let unsupported = || {
        PluginError::usage(format!(
            "reduction {red_op} of type {data_type} is not supported, see reduceSupport"
        ))
    };
    reducing(data_type, red_op).ok_or_else(unsupported)
}

/// Returns whether a reduction of a type is supported. For others NCCL uses its own algorithms.
pub(crate) unsafe extern "C" fn reduce_support(
    data_type: c_int,
    red_op: c_int,
    supported: *mut c_int,
) -> ResultCode {
    // SAFETY: NCCL's pointer to a number.
    entry(|| unsafe { write(supported, c_int::from(reducing(data_type, red_op).is_some())) })
}

/// Joins all ranks. Waits for them, as NCCL expects it of this call: without a communicator it goes on without
/// the collective network, on all ranks.
pub(crate) unsafe extern "C" fn connect(
    handles: *mut *mut c_void,
    nranks: c_int,
    rank: c_int,
    listen_comm: *mut c_void,
    coll_comm: *mut *mut c_void,
) -> ResultCode {
    entry(|| {
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { write(coll_comm, std::ptr::null_mut()) }?;
        // SAFETY: NCCL's array of as many handles.
        let joined = unsafe { addresses(handles, nranks) }.and_then(|addresses| join(&addresses, rank));
        if joined.is_err() {
            // NCCL does not close the listener of a connection that failed.
            let _ = COMMS.remove(listen_comm);
        }
        let group = Comm::Group(Arc::new(joined.map_err(|error| error.context("joining the ranks"))?));
        // SAFETY: as above.
        unsafe { write(coll_comm, COMMS.insert(Arc::new(group))) }
    })
}

/// Reads the handles of all ranks.
///
/// # Safety
/// `handles` is NULL, which is an error, or has `nranks` handles.
unsafe fn addresses(handles: *mut *mut c_void, nranks: c_int) -> Result<Vec<Address>, PluginError> {
    let count = usize::try_from(nranks).unwrap_or(0);
    if handles.is_null() || count == 0 {
        return Err(PluginError::argument("there are no handles"));
    }
    // SAFETY: as the caller warrants.
    (0..count).map(|at| unsafe { address(*handles.add(at)) }).collect()
}

fn join(addresses: &[Address], rank: c_int) -> Result<Group, PluginError> {
    let own = usize::try_from(rank).unwrap_or(usize::MAX);
    let (Some(first), true) = (addresses.first(), own < addresses.len()) else {
        return Err(PluginError::argument(format!("there is no rank {rank} of {}", addresses.len())));
    };
    let daemons: Vec<u64> = addresses.iter().map(|address| address.daemon).collect();
    let local_world = ranks_per_daemon(&daemons).ok_or_else(|| {
        let message = "the ranks are not the same number at each daemon, one after the other";
        PluginError::usage(message)
    })?;
    let number = |number: usize| u16::try_from(number).map_err(|_| PluginError::argument("too many ranks"));
    let (rank, world, local_world) = (number(own)?, number(addresses.len())?, number(local_world)?);
    // The job's name is that of rank 0's handle, which all ranks have.
    let opened = open_accepted(first.is_first, |attempt, pool| {
        let options = daemon::job_options(first.job(&format!("coll{attempt}")), rank, world)?;
        // NaN and infinity of a gradient do not end the job: a loss scaler looks for them in the result.
        Ok(pool.of(options.local_world(local_world).not_finite(NonFinitePolicy::Carry)))
    })?;
    COMMUNICATORS.fetch_add(1, Ordering::Relaxed);
    Group::new(own, addresses.len(), opened)
}

/// Opens the first job that the control plane does not refuse, as `sumac.torch` does. It refuses all ranks
/// alike. While another job is measured it holds the slots that it starts with, so refusals are tried again.
fn open_accepted(
    is_first: bool,
    options: impl Fn(usize, Pool) -> Result<JobOptions, PluginError>,
) -> Result<OpenedJob, PluginError> {
    let pools = Pool::of_environment(is_first)?;
    let mut refusal = None;
    for round in 0..ROUNDS {
        if round > 0 {
            thread::sleep(BETWEEN_ROUNDS);
        }
        for (at, pool) in pools.iter().enumerate() {
            match opening::open(options(round * pools.len() + at, *pool)?) {
                Err(error) if error.is_refusal => refusal = Some(error),
                outcome => return outcome,
            }
        }
    }
    Err(refusal.unwrap_or_else(|| PluginError::internal("there is no job to open")))
}

/// The slots that a job asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pool {
    mode: Mode,
    /// Of each lane of a static job; `None`: as many as the path needs.
    slots: Option<u32>,
}

impl Pool {
    fn of(self, options: JobOptions) -> JobOptions {
        let options = options.mode(self.mode);
        match self.slots {
            Some(slots) => options.slots(slots),
            None => options,
        }
    }

    /// The pools to ask for, in order: the environment's, as for `sumac.torch`.
    fn of_environment(is_first: bool) -> Result<Vec<Pool>, PluginError> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Pool::chosen(is_first, variable("SUMAC_MODE").as_deref(), variable("SUMAC_SLOTS").as_deref())
    }

    fn chosen(is_first: bool, mode: Option<&str>, slots: Option<&str>) -> Result<Vec<Pool>, PluginError> {
        let parse = |text: &str| {
            text.parse().map_err(|_| PluginError::usage(format!("SUMAC_SLOTS={text} is no number of slots")))
        };
        let slots = slots.map(parse).transpose()?;
        let of = |mode, slots| Pool { mode, slots };
        let small = of(Mode::Static, slots.or(Some(SLOTS_OF_OTHERS)));
        let first = of(Mode::Static, slots);
        let dynamic = of(Mode::Dynamic, None);
        let mut statics = if is_first { vec![first, small] } else { vec![small] };
        statics.dedup();
        match mode {
            None => Ok([statics, vec![dynamic]].concat()),
            Some("static") => Ok(statics),
            Some("dynamic") => Ok(vec![dynamic]),
            Some("direct") => Ok(vec![of(Mode::Direct, None)]),
            Some(other) => Err(PluginError::usage(format!("SUMAC_MODE={other}: static, dynamic or direct"))),
        }
    }
}

/// Reduces a tensor over all ranks.
pub(crate) unsafe extern "C" fn iallreduce(
    comm: *mut c_void,
    send_data: *mut c_void,
    recv_data: *mut c_void,
    count: usize,
    data_type: c_int,
    red_op: c_int,
    _send_mhandle: *mut c_void,
    _recv_mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    entry(|| {
        let reducing = required(data_type, red_op)?;
        let size = count.checked_mul(reducing.dtype.size());
        let size = size.ok_or_else(|| PluginError::argument("the tensor exceeds the address space"))?;
        let comm = COMMS.get(comm)?;
        let group = comm.group()?;
        let begun = match size {
            0 => Some(Request::Ended),
            _ => group
                .allreduce(bytes(send_data, size)?, bytes(recv_data, size)?, reducing)?
                .map(|number| Request::Collective(group.clone(), number)),
        };
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { write_request(request, begun) }
    })
}

/// The parts of a window in NCCL's memory.
///
/// # Safety
/// `parts` is NULL, or has `count` elements.
pub(crate) unsafe fn parts(parts: *const Sge, count: c_int) -> Result<Vec<UserBytes>, PluginError> {
    let count = usize::try_from(count).unwrap_or(0);
    if parts.is_null() && count > 0 {
        return Err(PluginError::argument("the parts are NULL"));
    }
    // SAFETY: as the caller warrants.
    (0..count).map(|at| unsafe { &*parts.add(at) }).map(|part| bytes(part.address, part.size)).collect()
}

/// Gathers a window of the ranks' blocks.
pub(crate) unsafe extern "C" fn iallgather(
    comm: *mut c_void,
    send_data: *mut c_void,
    parts_count: c_int,
    recv_parts: *mut Sge,
    bytes_per_rank: usize,
    window_offset: usize,
    window_bytes: usize,
    _send_mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    entry(|| {
        // SAFETY: NCCL's array of as many parts.
        let parts = unsafe { parts(recv_parts, parts_count) }?;
        let window = Window { bytes_per_rank, offset: window_offset, bytes: window_bytes };
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { gather(comm, send_data, &parts, window, request) }
    })
}

/// Gathers a window, for all versions of the call.
///
/// # Safety
/// `request` is NULL, which is an error, or has room for a pointer.
pub(crate) unsafe fn gather(
    comm: *mut c_void,
    send_data: *mut c_void,
    parts: &[UserBytes],
    window: Window,
    request: *mut *mut c_void,
) -> Result<(), PluginError> {
    let comm = COMMS.get(comm)?;
    let group = comm.group()?;
    let begun = match window.bytes {
        0 => Some(Request::Ended),
        // It is read as far as the window has bytes of this rank.
        _ => group
            .allgather(UserBytes::new(send_data, window.bytes_per_rank), parts, window)?
            .map(|number| Request::Collective(group.clone(), number)),
    };
    // SAFETY: as the caller warrants.
    unsafe { write_request(request, begun) }
}

/// Reduces a window of the ranks' blocks.
pub(crate) unsafe extern "C" fn ireducescatter(
    comm: *mut c_void,
    parts_count: c_int,
    send_parts: *mut Sge,
    recv_data: *mut c_void,
    bytes_per_rank: usize,
    window_offset: usize,
    window_bytes: usize,
    data_type: c_int,
    red_op: c_int,
    _recv_mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    entry(|| {
        // SAFETY: NCCL's array of as many parts.
        let parts = unsafe { parts(send_parts, parts_count) }?;
        let window = Window { bytes_per_rank, offset: window_offset, bytes: window_bytes };
        let reducing = required(data_type, red_op)?;
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { scatter(comm, &parts, recv_data, window, reducing, request) }
    })
}

/// Reduces a window, for all versions of the call.
///
/// # Safety
/// As [`gather`].
pub(crate) unsafe fn scatter(
    comm: *mut c_void,
    parts: &[UserBytes],
    recv_data: *mut c_void,
    window: Window,
    reducing: Reducing,
    request: *mut *mut c_void,
) -> Result<(), PluginError> {
    let comm = COMMS.get(comm)?;
    let group = comm.group()?;
    let begun = match window.bytes {
        0 => Some(Request::Ended),
        // It is written as far as the window has bytes of this rank.
        _ => group
            .reduce_scatter(parts, UserBytes::new(recv_data, window.bytes_per_rank), window, reducing)?
            .map(|number| Request::Collective(group.clone(), number)),
    };
    // SAFETY: as the caller warrants.
    unsafe { write_request(request, begun) }
}

/// Does nothing: host memory needs no flush.
pub(crate) unsafe extern "C" fn iflush(
    _comm: *mut c_void,
    _data: *mut c_void,
    _size: c_int,
    _mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's pointer to a pointer.
    entry(|| unsafe { write_request(request, None) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_minima_and_maxima_of_four_types_are_supported_and_nothing_else() {
        let supported: Vec<(c_int, c_int)> = (-1..20)
            .flat_map(|data_type| (-1..8).map(move |red_op| (data_type, red_op)))
            .filter(|(data_type, red_op)| reducing(*data_type, *red_op).is_some())
            .collect();
        let expected: Vec<(c_int, c_int)> = [2, 6, 7, 9]
            .into_iter()
            .flat_map(|data_type| [0, 2, 3].map(|red_op| (data_type, red_op)))
            .collect();
        assert_eq!(supported, expected);
    }

    #[test]
    fn the_first_communicator_has_the_slots_that_its_path_needs() {
        let pool = |mode, slots| Pool { mode, slots };
        let (free, small) = (pool(Mode::Static, None), pool(Mode::Static, Some(64)));
        let dynamic = pool(Mode::Dynamic, None);
        assert_eq!(Pool::chosen(true, None, None).unwrap(), [free, small, dynamic]);
        assert_eq!(Pool::chosen(false, None, None).unwrap(), [small, dynamic]);
        let eight = pool(Mode::Static, Some(8));
        assert_eq!(Pool::chosen(true, Some("static"), Some("8")).unwrap(), [eight]);
        assert_eq!(Pool::chosen(true, Some("dynamic"), Some("8")).unwrap(), [dynamic]);
        assert_eq!(Pool::chosen(true, Some("direct"), None).unwrap(), [pool(Mode::Direct, None)]);
        assert!(Pool::chosen(true, Some("ring"), None).is_err());
        assert!(Pool::chosen(true, None, Some("many")).is_err());
    }
}

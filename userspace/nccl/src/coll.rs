//! The calls of NCCL's collective network.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use sumac_client::{DType, Reduction};

use crate::abi::ResultCode;
use crate::address::Address;
use crate::arguments::{Part, address, bytes, parts, write};
use crate::comm::{Accepting, COMMS, Comm, Request, write_listener, write_request};
use crate::error::{PluginError, entry};
use crate::group::{Reducing, Window};
use crate::joining::{is_first, join};
use crate::memory::UserBytes;
use crate::{daemon, device};

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
fn required(data_type: c_int, red_op: c_int) -> Result<Reducing, PluginError> {
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

/// Makes a handle for the communicator that `connect` makes.
pub(crate) unsafe extern "C" fn listen(
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> ResultCode {
    entry(|| {
        device::check(dev)?;
        let address = Address { is_first: is_first(), ..Address::new(&daemon::socket())? };
        // SAFETY: NCCL's buffer and pointer.
        unsafe { write_listener(address, Accepting::Idle, handle, listen_comm) }
    })
}

/// Joins all ranks. Waits for them, as NCCL expects it of this call. If it fails, NCCL goes on without the
/// collective network, on all ranks.
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

/// Gathers a window of the ranks' blocks.
pub(crate) unsafe extern "C" fn iallgather<P: Part>(
    comm: *mut c_void,
    send_data: *mut c_void,
    parts_count: c_int,
    recv_parts: *mut P,
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
        let comm = COMMS.get(comm)?;
        let group = comm.group()?;
        let begun = match window.bytes {
            0 => Some(Request::Ended),
            // It is read as far as the window has bytes of this rank.
            _ => group
                .allgather(UserBytes::new(send_data, bytes_per_rank), &parts, window)?
                .map(|number| Request::Collective(group.clone(), number)),
        };
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { write_request(request, begun) }
    })
}

/// Reduces a window of the ranks' blocks.
pub(crate) unsafe extern "C" fn ireducescatter<P: Part>(
    comm: *mut c_void,
    parts_count: c_int,
    send_parts: *mut P,
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
        let comm = COMMS.get(comm)?;
        let group = comm.group()?;
        let begun = match window.bytes {
            0 => Some(Request::Ended),
            // It is written as far as the window has bytes of this rank.
            _ => group
                .reduce_scatter(&parts, UserBytes::new(recv_data, bytes_per_rank), window, reducing)?
                .map(|number| Request::Collective(group.clone(), number)),
        };
        // SAFETY: NCCL's pointer to a pointer.
        unsafe { write_request(request, begun) }
    })
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
}

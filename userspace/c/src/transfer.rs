//! Transfers between two workers of a direct job.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use ::sumac_client::{MissingValues, Operand, RecvOptions, SendOptions};

use crate::arguments::{Elements, Options};
use crate::collective::Begun;
use crate::error::{Error, call};
use crate::input::{call_into, choose, initialize, short, structure};
use crate::state::JOBS;
use crate::types::{
    sumac_dtype, sumac_job, sumac_missing, sumac_op_options, sumac_recv_options, sumac_request, sumac_status,
};

const MISSING: &[(sumac_missing, MissingValues)] = &[
    (sumac_missing::SUMAC_MISSING_ZERO, MissingValues::Zero),
    (sumac_missing::SUMAC_MISSING_KEEP, MissingValues::Keep),
];

/// Sets the options of `sumac_post_recv` to their defaults. `size` is `sizeof(sumac_recv_options)`.
///
/// Thread safety: any thread; the structure is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_recv_options_init(
    options: *mut sumac_recv_options,
    size: usize,
) -> sumac_status {
    // SAFETY: NULL or of this size, as the header asks for.
    call(|| unsafe { initialize(options, size, "options") })
}

/// Sends `count` elements at `buffer` to the worker `destination` of a direct job, which takes them by
/// `sumac_post_recv`. The n-th of one worker to another belongs to the n-th `sumac_post_recv` there.
/// `options` may be NULL.
///
/// Thread safety: any thread, at any time; transfers of several threads to one worker are matched in the
/// order in which the daemon receives them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_post_send(
    job: *mut sumac_job,
    buffer: *const c_void,
    count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    destination: u32,
    options: *const sumac_op_options,
    request: *mut *mut sumac_request,
) -> sumac_status {
    let post = || {
        let job = JOBS.get(job)?;
        // SAFETY: NULL or a structure with its size, as the header asks for.
        let options = unsafe { Options::read(options) }?;
        if options.name.is_some() || options.loss_bound != 0.0 {
            return Err(Error::argument("sumac_post_send takes no name and no loss_bound"));
        }
        let elements = Elements::new(count, dtype)?;
        let input = job.client.locate(buffer, elements.bytes, "buffer")?;
        let operand = Operand { dtype: elements.dtype, count: elements.count as u64, input, output: None };
        let options = SendOptions { priority: options.priority, importance: options.importance };
        let operation = job.job.submit_send(operand, short(destination, "destination")?, options)?;
        Ok(Begun { job, operation }.give())
    };
    // SAFETY: NULL or room for a pointer, as the header asks for.
    unsafe { call_into(request, "request", post) }
}

/// Receives `count` elements into `buffer` that the worker `source` of a direct job sends by
/// `sumac_post_send`. With a loss bound some may be missing; `sumac_completion` has how many. `options` may
/// be NULL.
///
/// Thread safety: as `sumac_post_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_post_recv(
    job: *mut sumac_job,
    buffer: *mut c_void,
    count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    source: u32,
    options: *const sumac_recv_options,
    request: *mut *mut sumac_request,
) -> sumac_status {
    let post = || {
        let job = JOBS.get(job)?;
        // SAFETY: NULL or a structure with its size, as the header asks for.
        let options = unsafe { structure(options, "options") }?;
        let elements = Elements::new(count, dtype)?;
        let input = job.client.locate(buffer, elements.bytes, "buffer")?;
        let operand = Operand { dtype: elements.dtype, count: elements.count as u64, input, output: None };
        let options = RecvOptions {
            loss_bound: options.loss_bound,
            missing: choose(options.missing, "sumac_missing", MISSING)?,
        };
        let operation = job.job.submit_recv(operand, short(source, "source")?, options)?;
        Ok(Begun { job, operation }.give())
    };
    // SAFETY: NULL or room for a pointer, as the header asks for.
    unsafe { call_into(request, "request", post) }
}

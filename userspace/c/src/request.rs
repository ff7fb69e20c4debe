//! Requests: submitted operations, waited for and cancelled.

use std::sync::PoisonError;
use std::time::Duration;

use crate::error::{Error, call};
use crate::input::{call_into, fill};
use crate::state::REQUESTS;
use crate::types::{sumac_completion, sumac_request, sumac_status};

/// Waits for an operation; returns false at the timeout, and removes its handle otherwise.
fn finish(
    request: *mut sumac_request,
    timeout: Option<Duration>,
    completion: *mut sumac_completion,
) -> Result<bool, Error> {
    let state = REQUESTS.get(request)?;
    let mut operation = state.operation.lock().unwrap_or_else(PoisonError::into_inner);
    let is_ended = operation.wait(timeout);
    if let Ok(false) = is_ended {
        return Ok(false);
    }
    // Another thread may have waited for it too.
    let _ = REQUESTS.remove(request);
    is_ended?;
    let loss = operation.loss();
    let value = sumac_completion {
        size: size_of::<sumac_completion>(),
        duration_ns: operation.duration().map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX)),
        missing: loss.map_or(0, |loss| loss.by_worker.iter().sum()),
        missing_fraction: loss.map_or(0.0, ::sumac_client::Loss::fraction),
    };
    // SAFETY: NULL or a structure with its size, as the header asks for.
    unsafe { fill(completion, value, "completion") }?;
    Ok(true)
}

/// Waits for a request, for at most `timeout_ms` milliseconds or, with `SUMAC_NO_TIMEOUT`, until its end.
/// With `SUMAC_ERR_TIMEOUT` it continues; after any other outcome its handle is invalid. Until then the
/// program may not write its input or access its result. `completion` may be NULL.
///
/// Thread safety: any thread; one thread at a time for a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_wait(
    request: *mut sumac_request,
    timeout_ms: i64,
    completion: *mut sumac_completion,
) -> sumac_status {
    call(|| {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        if finish(request, timeout, completion)? {
            return Ok(());
        }
        let waiting = REQUESTS.get(request)?.job.job.waiting();
        let why = waiting.map_or(String::new(), |waiting| format!(": {waiting}"));
        let message = format!("the operation has not ended after {timeout_ms} ms{why}");
        Err(Error::new(sumac_status::SUMAC_ERR_TIMEOUT, message).hint("it continues: wait again"))
    })
}

/// Sets `*done` to 1 if a request has ended, else to 0, without waiting. If it has ended, and after an error,
/// its handle is invalid. `completion` may be NULL.
///
/// Thread safety: any thread; one thread at a time for a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_test(
    request: *mut sumac_request,
    done: *mut i32,
    completion: *mut sumac_completion,
) -> sumac_status {
    let test = || Ok(finish(request, Some(Duration::ZERO), completion)?.into());
    // SAFETY: NULL or room for the number, as the header asks for.
    unsafe { call_into(done, "done", test) }
}

/// Cancels a request. Its job ends on all workers, whose errors name this rank. The request must be waited
/// for in any case.
///
/// Thread safety: any thread; one thread at a time for a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_cancel(request: *mut sumac_request) -> sumac_status {
    call(|| {
        let state = REQUESTS.get(request)?;
        state.operation.lock().unwrap_or_else(PoisonError::into_inner).cancel()?;
        Ok(())
    })
}

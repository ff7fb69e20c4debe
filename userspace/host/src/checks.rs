//! The checks of an operation before its memory is leased.

use sumac_api::{Code, Collective, CollectiveKind, Failure};
use sumac_job::{DType, JobTerms, OperationOrder, Reduction};
use sumac_wire::MAX_WORKERS;

use crate::job::RunningJob;
use crate::transfer::check_fraction;

/// The longest name of an operation in bytes.
const NAME_LEN: usize = 128;
/// The most chunks of an operation: the largest tensor has so many of 256 elements.
const MAX_CHUNKS: u64 = 1 << 24;
/// The most outstanding operations of a job, over all its connections.
const MAX_OUTSTANDING: u64 = 4096;

/// Refuses a further operation of a job that has ended, or has the most.
pub(crate) fn check_outstanding(running: &RunningJob) -> Result<(), Failure> {
    if let Some(failure) = &running.closed {
        return Err(failure.clone());
    }
    if running.submitted.saturating_sub(running.ended) >= MAX_OUTSTANDING {
        let message =
            format!("{MAX_OUTSTANDING} operations of this job are outstanding, the most it may have");
        return Err(Failure::new(Code::Limit, message).hint("wait for one first"));
    }
    Ok(())
}

/// Returns the chunks of a tensor. Refuses too many.
pub(crate) fn chunks(count: u64, per_chunk: u64) -> Result<u64, Failure> {
    let per_chunk = per_chunk.max(1);
    let chunks = count.div_ceil(per_chunk);
    if chunks > MAX_CHUNKS {
        let message = format!("{count} elements in packets of {per_chunk} are {chunks} packets");
        return Err(Failure::new(Code::Limit, format!("{message}; an operation has at most {MAX_CHUNKS}"))
            .hint("open the job with larger `elements`, or split the tensor"));
    }
    Ok(chunks)
}

/// Checks a request's loss bound.
fn check_bound(kind: CollectiveKind, request: &Collective, job: &JobTerms) -> Result<(), Failure> {
    let (name, bound) = (kind.name(), request.loss_bound);
    check_fraction(name, bound)?;
    let reduction = request.reduction.unwrap_or_default();
    let problem = match () {
        () if bound == 0.0 => return Ok(()),
        () if job.is_direct() && bound == 1.0 => "something must arrive",
        () if !(kind.reduces() || job.is_direct() && kind == CollectiveKind::Allgather) => {
            "values that are only moved have no others that could stand for them"
        }
        () if request.dtype == DType::Int32 => "a sum of some workers' int32 cannot be scaled to that of all",
        () if matches!(reduction, Reduction::Min | Reduction::Max) => {
            "the minimum or maximum of some workers is not that of all"
        }
        () if usize::from(job.world) > MAX_WORKERS => "it is for jobs of up to 32 workers",
        () if job.whole => "the P4 switch of this static job leaves no worker out",
        () => return Ok(()),
    };
    let message = format!("{name}: loss_bound {bound}: {problem}");
    let hint = match job.whole {
        true => "open the job in dynamic mode, or leave loss_bound out; docs/p4.md, \"Loss bounds\"",
        false => "leave loss_bound out, or give 0",
    };
    Err(Failure::new(Code::Unsupported, message).hint(hint))
}

/// Checks a request before its memory is leased.
pub(crate) fn check(kind: CollectiveKind, request: &Collective, job: &JobTerms) -> Result<(), Failure> {
    let bad = |problem: String| Failure::new(Code::BadField, format!("{}: {problem}", kind.name()));
    let Collective { count, priority, root, ref name, .. } = *request;
    check_bound(kind, request, job)?;
    if priority > 7 {
        return Err(bad(format!("priority {priority} is not between 0 and 7")));
    }
    if count > u64::from(u32::MAX) {
        let problem = format!("{count} elements; packets can address {} of a tensor", u32::MAX);
        return Err(bad(problem).hint("split the tensor"));
    }
    let world = job.ranks();
    if let Some(root) = root.filter(|root| *root >= world) {
        return Err(bad(format!("root {root} is not below world {world}")));
    }
    let blocks = job.blocks();
    if kind.has_blocks() && !count.is_multiple_of(u64::from(blocks)) {
        let (holders, multiple) = if job.servers > 0 { ("servers", "servers") } else { ("workers", "world") };
        let problem = format!("{count} elements do not divide into blocks for {blocks} {holders}");
        let hint = format!("count is that of the whole tensor; pad it to a multiple of {multiple}");
        return Err(bad(problem).hint(hint));
    }
    match name {
        Some(name) if name.is_empty() || name.len() > NAME_LEN || name.contains(char::is_control) => {
            Err(bad(format!("a name must have 1 to {NAME_LEN} bytes and no control characters")))
        }
        None if job.order == OperationOrder::Name => {
            Err(bad("an operation of a job in order of names needs a name".into()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_static_job_of_a_switch_has_no_loss_bound() {
        let terms = JobTerms::new(1, 1, 1, 2);
        let with = |loss_bound: f32, terms: &JobTerms| {
            let sum = json!({"job": 1,
                "region": 1, "dtype": "float32", "offset": 0, "count": 4, "loss_bound": loss_bound});
            check_bound(CollectiveKind::Allreduce, &serde_json::from_value(sum).unwrap(), terms)
        };
        with(0.1, &terms).unwrap();
        let whole = JobTerms { whole: true, ..terms };
        let refused = with(0.1, &whole).unwrap_err();
        assert_eq!(refused.code, Code::Unsupported);
        assert_eq!(
            &*refused.message,
            "allreduce: loss_bound 0.1: the P4 switch of this static job leaves no worker out"
        );
        assert!(refused.hint.contains("dynamic mode"), "{refused:?}");
        with(0.0, &whole).unwrap();
    }
}

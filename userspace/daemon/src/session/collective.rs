//! The commands that submit operations.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use sumac_api::{Code, Collective, CollectiveKind, Failure, OperationReply};
use sumac_job::{JobTerms, OperationOrder};

use super::commands::{Answer, limit, now, unknown_job};
use super::outstanding::Outstanding;
use super::tensor::Tensor;
use super::{JobState, Session};
use crate::operations::{ClientId, ElementRanges, JobOperations, Submission};

const NAME_LEN: usize = 128;

impl Session {
    pub(super) fn submit(&mut self, id: u64, kind: CollectiveKind, request: &Collective) -> Answer {
        let (operations, client) = self.open_job(request.job)?;
        if self.operations.outstanding() >= self.limits.operations as usize {
            return Err(limit("outstanding operations", self.limits.operations, "wait for one first"));
        }
        let terms = &operations.terms;
        check(kind, request, terms)?;
        let ranges = ElementRanges::of(kind, request.count, operations.rank, terms.world, request.root);
        let tensor = Tensor::new(kind, request, ranges);
        let [from, to] = tensor.regions();
        let operation = Outstanding { job: request.job, regions: [from, to], submitted: Instant::now() };
        let (from, to) = (self.region(from)?.clone(), self.region(to)?.clone());
        tensor.check(&from, &to)?;
        let op = self.operations.start(operation);
        let submission = Submission {
            descriptor: request.descriptor(kind),
            priority: request.priority,
            client,
            op,
            ranges: tensor.ranges(),
        };
        let lease =
            |fragment: &Range<u64>, ranges: &ElementRanges| tensor.lease(&from, &to, fragment, ranges);
        match operations.submit(&self.daemon.backend, submission, lease) {
            Ok(()) => now(id, &OperationReply { op }),
            Err(failure) => {
                self.operations.withdraw(op);
                Err(failure)
            }
        }
    }

    fn open_job(&self, handle: u64) -> Result<(Arc<JobOperations>, ClientId), Failure> {
        match self.jobs.get(&handle).map(|job| &job.state) {
            Some(JobState::Open { operations, client }) => Ok((operations.clone(), *client)),
            Some(JobState::Failed(failure)) => Err(failure.clone()),
            Some(JobState::Opening | JobState::Closing { .. }) | None => Err(unknown_job(handle)),
        }
    }
}

/// Checks a request before its memory is leased.
fn check(kind: CollectiveKind, request: &Collective, job: &JobTerms) -> Result<(), Failure> {
    let bad = |problem: String| Failure::new(Code::BadField, format!("{}: {problem}", kind.name()));
    let Collective { count, priority, loss_bound, root, ref name, .. } = *request;
    if loss_bound != 0.0 {
        return Err(Failure::new(
            Code::Unsupported,
            format!("a loss bound of {loss_bound} is not supported by this job, which is exact"),
        )
        .hint("leave loss_bound out, or give 0"));
    }
    if priority > 7 {
        return Err(bad(format!("priority {priority} is not between 0 and 7")));
    }
    if count > u64::from(u32::MAX) {
        let problem = format!("{count} elements; packets can address {} of a tensor", u32::MAX);
        return Err(bad(problem).hint("split the tensor"));
    }
    if let Some(root) = root.filter(|root| *root >= job.world) {
        return Err(bad(format!("root {root} is not below world {}", job.world)));
    }
    if kind.has_blocks() && !count.is_multiple_of(u64::from(job.world)) {
        let problem = format!("{count} elements do not divide into blocks for {} workers", job.world);
        return Err(bad(problem).hint("count is that of the whole tensor; pad it to a multiple of world"));
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

//! Operations: what a trainer asks for, checked, its memory lent, and handed to the job's stream.

use std::sync::Arc;
use std::time::Instant;

use sumac_api::{Code, Collective, CollectiveKind, Failure, OperationReply};

use super::commands::{Answer, limit, now, unknown_job};
use super::tensors::Tensors;
use super::{JobState, Session};
use crate::operations::Running;
use crate::stream::{ClientId, Request, Shape, Share, Stream, What};

/// The longest name of an operation, in bytes.
const NAME_LEN: usize = 128;

impl Session {
    pub(super) fn operate(&mut self, id: u64, kind: CollectiveKind, ask: &Collective) -> Answer {
        let (stream, client) = self.ready_job(ask.job)?;
        if self.operations.outstanding() >= self.limits.operations as usize {
            return Err(limit("outstanding operations", self.limits.operations, "wait for one first"));
        }
        check(kind, ask, stream.shape())?;
        let Shape { rank, world, .. } = *stream.shape();
        let tensors = Tensors::of(kind, ask, Share::of(kind, ask.count, rank, world, ask.root));
        let regions = tensors.regions();
        let op = self.operations.start(Running { job: ask.job, regions, since: Instant::now() });
        let taken = self.hand_over(&stream, kind, ask, &tensors, (client, op));
        match taken {
            Ok(()) => now(id, &OperationReply { op }),
            Err(failure) => {
                self.operations.withdraw(op);
                Err(failure)
            }
        }
    }

    /// The job's stream, if it takes operations.
    fn ready_job(&self, handle: u64) -> Result<(Arc<Stream>, ClientId), Failure> {
        match self.jobs.get(&handle).map(|job| &job.state) {
            Some(JobState::Open { stream, client }) => Ok((stream.clone(), *client)),
            Some(JobState::Failed(failure)) => Err(failure.clone()),
            Some(JobState::Opening | JobState::Closing { .. }) | None => Err(unknown_job(handle)),
        }
    }

    fn hand_over(
        &self,
        stream: &Stream,
        kind: CollectiveKind,
        ask: &Collective,
        tensors: &Tensors,
        (client, op): (ClientId, u64),
    ) -> Result<(), Failure> {
        let [from, to] = tensors.regions();
        let (from, to) = (self.region(from)?, self.region(to)?);
        tensors.check(from, to)?;
        let request = Request {
            what: What::new(kind, ask),
            priority: ask.priority,
            client,
            op,
            share: tensors.share(),
        };
        stream.submit(&self.hub.carrier, request, |part, share| tensors.lend(from, to, part, share))
    }
}

/// Refuses what the engine would refuse, or could not mean the same on all workers, before anything is borrowed.
fn check(kind: CollectiveKind, ask: &Collective, job: &Shape) -> Result<(), Failure> {
    let bad = |problem: String| Failure::new(Code::BadField, format!("{}: {problem}", kind.name()));
    if ask.loss_bound != 0.0 {
        return Err(Failure::new(
            Code::Unsupported,
            format!("a loss bound of {} is not supported by this job, which is exact", ask.loss_bound),
        )
        .hint("leave loss_bound out, or give 0"));
    }
    if ask.priority > 7 {
        return Err(bad(format!("priority {} is not between 0 and 7", ask.priority)));
    }
    if ask.count > u64::from(u32::MAX) {
        let problem = format!("{} elements; packets can address {} of a tensor", ask.count, u32::MAX);
        return Err(bad(problem).hint("split the tensor"));
    }
    if let Some(root) = ask.root.filter(|root| *root >= job.world) {
        return Err(bad(format!("root {root} is not below world {}", job.world)));
    }
    if kind.has_blocks() && !ask.count.is_multiple_of(u64::from(job.world)) {
        let problem = format!("{} elements do not divide into blocks for {} workers", ask.count, job.world);
        return Err(bad(problem).hint("count is that of the whole tensor; pad it to a multiple of world"));
    }
    match &ask.name {
        Some(name) if name.is_empty() || name.len() > NAME_LEN || name.contains(char::is_control) => {
            Err(bad(format!("a name must have 1 to {NAME_LEN} bytes and no control characters")))
        }
        None if job.by_name => Err(bad("an operation of a job in order of names needs a name".into())),
        _ => Ok(()),
    }
}

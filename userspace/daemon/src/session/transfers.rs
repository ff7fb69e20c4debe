//! Transfers between two workers: `post_send`, `post_recv` and `poll_cq` (MLT section 5).

use std::ops::Range;

use sumac_api::{
    Code, Failure, MissingValues, OperationReply, Outbound, PollCq, PollCqReply, PostRecv, PostSend,
};
use sumac_job::{DType, JobTerms};
use sumac_transport::Arithmetic;

use super::commands::{Answer, check_fraction, now, unknown_job};
use super::tensor::Tensor;
use super::{Admitted, JobState, Session};
use crate::operations::{Direction, ElementRanges, Posting, Transfer};

/// Bytes of completions in a reply: some of them, or one with all the ranges that it may have.
const POLLED_BYTES: usize = 60_000;

impl Session {
    pub(super) fn post_send(&mut self, id: u64, request: &PostSend) -> Answer {
        let PostSend { job, region, dtype, offset, count, destination, priority, importance } = *request;
        let direction = Direction::Send { priority, importance };
        let transfer = Transfer { direction, peer: destination, dtype, count };
        self.post(id, job, transfer, (region, offset))
    }

    pub(super) fn post_recv(&mut self, id: u64, request: &PostRecv) -> Answer {
        let PostRecv { job, region, dtype, offset, count, source, loss_bound, missing } = *request;
        let direction = Direction::Receive { loss_bound, keeps: missing == MissingValues::Keep };
        let transfer = Transfer { direction, peer: source, dtype, count };
        self.post(id, job, transfer, (region, offset))
    }

    fn post(&mut self, id: u64, job: u64, transfer: Transfer, (region, offset): (u64, u64)) -> Answer {
        let (operations, client) = self.open_job(job)?;
        check(&transfer, &operations.terms, operations.rank)?;
        let tensor = Tensor::of_transfer(region, offset, &transfer);
        let bytes = || operations.held_bytes(transfer.dtype, Arithmetic::Bits, transfer.count);
        let Admitted { op, from, to, held } = self.admit(job, &tensor, true, bytes)?;
        let lease =
            |fragment: &Range<u64>, ranges: &ElementRanges| tensor.lease(&from, &to, fragment, ranges);
        let posting = Posting { transfer: transfer.clone(), client, op };
        match operations.post(&self.daemon.backend, posting, held, lease) {
            Ok(()) => now(id, &OperationReply { op }),
            Err(failure) => {
                self.operations.withdraw(op);
                Err(failure)
            }
        }
    }

    /// Takes transfers of a job that have ended, up to the length of a reply.
    pub(super) fn poll_cq(&mut self, id: u64, request: &PollCq) -> Answer {
        let job = self.jobs.get(&request.job).ok_or_else(|| unknown_job(request.job))?;
        if let JobState::Open { operations, .. } = &job.state {
            check_mode("poll_cq", &operations.terms)?;
        }
        let completions = self.operations.poll_cq(request.job, POLLED_BYTES);
        Ok(Some(Outbound::ok(id, &PollCqReply { completions })))
    }
}

fn check_mode(command: &str, job: &JobTerms) -> Result<(), Failure> {
    if job.is_direct() {
        return Ok(());
    }
    let mode = if job.is_dynamic() { "dynamic" } else { "static" };
    let message =
        format!("{command}: the job is {mode}, and only workers of a direct job send to each other");
    Err(Failure::new(Code::Unsupported, message).hint(r#"open the job with mode "direct""#))
}

/// Checks a transfer before its memory is leased.
fn check(transfer: &Transfer, job: &JobTerms, rank: u16) -> Result<(), Failure> {
    let command = transfer.command();
    check_mode(command, job)?;
    let bad = |problem: String| Failure::new(Code::BadField, format!("{command}: {problem}"));
    let Transfer { direction, peer, dtype, count } = *transfer;
    let role = match direction {
        Direction::Send { .. } => "destination",
        Direction::Receive { .. } => "source",
    };
    match () {
        () if peer >= job.world => {
            return Err(bad(format!("{role} {peer} is not below world {}", job.world)).ranks([peer]));
        }
        () if peer == rank => return Err(bad(format!("{role} {peer} is this worker itself")).ranks([peer])),
        () if count == 0 => return Err(bad("a transfer has at least one element".into())),
        () if count > u64::from(u32::MAX) => {
            let problem = format!("{count} elements; packets can address {} of a tensor", u32::MAX);
            return Err(bad(problem).hint("split the tensor"));
        }
        () => {}
    }
    match direction {
        Direction::Send { priority, .. } if priority > 7 => {
            Err(bad(format!("priority {priority} is not between 0 and 7")))
        }
        Direction::Send { .. } => Ok(()),
        Direction::Receive { loss_bound, .. } => check_bound(command, loss_bound, dtype),
    }
}

fn check_bound(command: &str, bound: f32, dtype: DType) -> Result<(), Failure> {
    check_fraction(command, bound)?;
    let problem = match () {
        () if bound == 1.0 => "something must arrive",
        () if bound > 0.0 && dtype == DType::Int32 => "a tensor of int32 may lack nothing",
        () => return Ok(()),
    };
    let message = format!("{command}: loss_bound {bound}: {problem}");
    Err(Failure::new(Code::Unsupported, message).hint("leave loss_bound out, or give 0"))
}

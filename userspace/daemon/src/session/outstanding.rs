//! A session's operations: the outstanding ones, the outcomes of the last ones, and the requests that wait for them.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use sumac_api::{Failure, Loss, Timing, TransferCompletion};

use crate::sync::{from_monotonic, to_monotonic};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// From submission to completion.
    pub(crate) duration_ns: u64,
    pub(crate) error: Option<Failure>,
    /// Ranges of elements that were not written, because they were summed before this worker replaced another one.
    pub(crate) missed: Vec<(u64, u64)>,
    /// The contributions that are missing, of an operation with a loss bound.
    pub(crate) loss: Option<Loss>,
    /// The times of its steps, if the client asked for them.
    pub(crate) timing: Option<Timing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outstanding {
    pub(super) job: u64,
    pub(super) regions: [u64; 2],
    /// Whether its end is taken from the completion queue too.
    pub(super) is_transfer: bool,
    pub(super) submitted: Instant,
}

#[derive(Debug, PartialEq)]
pub(super) enum WaitState {
    Ended(Box<Outcome>),
    /// The reply follows from [`Operations::finish`] or [`Operations::expire`].
    Waiting,
    /// There is no such operation, or its outcome is no longer kept.
    Unknown,
    TooMany,
}

#[derive(Debug)]
struct Waiter {
    op: u64,
    request: u64,
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Ended {
    op: u64,
    /// The job of a transfer that was not polled yet.
    unpolled: Option<u64>,
    outcome: Outcome,
}

impl Ended {
    fn completion(&self) -> TransferCompletion {
        let Outcome { duration_ns, error, loss, .. } = self.outcome.clone();
        TransferCompletion { op: self.op, duration_ns, loss, error }
    }
}

/// Returns the most bytes of a completion in JSON.
fn message_bytes(completion: &TransferCompletion) -> usize {
    let ranges = completion.loss.as_ref().map_or(0, |loss| loss.missing.len());
    let error = completion.error.as_ref().map_or(0, |_| ERROR_BYTES);
    COMPLETION_BYTES + error + ranges * RANGE_BYTES
}

const COMPLETION_BYTES: usize = 300;
/// As `super::MESSAGE_COST` has it.
const ERROR_BYTES: usize = 1728;
/// Two numbers of ten digits.
const RANGE_BYTES: usize = 24;

/// The operations of a session. Handles count from 1 and are never reused.
#[derive(Debug)]
pub(super) struct Operations {
    last: u64,
    outstanding: HashMap<u64, Outstanding>,
    ended: VecDeque<Ended>,
    /// The number of ends that were ever polled.
    polled: u64,
    capacity: usize,
    waiters: Vec<Waiter>,
}

#[derive(Debug, Serialize, Deserialize)]
struct OutstandingState {
    op: u64,
    job: u64,
    regions: [u64; 2],
    is_transfer: bool,
    submitted_ns: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct EndedState {
    op: u64,
    unpolled: Option<u64>,
    outcome: Outcome,
}

#[derive(Debug, Serialize, Deserialize)]
struct WaiterState {
    op: u64,
    request: u64,
    deadline_ns: Option<u64>,
}

/// The operations of a connection as one daemon hands them over to another.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OperationsState {
    last: u64,
    outstanding: Vec<OutstandingState>,
    ended: Vec<EndedState>,
    polled: u64,
    waiters: Vec<WaiterState>,
}

impl Operations {
    /// `capacity`: the number of outcomes that are kept, and of requests that may wait.
    pub(super) fn new(capacity: usize) -> Operations {
        let (outstanding, ended) = (HashMap::new(), VecDeque::new());
        Operations { last: 0, outstanding, ended, polled: 0, capacity, waiters: Vec::new() }
    }

    /// Returns the state for another daemon.
    pub(super) fn snapshot(&self) -> OperationsState {
        let outstanding = self.outstanding.iter().map(|(op, outstanding)| {
            let Outstanding { job, regions, is_transfer, submitted } = *outstanding;
            OutstandingState { op: *op, job, regions, is_transfer, submitted_ns: to_monotonic(submitted) }
        });
        let ended = self.ended.iter().map(|Ended { op, unpolled, outcome }| EndedState {
            op: *op,
            unpolled: *unpolled,
            outcome: outcome.clone(),
        });
        let waiters = self.waiters.iter().map(|Waiter { op, request, deadline }| WaiterState {
            op: *op,
            request: *request,
            deadline_ns: deadline.map(to_monotonic),
        });
        OperationsState {
            last: self.last,
            outstanding: outstanding.collect(),
            ended: ended.collect(),
            polled: self.polled,
            waiters: waiters.collect(),
        }
    }

    /// Continues those of another daemon.
    pub(super) fn resume(&mut self, state: OperationsState) {
        let OperationsState { last, outstanding, ended, polled, waiters } = state;
        (self.last, self.polled) = (last, polled);
        self.outstanding = outstanding
            .into_iter()
            .map(|OutstandingState { op, job, regions, is_transfer, submitted_ns }| {
                let submitted = from_monotonic(submitted_ns);
                (op, Outstanding { job, regions, is_transfer, submitted })
            })
            .collect();
        self.ended = ended
            .into_iter()
            .map(|EndedState { op, unpolled, outcome }| Ended { op, unpolled, outcome })
            .collect();
        self.waiters = waiters
            .into_iter()
            .map(|WaiterState { op, request, deadline_ns }| Waiter {
                op,
                request,
                deadline: deadline_ns.map(from_monotonic),
            })
            .collect();
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    pub(super) fn start(&mut self, operation: Outstanding) -> u64 {
        self.last += 1;
        self.outstanding.insert(self.last, operation);
        self.last
    }

    pub(super) fn withdraw(&mut self, op: u64) {
        self.outstanding.remove(&op);
    }

    pub(super) fn get(&self, op: u64) -> Option<Outstanding> {
        self.outstanding.get(&op).copied()
    }

    pub(super) fn has_ended(&self, op: u64) -> bool {
        self.ended.iter().any(|ended| ended.op == op)
    }

    pub(super) fn uses_job(&self, job: u64) -> bool {
        self.outstanding.values().any(|operation| operation.job == job)
    }

    /// Returns the outstanding operations of a job in the order of submission, with their time of submission.
    pub(super) fn of_job(&self, job: u64) -> Vec<(u64, Instant)> {
        let of_job = self.outstanding.iter().filter(|(_, operation)| operation.job == job);
        let mut ops: Vec<_> = of_job.map(|(op, operation)| (*op, operation.submitted)).collect();
        ops.sort_unstable();
        ops
    }

    pub(super) fn uses_region(&self, region: u64) -> bool {
        self.outstanding.values().any(|operation| operation.regions.contains(&region))
    }

    /// Ends an operation. Returns it and the requests that wait for it; `None` when it is not outstanding.
    pub(super) fn finish(&mut self, op: u64, outcome: &Outcome) -> Option<(Outstanding, Vec<u64>)> {
        let operation = self.outstanding.remove(&op)?;
        if self.ended.len() == self.capacity {
            self.ended.pop_front();
        }
        let unpolled = operation.is_transfer.then_some(operation.job);
        self.ended.push_back(Ended { op, unpolled, outcome: outcome.clone() });
        let waiters = self.waiters.extract_if(.., |waiter| waiter.op == op);
        Some((operation, waiters.map(|waiter| waiter.request).collect()))
    }

    /// Returns an operation's outcome, or adds the request to those that wait for it.
    pub(super) fn wait(&mut self, op: u64, request: u64, deadline: Option<Instant>) -> WaitState {
        if let Some(ended) = self.ended.iter().find(|ended| ended.op == op) {
            return WaitState::Ended(Box::new(ended.outcome.clone()));
        }
        if !self.outstanding.contains_key(&op) {
            return WaitState::Unknown;
        }
        if self.waiters.len() >= self.capacity {
            return WaitState::TooMany;
        }
        self.waiters.push(Waiter { op, request, deadline });
        WaitState::Waiting
    }

    /// Takes the ends of a job's transfers that were not polled, in the order of the ends: as many as fit into so many bytes, but
    /// at least one.
    pub(super) fn poll_cq(&mut self, job: u64, most_bytes: usize) -> Vec<TransferCompletion> {
        let (mut completions, mut bytes) = (Vec::new(), 0);
        for ended in self.ended.iter_mut().filter(|ended| ended.unpolled == Some(job)) {
            let completion = ended.completion();
            bytes += message_bytes(&completion);
            if bytes > most_bytes && !completions.is_empty() {
                break;
            }
            ended.unpolled = None;
            completions.push(completion);
        }
        self.polled += completions.len() as u64;
        completions
    }

    pub(super) fn polled(&self) -> u64 {
        self.polled
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiters.iter().filter_map(|waiter| waiter.deadline).min()
    }

    /// Removes the waiting requests whose deadline has passed. Returns their operations and requests.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<(u64, u64)> {
        let is_late = |waiter: &mut Waiter| waiter.deadline.is_some_and(|deadline| deadline <= now);
        self.waiters.extract_if(.., is_late).map(|waiter| (waiter.op, waiter.request)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn operation() -> Outstanding {
        Outstanding { job: 1, regions: [2, 3], is_transfer: false, submitted: Instant::now() }
    }

    fn done(duration_ns: u64) -> Outcome {
        Outcome { duration_ns, ..Outcome::default() }
    }

    #[test]
    fn each_waiting_request_is_answered_once() {
        let mut ops = Operations::new(4);
        let operation = operation();
        let op = ops.start(operation);
        assert_eq!(ops.wait(op, 10, None), WaitState::Waiting);
        assert_eq!(ops.wait(op, 11, None), WaitState::Waiting);
        assert_eq!(ops.finish(op, &done(5)), Some((operation, vec![10, 11])));
        assert_eq!(ops.finish(op, &done(6)), None);
        assert_eq!(ops.wait(op, 12, None), WaitState::Ended(Box::new(done(5))));
    }

    #[test]
    fn only_the_last_outcomes_are_kept() {
        let mut ops = Operations::new(2);
        let handles: Vec<u64> = (0..3).map(|_| ops.start(operation())).collect();
        for op in &handles {
            ops.finish(*op, &done(*op));
        }
        assert_eq!(ops.wait(handles[0], 1, None), WaitState::Unknown);
        assert_eq!(ops.wait(handles[2], 1, None), WaitState::Ended(Box::new(done(handles[2]))));
    }

    #[test]
    fn an_operation_outlasts_a_request_that_expires() {
        let mut ops = Operations::new(4);
        let operation = operation();
        let op = ops.start(operation);
        let now = Instant::now();
        let soon = now + Duration::from_millis(1);
        ops.wait(op, 10, Some(soon));
        ops.wait(op, 11, None);
        assert_eq!(ops.deadline(), Some(soon));
        assert!(ops.expire(now).is_empty());
        assert_eq!(ops.expire(soon), [(op, 10)]);
        assert_eq!(ops.deadline(), None);
        assert_eq!(ops.finish(op, &done(1)), Some((operation, vec![11])));
    }

    #[test]
    fn waiting_requests_are_bounded() {
        let mut ops = Operations::new(1);
        let op = ops.start(operation());
        assert_eq!(ops.wait(op, 1, None), WaitState::Waiting);
        assert_eq!(ops.wait(op, 2, None), WaitState::TooMany);
    }

    #[test]
    fn transfers_are_polled_once_by_job_and_as_many_as_fit() {
        let mut ops = Operations::new(8);
        let transfer = |job| Outstanding { job, is_transfer: true, ..operation() };
        let started = [transfer(1), operation(), transfer(2), transfer(1), transfer(1)];
        let handles = started.map(|operation| ops.start(operation));
        for op in handles.iter().rev() {
            ops.finish(*op, &done(*op));
        }
        let polled = |ops: &mut Operations, job, bytes| -> Vec<u64> {
            ops.poll_cq(job, bytes).iter().map(|completion| completion.op).collect()
        };
        assert_eq!(polled(&mut ops, 1, 2 * COMPLETION_BYTES), [handles[4], handles[3]]);
        assert_eq!(polled(&mut ops, 1, 0), [handles[0]], "at least one");
        assert!(polled(&mut ops, 1, 9999).is_empty());
        assert_eq!((polled(&mut ops, 2, 9999), ops.polled()), (vec![handles[2]], 4));
        assert_eq!(ops.wait(handles[0], 1, None), WaitState::Ended(Box::new(done(handles[0]))));
    }

    #[test]
    fn jobs_and_regions_in_use_are_known() {
        let mut ops = Operations::new(4);
        let op = ops.start(operation());
        assert!(ops.uses_job(1) && ops.uses_region(2) && ops.uses_region(3));
        assert_eq!(ops.of_job(1).iter().map(|(op, _)| *op).collect::<Vec<_>>(), [op]);
        assert!(!ops.uses_job(2) && !ops.uses_region(1));
        ops.withdraw(op);
        assert!(!ops.uses_job(1) && !ops.uses_region(2));
        assert_eq!(ops.wait(op, 1, None), WaitState::Unknown);
    }
}

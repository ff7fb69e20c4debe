//! The outcomes of a connection's last operations, and the requests that wait for operations.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use sumac_api::{Failure, Loss, Outbound, Timing, TransferCompletion, WaitReply};

use crate::Nanos;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// From submission to completion.
    pub duration_ns: u64,
    pub error: Option<Failure>,
    /// Ranges of elements that were not written, because they were summed before this worker replaced another
    /// one.
    pub missed: Vec<(u64, u64)>,
    /// The contributions that are missing, of an operation with a loss bound.
    pub loss: Option<Loss>,
    /// The times of its steps, if the client asked for them.
    pub timing: Option<Timing>,
}

impl Outcome {
    /// Returns the reply to a `wait` for the operation.
    pub(crate) fn reply(self, request: u64, op: u64) -> Outbound {
        let Outcome { duration_ns, error, missed, loss, timing } = self;
        match error {
            None => Outbound::ok(request, &WaitReply { op, duration_ns, missed, loss, timing }),
            Some(failure) => Outbound::failed(Some(request), failure),
        }
    }
}

/// A request that waits for an operation's end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiter {
    op: u64,
    request: u64,
    deadline: Option<Nanos>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
/// As [`crate::MESSAGE_COST`] has it.
const ERROR_BYTES: usize = 1728;
/// Two numbers of ten digits.
const RANGE_BYTES: usize = 24;

/// The last outcomes in the order of the ends, and the waiting requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finished {
    ended: VecDeque<Ended>,
    waiters: Vec<Waiter>,
}

impl Finished {
    pub(crate) fn get(&self, op: u64) -> Option<&Outcome> {
        self.ended.iter().find(|ended| ended.op == op).map(|ended| &ended.outcome)
    }

    /// Adds an outcome, of which `capacity` are kept. `transfer_of`: the job's handle of a transfer, whose
    /// end is taken from the completion queue too. Returns the requests that wait for it.
    pub(crate) fn add(
        &mut self,
        op: u64,
        outcome: Outcome,
        transfer_of: Option<u64>,
        capacity: usize,
    ) -> Vec<u64> {
        if self.ended.len() >= capacity {
            self.ended.pop_front();
        }
        self.ended.push_back(Ended { op, unpolled: transfer_of, outcome });
        self.waiters.extract_if(.., |waiter| waiter.op == op).map(|waiter| waiter.request).collect()
    }

    /// Adds a waiting request. Returns `false` when there are as many as `capacity`.
    pub(crate) fn wait(&mut self, op: u64, request: u64, deadline: Option<Nanos>, capacity: usize) -> bool {
        let has_room = self.waiters.len() < capacity;
        if has_room {
            self.waiters.push(Waiter { op, request, deadline });
        }
        has_room
    }

    /// Takes the ends of a job's transfers that were not polled, in the order of the ends: as many as fit
    /// into so many bytes, but at least one.
    pub(crate) fn poll_cq(&mut self, job: u64, most_bytes: usize) -> Vec<TransferCompletion> {
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
        completions
    }

    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.waiters.iter().filter_map(|waiter| waiter.deadline).min()
    }

    /// Removes the waiting requests whose deadline has passed. Returns their operations and requests.
    pub(crate) fn expire(&mut self, now: Nanos) -> Vec<(u64, u64)> {
        let is_late = |waiter: &mut Waiter| waiter.deadline.is_some_and(|deadline| deadline <= now);
        self.waiters.extract_if(.., is_late).map(|waiter| (waiter.op, waiter.request)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(duration_ns: u64) -> Outcome {
        Outcome { duration_ns, ..Outcome::default() }
    }

    #[test]
    fn each_waiting_request_is_answered_once() {
        let mut finished = Finished::default();
        assert!(finished.wait(1, 10, None, 4) && finished.wait(1, 11, None, 4));
        assert_eq!(finished.add(1, done(5), None, 4), [10, 11]);
        assert_eq!(finished.add(2, done(5), None, 4), [0; 0]);
        assert_eq!(finished.get(1), Some(&done(5)));
    }

    #[test]
    fn only_the_last_outcomes_are_kept() {
        let mut finished = Finished::default();
        for op in 1..=3 {
            finished.add(op, done(op), None, 2);
        }
        assert_eq!((finished.get(1), finished.get(3)), (None, Some(&done(3))));
    }

    #[test]
    fn an_operation_outlasts_a_request_that_expires() {
        let mut finished = Finished::default();
        finished.wait(1, 10, Some(5), 4);
        finished.wait(1, 11, None, 4);
        assert_eq!(finished.deadline(), Some(5));
        assert!(finished.expire(4).is_empty());
        assert_eq!(finished.expire(5), [(1, 10)]);
        assert_eq!(finished.deadline(), None);
        assert_eq!(finished.add(1, done(1), None, 4), [11]);
    }

    #[test]
    fn waiting_requests_are_bounded() {
        let mut finished = Finished::default();
        assert!(finished.wait(1, 1, None, 1));
        assert!(!finished.wait(1, 2, None, 1));
    }

    #[test]
    fn transfers_are_polled_once_by_job_and_as_many_as_fit() {
        let mut finished = Finished::default();
        for (op, transfer_of) in [(5, Some(1)), (4, Some(1)), (3, Some(2)), (2, None), (1, Some(1))] {
            finished.add(op, done(op), transfer_of, 8);
        }
        let polled = |finished: &mut Finished, job, bytes| -> Vec<u64> {
            finished.poll_cq(job, bytes).iter().map(|completion| completion.op).collect()
        };
        assert_eq!(polled(&mut finished, 1, 2 * COMPLETION_BYTES), [5, 4]);
        assert_eq!(polled(&mut finished, 1, 0), [1], "at least one");
        assert!(polled(&mut finished, 1, 9999).is_empty());
        assert_eq!(polled(&mut finished, 2, 9999), [3]);
        assert_eq!(finished.get(1), Some(&done(1)));
    }
}

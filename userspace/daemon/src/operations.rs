//! A session's operations: which are outstanding, how the last ones ended, and who waits for which.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use sumac_api::Failure;

/// How an operation ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// From submission to the end.
    pub(crate) duration_ns: u64,
    /// Why it failed, if it did.
    pub(crate) error: Option<Failure>,
    /// Elements that were not written, because they were summed before this worker took another one's place: ranges.
    pub(crate) missed: Vec<(u64, u64)>,
}

/// An operation that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) job: u64,
    /// The regions it borrows from; twice the same for most.
    pub(crate) regions: [u64; 2],
    /// When it was submitted.
    pub(crate) since: Instant,
}

/// What a `wait` comes to at first.
#[derive(Debug, PartialEq)]
pub(crate) enum WaitState {
    /// The operation has ended.
    Ended(Outcome),
    /// The answer comes later, from [`Operations::finish`] or [`Operations::expire`].
    Waiting,
    /// No such operation, or it ended too long ago.
    Unknown,
    /// Too many waits at once.
    TooMany,
}

#[derive(Debug)]
struct Waiter {
    op: u64,
    request: u64,
    deadline: Option<Instant>,
}

/// The table. Handles count from 1 and are never used again.
#[derive(Debug)]
pub(crate) struct Operations {
    last: u64,
    running: HashMap<u64, Running>,
    ended: VecDeque<(u64, Outcome)>,
    keep: usize,
    waiters: Vec<Waiter>,
}

impl Operations {
    /// A table that remembers the last `keep` outcomes, and holds as many waits.
    pub(crate) fn new(keep: usize) -> Operations {
        Operations { last: 0, running: HashMap::new(), ended: VecDeque::new(), keep, waiters: Vec::new() }
    }

    /// How many are outstanding.
    pub(crate) fn outstanding(&self) -> usize {
        self.running.len()
    }

    /// Adds one and gives it its handle.
    pub(crate) fn start(&mut self, running: Running) -> u64 {
        self.last += 1;
        self.running.insert(self.last, running);
        self.last
    }

    /// Takes back one that was never carried out.
    pub(crate) fn withdraw(&mut self, op: u64) {
        self.running.remove(&op);
    }

    /// The operation, if it is outstanding.
    pub(crate) fn running(&self, op: u64) -> Option<Running> {
        self.running.get(&op).copied()
    }

    /// Whether the operation has ended and is remembered.
    pub(crate) fn has_ended(&self, op: u64) -> bool {
        self.ended.iter().any(|(ended, _)| *ended == op)
    }

    /// Whether a job has operations outstanding.
    pub(crate) fn uses_job(&self, job: u64) -> bool {
        self.running.values().any(|running| running.job == job)
    }

    /// The outstanding operations of a job in the order of submission, and when that was.
    pub(crate) fn of_job(&self, job: u64) -> Vec<(u64, Instant)> {
        let of_job = self.running.iter().filter(|(_, running)| running.job == job);
        let mut ops: Vec<_> = of_job.map(|(op, running)| (*op, running.since)).collect();
        ops.sort_unstable();
        ops
    }

    /// Whether an outstanding operation borrows from a region.
    pub(crate) fn uses_region(&self, region: u64) -> bool {
        self.running.values().any(|running| running.regions.contains(&region))
    }

    /// Ends an operation: the job it was of, and the requests that waited for it. `None` when it is not outstanding.
    pub(crate) fn finish(&mut self, op: u64, outcome: &Outcome) -> Option<(Running, Vec<u64>)> {
        let running = self.running.remove(&op)?;
        if self.ended.len() == self.keep {
            self.ended.pop_front();
        }
        self.ended.push_back((op, outcome.clone()));
        let requests = self.take_waiters(|waiter| waiter.op == op);
        Some((running, requests.into_iter().map(|waiter| waiter.request).collect()))
    }

    /// Looks for an outcome, or notes who waits for it.
    pub(crate) fn wait(&mut self, op: u64, request: u64, deadline: Option<Instant>) -> WaitState {
        if let Some((_, outcome)) = self.ended.iter().find(|(ended, _)| *ended == op) {
            return WaitState::Ended(outcome.clone());
        }
        if !self.running.contains_key(&op) {
            return WaitState::Unknown;
        }
        if self.waiters.len() >= self.keep {
            return WaitState::TooMany;
        }
        self.waiters.push(Waiter { op, request, deadline });
        WaitState::Waiting
    }

    /// When the next wait runs out.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiters.iter().filter_map(|waiter| waiter.deadline).min()
    }

    /// The waits that have run out: operation and request.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<(u64, u64)> {
        let late = self.take_waiters(|waiter| waiter.deadline.is_some_and(|deadline| deadline <= now));
        late.into_iter().map(|waiter| (waiter.op, waiter.request)).collect()
    }

    fn take_waiters(&mut self, which: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let (taken, kept) = std::mem::take(&mut self.waiters).into_iter().partition(which);
        self.waiters = kept;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn running() -> Running {
        Running { job: 1, regions: [2, 3], since: Instant::now() }
    }

    fn done(duration_ns: u64) -> Outcome {
        Outcome { duration_ns, error: None, missed: Vec::new() }
    }

    #[test]
    fn everybody_who_waits_is_answered_once() {
        let mut ops = Operations::new(4);
        let running = running();
        let op = ops.start(running);
        assert_eq!(ops.wait(op, 10, None), WaitState::Waiting);
        assert_eq!(ops.wait(op, 11, None), WaitState::Waiting);
        assert_eq!(ops.finish(op, &done(5)), Some((running, vec![10, 11])));
        assert_eq!(ops.finish(op, &done(6)), None);
        assert_eq!(ops.wait(op, 12, None), WaitState::Ended(done(5)));
    }

    #[test]
    fn only_the_last_outcomes_are_kept() {
        let mut ops = Operations::new(2);
        let handles: Vec<u64> = (0..3).map(|_| ops.start(running())).collect();
        for op in &handles {
            ops.finish(*op, &done(*op));
        }
        assert_eq!(ops.wait(handles[0], 1, None), WaitState::Unknown);
        assert_eq!(ops.wait(handles[2], 1, None), WaitState::Ended(done(handles[2])));
    }

    #[test]
    fn a_wait_runs_out_and_the_operation_goes_on() {
        let mut ops = Operations::new(4);
        let running = running();
        let op = ops.start(running);
        let now = Instant::now();
        let soon = now + Duration::from_millis(1);
        ops.wait(op, 10, Some(soon));
        ops.wait(op, 11, None);
        assert_eq!(ops.deadline(), Some(soon));
        assert!(ops.expire(now).is_empty());
        assert_eq!(ops.expire(soon), [(op, 10)]);
        assert_eq!(ops.deadline(), None);
        assert_eq!(ops.finish(op, &done(1)), Some((running, vec![11])));
    }

    #[test]
    fn waits_are_bounded() {
        let mut ops = Operations::new(1);
        let op = ops.start(running());
        assert_eq!(ops.wait(op, 1, None), WaitState::Waiting);
        assert_eq!(ops.wait(op, 2, None), WaitState::TooMany);
    }

    #[test]
    fn what_is_in_use_is_known() {
        let mut ops = Operations::new(4);
        let op = ops.start(running());
        assert!(ops.uses_job(1) && ops.uses_region(2) && ops.uses_region(3));
        assert_eq!(ops.of_job(1).iter().map(|(op, _)| *op).collect::<Vec<_>>(), [op]);
        assert!(!ops.uses_job(2) && !ops.uses_region(1));
        ops.withdraw(op);
        assert!(!ops.uses_job(1) && !ops.uses_region(2));
        assert_eq!(ops.wait(op, 1, None), WaitState::Unknown);
    }
}

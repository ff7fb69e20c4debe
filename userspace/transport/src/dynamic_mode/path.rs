//! The path of a lane's packets: by the aggregator, or straight to the parameter host where they do not get
//! through by it. So a dynamic job outlives its aggregator.
//!
//! Aggregators forward probes, and the parameter host answers them. So an answer shows that the whole path
//! works. A missing answer does not show which part failed: after an unanswered probe the parameter host is
//! probed straight as well, and only when it answers is the aggregator, or the path behind it, considered
//! gone.
//!
//! ```text
//!   Joining ──full probe answered──> Through <──full probe answered── Direct
//!      └──────── unanswered probes, parameter host answers ──────────────^
//! ```

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Consecutive unanswered probes after which an aggregator counts as gone, once [`AGGREGATOR_TIMEOUT`] has
/// passed.
const MAX_UNANSWERED: u32 = 3;
/// Nanoseconds without an answer: an aggregator's program may be replaced meanwhile, or its host be busy.
const AGGREGATOR_TIMEOUT: u64 = 100_000_000;
/// Nanoseconds between the first probes.
const JOIN_PROBE_INTERVAL: u64 = 40_000_000;
/// Nanoseconds between probes of an aggregator that packets bypass.
const BYPASS_PROBE_INTERVAL: u64 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PathState {
    None,
    /// No probe of full size was answered yet.
    Joining,
    Through,
    /// Packets go straight to the parameter host.
    Direct,
}

/// The path of a lane's packets, and its probes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Path {
    state: PathState,
    /// Whether a probe of full size was answered.
    carries_chunks: bool,
    /// Consecutive unanswered probes, and the time of the first of them.
    unanswered: u32,
    since: Time,
    probe_due: bool,
    host_probe_due: bool,
    /// Whether the parameter host has answered since its last probe was due.
    host_answered: bool,
    due: Option<Time>,
    number: u32,
}

impl Path {
    pub fn new(has_aggregator: bool) -> Path {
        Path {
            state: if has_aggregator { PathState::Joining } else { PathState::None },
            carries_chunks: false,
            unanswered: 0,
            since: Time(0),
            probe_due: has_aggregator,
            host_probe_due: false,
            host_answered: false,
            due: None,
            number: 0,
        }
    }

    /// Whether chunks may be sent.
    pub fn is_settled(&self) -> bool {
        self.state != PathState::Joining
    }

    /// Whether packets go straight to the parameter host.
    pub fn is_direct(&self) -> bool {
        matches!(self.state, PathState::None | PathState::Direct)
    }

    /// The next probe to send by the aggregator: its number, and whether it has full size.
    pub fn poll(&mut self, now: Time) -> Option<(u32, bool)> {
        if !std::mem::take(&mut self.probe_due) {
            return None;
        }
        if self.unanswered == 0 {
            self.since = now;
        }
        self.unanswered += 1;
        self.due = match self.state {
            PathState::Joining => Some(now.plus(JOIN_PROBE_INTERVAL)),
            PathState::Direct => Some(now.plus(BYPASS_PROBE_INTERVAL)),
            PathState::None | PathState::Through => None,
        };
        let number = self.number;
        // The upper half of the numbers is for probes straight to the parameter host.
        self.number = (number + 1) & (u32::MAX >> 1);
        Some((number, !self.carries_chunks))
    }

    /// The number of the next probe straight to the parameter host.
    pub fn poll_host(&mut self) -> Option<u32> {
        std::mem::take(&mut self.host_probe_due).then_some(self.number)
    }

    /// The time at which [`Path::on_timeout`] is to be called.
    pub fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// Probes when that is due. Returns whether packets go straight from now on.
    pub fn on_timeout(&mut self, now: Time) -> bool {
        match self.due {
            Some(due) if due <= now => self.probe(now),
            _ => false,
        }
    }

    /// Probes the path by the aggregator, since no result came for long. Returns whether packets go straight
    /// from now on.
    pub fn probe(&mut self, now: Time) -> bool {
        if self.state == PathState::None {
            return false;
        }
        self.probe_due = true;
        self.due = None;
        if self.state == PathState::Direct {
            return false;
        }
        let has_timed_out = self.unanswered >= MAX_UNANSWERED && now.since(self.since) >= AGGREGATOR_TIMEOUT;
        let gives_up = has_timed_out && self.host_answered;
        if gives_up {
            self.state = PathState::Direct;
        }
        // Probes add to a load that may be the reason for the missing answers: no more than necessary.
        let is_suspect = self.unanswered > 0 && !gives_up;
        (self.host_probe_due, self.host_answered) = (is_suspect, false);
        gives_up
    }

    /// Records that the aggregator does not have the job. Returns whether packets go straight from now on.
    pub fn on_unknown_job(&mut self) -> bool {
        if !matches!(self.state, PathState::Joining | PathState::Through) {
            return false;
        }
        self.state = PathState::Direct;
        // It may get the job again: further probes tell.
        self.probe_due = true;
        true
    }

    /// Records the answer to a probe that went straight to the parameter host.
    pub fn on_host_report(&mut self) {
        self.host_answered = true;
    }

    /// Records a result, by whichever path.
    pub fn on_result(&mut self) {
        if self.state == PathState::Through {
            self.unanswered = 0;
        }
    }

    /// Records the answer to a probe by the aggregator, of full size or not.
    pub fn on_report(&mut self, is_full: bool) {
        if self.state == PathState::None {
            return;
        }
        self.carries_chunks |= is_full;
        self.unanswered = 0;
        if self.carries_chunks {
            self.state = PathState::Through;
            (self.probe_due, self.host_probe_due, self.due) = (false, false, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Advances to the deadlines until `end`, with a parameter host that answers at once. Returns the probes
    /// that are sent by the aggregator.
    fn run(path: &mut Path, from: Time, end: Time) -> Vec<(u64, bool)> {
        let (mut now, mut sent) = (from, Vec::new());
        loop {
            sent.extend(path.poll(now).map(|(_, is_full)| (now.0 / MS, is_full)));
            path.poll_host().into_iter().for_each(|_| path.on_host_report());
            match path.deadline().filter(|due| *due <= end) {
                Some(due) => now = due,
                None => return sent,
            }
            path.on_timeout(now);
        }
    }

    #[test]
    fn an_aggregator_that_never_answers_is_bypassed() {
        let mut path = Path::new(true);
        assert_eq!(run(&mut path, Time(0), Time(119 * MS)), [(0, true), (40, true), (80, true)]);
        assert!(!path.is_settled());
        assert_eq!(path.deadline(), Some(Time(120 * MS)));
        assert!(path.on_timeout(Time(120 * MS)) && path.is_settled() && path.is_direct());
        assert_eq!(run(&mut path, Time(120 * MS), Time(330 * MS)), [(120, true), (220, true), (320, true)]);
        path.on_report(true);
        assert!(!path.is_direct());
        assert_eq!((path.poll(Time(400 * MS)), path.deadline()), (None, None), "no further probes");
    }

    #[test]
    fn missing_answers_alone_are_not_enough() {
        let mut path = Path::new(true);
        path.poll(Time(0));
        path.on_report(true);
        assert_eq!(path.poll_host(), None);
        let mut last_of = |from: u64| {
            let mut after = from;
            (0..10).any(|round| {
                after = from + (MS << round);
                let is_gone = path.probe(Time(after));
                let (_, is_full) = path.poll(Time(after)).expect("a probe");
                assert!(!is_full, "chunks got through before");
                path.poll_host().into_iter().for_each(|_| path.on_host_report());
                is_gone
            });
            (after - from) / MS
        };
        assert_eq!(last_of(5), 128, "three probes are too few as long as they took less than 100 ms");
        assert!(path.is_direct());
        path.on_report(false);
        assert!(!path.is_direct());
        (0..5).for_each(|at| {
            assert!(!path.probe(Time(at * 60 * MS)));
            path.poll(Time(at * 60 * MS));
            path.on_result();
        });
    }

    #[test]
    fn a_parameter_host_that_does_not_answer_keeps_the_path() {
        let mut path = Path::new(true);
        path.poll(Time(0));
        path.on_report(true);
        let probe = |path: &mut Path, at: u64, answers: bool| {
            let is_gone = path.probe(Time(at * MS));
            path.poll(Time(at * MS));
            assert_eq!(path.poll_host().is_some(), !is_gone && at > 0, "at {at}");
            if answers {
                path.on_host_report();
            }
            is_gone
        };
        for at in 0..20 {
            assert!(!probe(&mut path, at * 50, at < 2), "at {at}: earlier answers do not count");
        }
        assert!(!probe(&mut path, 1000, true) && probe(&mut path, 1050, false) && path.is_direct());
        assert_eq!(path.poll_host(), None, "packets go there anyway");
    }

    #[test]
    fn a_path_that_drops_full_packets_is_not_used() {
        let mut path = Path::new(true);
        path.poll(Time(0));
        path.on_report(false);
        assert!(!path.is_settled());
    }

    #[test]
    fn without_an_aggregator_there_are_no_probes() {
        let mut path = Path::new(false);
        assert!(path.is_direct() && path.is_settled());
        assert_eq!((path.probe(Time(5)), path.poll(Time(5)), path.deadline()), (false, None, None));
        path.on_report(true);
        assert!(path.is_direct(), "a report changes nothing");
    }
}

//! The handshake before data: checks that the aggregator, or the parameter host, knows the job and that whole
//! chunks reach it.
//!
//! The worker sends a probe of full size, and the peer returns it as a report. When the first is not
//! answered, later ones go in pairs with a probe without elements. So a path that only drops large packets is
//! distinguished from one that drops all.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sumac_wire::{
    Header, Kind,
    header::{NO_SLOT, flag},
};

use crate::{
    error::JobError,
    packet,
    params::{JobParams, Tuning},
    time::{Time, nanos},
};

/// The probes after which silence is the peer's: a worker that did not run for some seconds, on a busy host
/// or in a paused virtual machine, has sent fewer, and has not read their answers either.
const LEAST_PROBES: u64 = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Whole chunks get through; the round trip in nanoseconds if it was measured.
    Ready(Option<u64>),
    Failed(JobError),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Handshake {
    interval: u64,
    longest_interval: u64,
    timeout: u64,
    started: Option<Time>,
    /// The number of the last round of probes, or of the first.
    number: u32,
    /// The time of the last round.
    round: Option<Time>,
    due: Time,
    small_due: bool,
    large_due: bool,
    small_answered: bool,
    sent: u64,
}

impl Handshake {
    pub fn new(tuning: &Tuning) -> Handshake {
        Handshake::with_timeout(0, tuning, tuning.probe_timeout)
    }

    /// The check of a running job's path, whose first probe has this number.
    pub fn of_running_job(number: u32, tuning: &Tuning, longest_outage: Duration) -> Handshake {
        Handshake::with_timeout(number, tuning, longest_outage)
    }

    fn with_timeout(number: u32, tuning: &Tuning, timeout: Duration) -> Handshake {
        Handshake {
            number,
            interval: nanos(tuning.probe_interval),
            longest_interval: nanos(tuning.max_rto).max(nanos(tuning.probe_interval)),
            timeout: nanos(timeout),
            started: None,
            round: None,
            due: Time(0),
            small_due: false,
            large_due: true,
            small_answered: false,
            sent: 0,
        }
    }

    /// The next probe to send: its elements and its number.
    pub fn poll(&mut self, now: Time, chunk: u16) -> Option<(u16, u32)> {
        let (elements, due) =
            if self.large_due { (chunk, &mut self.large_due) } else { (0, &mut self.small_due) };
        if !std::mem::take(due) {
            return None;
        }
        self.sent += 1;
        self.started.get_or_insert(now);
        if self.round.is_none() {
            self.begin_round(now);
        }
        Some((elements, self.number))
    }

    fn begin_round(&mut self, now: Time) {
        self.round = Some(now);
        self.due = now.plus(self.interval);
        self.interval = (self.interval * 2).min(self.longest_interval);
    }

    /// The number of the last round.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The next deadline, once the first probe was sent.
    pub fn deadline(&self) -> Option<Time> {
        let started = self.started?;
        Some(if self.sent < LEAST_PROBES { self.due } else { self.due.min(started.plus(self.timeout)) })
    }

    /// Sends further probes when they are due, and fails after the last timeout.
    pub fn on_timeout(&mut self, now: Time, params: &JobParams) -> Option<Outcome> {
        let started = self.started?;
        if now.since(started) >= self.timeout && self.sent >= LEAST_PROBES {
            return Some(Outcome::Failed(self.failure(now.since(started), params)));
        }
        if now >= self.due {
            self.number = self.number.wrapping_add(1);
            self.begin_round(now);
            self.large_due = true;
            self.small_due = !self.small_answered;
        }
        None
    }

    fn failure(&self, waited: u64, params: &JobParams) -> JobError {
        if self.small_answered {
            let bytes = sumac_wire::admit::payload_len(params.elements);
            return JobError::MtuTooSmall { elements: params.elements, bytes };
        }
        JobError::NoReply { probes: self.sent, waited_ms: waited / 1_000_000 }
    }

    /// Processes a report with the job's number, epoch and token.
    pub fn on_report(&mut self, now: Time, report: &Header, params: &JobParams) -> Option<Outcome> {
        if report.elements == 0 {
            self.small_answered = true;
            return None;
        }
        let checks = [
            ("chunk size", u64::from(params.elements), u64::from(report.elements)),
            ("world size", u64::from(params.rack_world), u64::from(report.fan_in_0)),
            ("worker bit", 1 << params.rack_rank, u64::from(report.bitmap_0)),
        ];
        if let Some((field, ours, theirs)) = checks.into_iter().find(|(_, ours, theirs)| ours != theirs) {
            return Some(Outcome::Failed(JobError::Disagrees { field: field.to_owned(), ours, theirs }));
        }
        let rtt = self.round.filter(|_| self.number == report.seq).map(|sent| now.since(sent));
        Some(Outcome::Ready(rtt))
    }
}

pub(crate) fn probe(params: &JobParams, now: Time, elements: u16, number: u32) -> Header {
    let header = packet::header(params, Kind::Probe, now);
    let flags = header.flags | if number == 0 { 0 } else { flag::RESEND };
    Header { flags, seq: number, slot: NO_SLOT, elements, ..header }
}

#[cfg(test)]
mod tests {
    use sumac_job::Scale;

    use super::*;

    const MS: u64 = 1_000_000;

    fn params() -> JobParams {
        JobParams { rank: 1, rack_rank: 1, scaling: Scale::Fixed(1.0), ..JobParams::new(1, 2, 8, 256) }
    }

    fn sizes(handshake: &mut Handshake, now: Time) -> Vec<u16> {
        std::iter::from_fn(|| handshake.poll(now, 256)).map(|(elements, _)| elements).collect()
    }

    #[test]
    fn an_aggregator_that_changes_the_job_is_named() {
        let mut handshake = Handshake::new(&Tuning::default());
        let report = Header { fan_in_0: 3, ..probe(&params(), Time(0), 256, 0) };
        let expected = JobError::Disagrees { field: "world size".into(), ours: 2, theirs: 3 };
        assert_eq!(handshake.on_report(Time(1), &report, &params()), Some(Outcome::Failed(expected)));
    }

    #[test]
    fn a_pause_of_the_worker_is_no_silence_of_its_peer() {
        let mut handshake = Handshake::new(&Tuning::default());
        assert_eq!(sizes(&mut handshake, Time(0)), [256]);
        let mut now = Time(60_000 * MS);
        let mut sent = 1;
        while handshake.on_timeout(now, &params()).is_none() {
            sent += sizes(&mut handshake, now).len() as u64;
            now = handshake.deadline().unwrap().max(now);
        }
        assert_eq!(sent, LEAST_PROBES);
        assert!((60_020 * MS..60_200 * MS).contains(&now.0), "{now:?}");
    }

    #[test]
    fn the_second_round_is_a_pair_and_late_answers_count() {
        let mut handshake = Handshake::new(&Tuning::default());
        assert_eq!(handshake.deadline(), None, "no probe was sent yet");
        assert_eq!(sizes(&mut handshake, Time(0)), [256]);
        assert_eq!(handshake.on_timeout(Time(20 * MS), &params()), None);
        assert_eq!(sizes(&mut handshake, Time(20 * MS)), [256, 0]);
        let late = probe(&params(), Time(0), 256, 0);
        assert_eq!(
            handshake.on_report(Time(21 * MS), &late, &params()),
            Some(Outcome::Ready(None)),
            "an answer to the first probe is one, but no measure"
        );
    }
}

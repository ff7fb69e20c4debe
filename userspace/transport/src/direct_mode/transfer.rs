//! The two ends of a transfer: a range of values from one worker to another, up to its loss bound (MLT
//! section 4.2.3).
//!
//! ```text
//!   receiver                          sender
//!      ---- agreement (repeated) ----->       what is expected; the sender compares
//!      <---- chunks, in any order -----       each is placed by its number
//!      ---- timestamp, every tenth --->       the sender's rate follows
//!      <---- probe --------------------       all chunks were sent
//!      ---- report: a bit per chunk -->       what is missing is sent again, and another probe follows
//!      ---- stop --------------------->       as soon as 1 - p has arrived
//! ```
//!
//! A reliable stream is not needed for the right half: agreement and probe are repeated until they are
//! answered, and every answer follows from the receiver's state. A stop on a TCP connection would be late by
//! its least timeout, 200 ms, when it is lost.

use std::{collections::VecDeque, ops::Range};

use serde::{Deserialize, Serialize};
use sumac_wire::header::ELEMENT_LEN;

use super::pass::Pass;
use crate::{chunk::Span, rtt::RttEstimator, time::Time};

/// Names a transfer between two workers, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct TransferId {
    /// The exchange's number.
    pub exchange: u32,
    pub step: u16,
}

/// The place of a transfer in its operation, and its division into chunks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    /// The operation's number in the stream, and the index of its step.
    pub operation: u64,
    pub step: usize,
    pub range: Range<usize>,
    /// Values in a chunk, and in a word.
    pub chunk: usize,
    pub per_word: usize,
}

impl Part {
    pub fn chunks(&self) -> u32 {
        self.range.len().div_ceil(self.chunk) as u32
    }

    /// The values of a chunk, counted in the operation.
    pub fn span(&self, chunk: u32) -> Span {
        let first = (self.range.start + chunk as usize * self.chunk).min(self.range.end);
        let values = self.chunk.min(self.range.end - first);
        Span { first, values, words: values.div_ceil(self.per_word) }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Phase {
    /// The receiver has not said that it is ready.
    Waiting,
    /// The first pass over all chunks.
    First { sent: u32 },
    /// The next probe is sent at `due`.
    Asked { due: Time },
    /// These chunks are missing.
    Again { missing: VecDeque<u32> },
}

/// The sending end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sender {
    pub part: Part,
    pub priority: u8,
    /// The chunk that is sent first: if the last ones are cut off by the stop, others are in every operation.
    first: u32,
    phase: Phase,
    /// Probes so far; the number of the last one.
    pub probes: u32,
    /// Whether the last probe followed the last chunk: a report to another one has no chunks that were sent
    /// after it.
    is_asked: bool,
    /// Probes since the last answer.
    pub unanswered: u32,
    asked_since: Option<Time>,
    /// The chunks before this one are in the reports to the last probe: each is taken once, also when a
    /// report comes twice.
    reported: u32,
    /// The packets since the last report.
    pass: Option<Pass>,
}

impl Sender {
    /// `number`: of the exchange. `rank`: of this worker, so that a bound cuts off other chunks at each.
    pub fn new(part: Part, priority: u8, number: u32, rank: u16) -> Sender {
        // Fibonacci hashing: consecutive operations begin far apart, and so do workers.
        let spread = u64::from(number.wrapping_add(rank.into()).wrapping_mul(0x9e37_79b9));
        let first = ((spread * u64::from(part.chunks())) >> 32) as u32;
        Sender {
            part,
            priority,
            first,
            phase: Phase::Waiting,
            probes: 0,
            is_asked: false,
            unanswered: 0,
            asked_since: None,
            reported: 0,
            pass: None,
        }
    }

    /// The receiver is ready.
    pub fn begin(&mut self) {
        if matches!(self.phase, Phase::Waiting) {
            self.phase = Phase::First { sent: 0 };
        }
    }

    /// Whether the receiver means the same.
    pub fn has_begun(&self) -> bool {
        !matches!(self.phase, Phase::Waiting)
    }

    pub fn has_chunks(&self) -> bool {
        match &self.phase {
            Phase::First { sent } => *sent < self.part.chunks(),
            Phase::Again { missing } => !missing.is_empty(),
            Phase::Waiting | Phase::Asked { .. } => false,
        }
    }

    /// The next chunk, and whether it was sent before.
    pub fn next(&mut self) -> Option<(u32, bool)> {
        let chunks = self.part.chunks();
        match &mut self.phase {
            Phase::First { sent } if *sent < chunks => {
                let chunk = ((u64::from(self.first) + u64::from(*sent)) % u64::from(chunks)) as u32;
                *sent += 1;
                Some((chunk, false))
            }
            Phase::Again { missing } => missing.pop_front().map(|chunk| (chunk, true)),
            Phase::Waiting | Phase::First { .. } | Phase::Asked { .. } => None,
        }
    }

    /// Records that a chunk was sent. `sent`: bytes of data of all transfers to this peer, before it and with
    /// it.
    pub fn on_sent(&mut self, now: Time, sent: Range<u64>) {
        // After reports that were not all.
        if std::mem::take(&mut self.is_asked) {
            self.pass = None;
        }
        self.pass.get_or_insert(Pass::beginning(now, sent.start)).on_sent(now, sent.end);
    }

    /// The pass that ended with the reports to the last probe, and the number of its packets that were lost.
    /// `None`: not all reports have come, or chunks were sent again meanwhile.
    pub fn end_pass(&mut self) -> Option<(Pass, usize)> {
        let lost = match &self.phase {
            Phase::Again { missing } => missing.len(),
            _ => 0,
        };
        let is_whole = self.is_asked && self.reported == self.part.chunks();
        self.pass.take_if(|_| is_whole).map(|pass| (pass, lost))
    }

    /// Asks after the last chunk, `wait` later: its packets may still be in queues, or on longer paths.
    pub fn ask_when_done(&mut self, now: Time, wait: u64) {
        if !matches!(self.phase, Phase::Waiting | Phase::Asked { .. }) && !self.has_chunks() {
            self.phase = Phase::Asked { due: now.plus(wait) };
        }
    }

    /// Records that a probe was sent after the last chunk; it is repeated after `timeout`.
    pub fn asked(&mut self, now: Time, timeout: u64) {
        self.count_probe(now);
        self.is_asked = true;
        self.phase = Phase::Asked { due: now.plus(timeout) };
    }

    /// Records that a probe was sent before all chunks were, since nothing was acknowledged.
    pub fn probe_stalled(&mut self, now: Time) {
        self.count_probe(now);
        (self.is_asked, self.pass) = (false, None);
    }

    fn count_probe(&mut self, now: Time) {
        self.probes += 1;
        self.reported = 0;
        self.unanswered += 1;
        self.asked_since.get_or_insert(now);
    }

    pub fn due(&self) -> Option<Time> {
        match self.phase {
            Phase::Asked { due } => Some(due),
            _ => None,
        }
    }

    /// The time since which probes have had no answer.
    pub fn unanswered_since(&self) -> Option<Time> {
        self.asked_since
    }

    /// Processes a report: a bit for each chunk from `first` on, set if it has arrived. Returns whether it is
    /// taken.
    pub fn on_report(&mut self, probe: u32, first: u32, bits: &[u8]) -> bool {
        if probe != self.probes || first < self.reported {
            return false;
        }
        self.unanswered = 0;
        self.asked_since = None;
        let mut missing = match &mut self.phase {
            Phase::Asked { .. } if self.is_asked => VecDeque::new(),
            // A further report to the same probe.
            Phase::Again { missing } if self.reported > 0 => std::mem::take(missing),
            Phase::Again { missing } => {
                missing.clear();
                VecDeque::new()
            }
            Phase::Waiting | Phase::First { .. } | Phase::Asked { .. } => return false,
        };
        let chunks = self.part.chunks();
        self.reported = (u64::from(first) + bits.len() as u64 * 8).min(chunks.into()) as u32;
        missing.extend((first..chunks).take(bits.len() * 8).filter(|chunk| {
            let at = (chunk - first) as usize;
            bits[at / 8] & 0x80 >> (at % 8) == 0
        }));
        if !missing.is_empty() {
            self.phase = Phase::Again { missing };
        }
        true
    }
}

/// The receiving end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Receiver {
    pub part: Part,
    pub loss_bound: f32,
    arrived: Box<[u64]>,
    pub count: u32,
    /// Values that have come.
    values: usize,
    /// The next time at which the agreement is sent, and how often it was; `None` once the sender means the
    /// same.
    announce: Option<(Time, u32)>,
}

impl Receiver {
    pub fn new(now: Time, part: Part, loss_bound: f32) -> Receiver {
        let words = (part.chunks() as usize).div_ceil(64);
        let arrived = vec![0; words].into();
        Receiver { part, loss_bound, arrived, count: 0, values: 0, announce: Some((now, 0)) }
    }

    /// The time at which the agreement is to be sent again.
    pub fn due(&self) -> Option<Time> {
        self.announce.map(|(at, _)| at)
    }

    /// Whether the agreement is due; the next time comes after a timeout, which doubles each time.
    pub fn announces(&mut self, now: Time, rtt: &RttEstimator) -> bool {
        match self.announce {
            Some((at, times)) if at <= now => {
                self.announce = Some((now.plus(rtt.timeout(times as usize)), times + 1));
                true
            }
            _ => false,
        }
    }

    /// Records that the sender means the same.
    pub fn agreed(&mut self) {
        self.announce = None;
    }

    /// Whether a chunk has not come before. Notes it.
    pub fn is_new(&mut self, chunk: u32) -> bool {
        self.agreed();
        let Some(word) = self.arrived.get_mut(chunk as usize / 64).filter(|_| chunk < self.part.chunks())
        else {
            return false;
        };
        let bit = 1 << (chunk % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        if is_new {
            self.count += 1;
            self.values += self.part.span(chunk).values;
        }
        is_new
    }

    pub fn has(&self, chunk: u32) -> bool {
        self.arrived.get(chunk as usize / 64).is_some_and(|word| word & 1 << (chunk % 64) != 0)
    }

    /// Whether the bound allows the rest to be missing.
    pub fn is_enough(&self) -> bool {
        // Counted in values: the last chunk may have fewer than the others.
        let (all, missing) = (self.part.range.len(), self.part.range.len() - self.values);
        missing as f64 <= all as f64 * f64::from(self.loss_bound)
    }

    /// The ranges of values that have not come, counted in the operation.
    pub fn missing(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for chunk in (0..self.part.chunks()).filter(|chunk| !self.has(*chunk)) {
            let Span { first, values, .. } = self.part.span(chunk);
            match ranges.last_mut() {
                Some(last) if last.end == first => last.end += values,
                _ => ranges.push(first..first + values),
            }
        }
        ranges
    }

    /// Writes a bit for each chunk from `first` on; returns the words written, at most `most`.
    pub fn report(&self, first: u32, most: u16, words: &mut [u8]) -> u16 {
        let bits = ELEMENT_LEN as u32 * 8;
        let needed = (self.part.chunks().saturating_sub(first)).div_ceil(bits).min(u32::from(most)) as u16;
        let bytes = &mut words[..usize::from(needed) * ELEMENT_LEN];
        bytes.fill(0);
        for (chunk, at) in (first..self.part.chunks()).zip(0..bytes.len() * 8) {
            if self.has(chunk) {
                bytes[at / 8] |= 0x80 >> (at % 8);
            }
        }
        needed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::params::Tuning;

    fn part(count: usize) -> Part {
        Part { operation: 0, step: 0, range: 100..100 + count, chunk: 10, per_word: 1 }
    }

    fn chunks(sender: &mut Sender) -> Vec<u32> {
        std::iter::from_fn(|| sender.next()).map(|(chunk, _)| chunk).collect()
    }

    #[test]
    fn every_chunk_is_sent_once_and_what_is_missing_again() {
        let mut sender = Sender::new(part(45), 0, 3, 0);
        assert_eq!(sender.next(), None, "the receiver is not ready");
        sender.begin();
        let mut first = chunks(&mut sender);
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2, 3, 4]);
        sender.ask_when_done(Time(0), 7);
        assert_eq!((sender.next(), sender.due()), (None, Some(Time(7))));
        sender.asked(Time(7), 100);
        assert!(!sender.on_report(0, 0, &[0]), "an answer to another probe");
        let mut receiver = Receiver::new(Time(0), part(45), 0.0);
        assert!([0, 1, 4].into_iter().all(|chunk| receiver.is_new(chunk)) && !receiver.is_new(4));
        let mut words = [0xff; 8];
        assert_eq!(receiver.report(0, 9, &mut words), 1);
        assert!(sender.on_report(1, 0, &words[..4]));
        assert!(!sender.on_report(1, 0, &words[..4]), "it comes twice");
        assert_eq!(chunks(&mut sender), [2, 3]);
    }

    #[test]
    fn a_report_to_a_probe_before_the_last_chunks_does_not_miss_them() {
        let mut sender = Sender::new(part(80), 0, 0, 0);
        sender.begin();
        (0..4).for_each(|_| assert!(sender.next().is_some()));
        sender.on_sent(Time(0), 0..100);
        sender.probe_stalled(Time(1));
        assert_eq!(chunks(&mut sender).len(), 4);
        sender.on_sent(Time(2), 100..200);
        sender.ask_when_done(Time(2), 40);
        assert!(!sender.on_report(1, 0, &[0xf0]), "the last four were sent after the probe");
        assert_eq!((sender.next(), sender.due()), (None, Some(Time(42))));
        sender.asked(Time(42), 100);
        assert!(sender.on_report(2, 0, &[0xfe]));
        assert_eq!(chunks(&mut sender), [7]);
        assert_eq!(sender.end_pass().map(|(pass, lost)| (pass.began, lost)), Some((Time(2), 0)));
    }

    #[test]
    fn a_later_report_is_in_place_of_an_earlier_one() {
        let mut sender = Sender::new(part(80), 0, 0, 0);
        sender.begin();
        chunks(&mut sender);
        sender.ask_when_done(Time(0), 0);
        sender.asked(Time(0), 100);
        assert!(sender.on_report(1, 0, &[0b1000_0001]));
        assert_eq!(sender.next(), Some((1, true)));
        // The window was full for a timeout.
        sender.probe_stalled(Time(1));
        assert!(sender.on_report(2, 0, &[0b1100_0001]));
        assert_eq!(chunks(&mut sender), [2, 3, 4, 5, 6], "each once");
    }

    #[test]
    fn the_bound_is_never_exceeded() {
        for (count, bound, needed) in
            [(100, 0.1, 9), (95, 0.1, 9), (100, 0.0, 10), (100, 1.0, 0), (10, 0.99, 1)]
        {
            let mut receiver = Receiver::new(Time(0), part(count), bound);
            let mut arrived = 0;
            while !receiver.is_enough() {
                assert!(receiver.is_new(arrived));
                arrived += 1;
            }
            assert_eq!(arrived, needed, "{count} values, {bound}");
        }
    }

    #[test]
    fn a_full_chunk_may_be_more_than_the_bound_of_a_tensor_with_a_shorter_last_one() {
        let mut receiver = Receiver::new(Time(0), part(91), 0.1);
        assert!((1..10).all(|chunk| receiver.is_new(chunk)) && !receiver.is_enough(), "10 of 91 values");
        assert!(receiver.is_new(0) && receiver.is_enough());
    }

    #[test]
    fn missing_ranges_are_those_of_the_operation() {
        let mut receiver = Receiver::new(Time(0), part(45), 1.0);
        [1, 3].into_iter().for_each(|chunk| assert!(receiver.is_new(chunk)));
        assert_eq!(receiver.missing(), [100..110, 120..130, 140..145]);
        assert!(!receiver.is_new(5) && receiver.count == 2, "no such chunk");
    }

    #[test]
    fn the_agreement_is_repeated_until_data_comes() {
        let [initial_rto, max_rto] = [10, 35].map(Duration::from_nanos);
        let rtt = &RttEstimator::new(&Tuning { initial_rto, max_rto, ..Tuning::default() });
        let mut receiver = Receiver::new(Time(5), part(45), 0.0);
        assert!(receiver.announces(Time(5), rtt) && !receiver.announces(Time(14), rtt));
        assert!(receiver.announces(Time(15), rtt));
        assert_eq!(receiver.due(), Some(Time(35)));
        assert!(receiver.announces(Time(35), rtt));
        assert_eq!(receiver.due(), Some(Time(70)), "no longer than that");
        receiver.is_new(0);
        assert_eq!(receiver.due(), None);
    }

    #[test]
    fn operations_and_workers_begin_with_different_chunks() {
        let first = |number, rank| {
            let mut sender = Sender::new(part(1000), 0, number, rank);
            sender.begin();
            chunks(&mut sender)[0]
        };
        assert_eq!([0, 1, 2, 3].map(|number| first(number, 0)), [0, 61, 23, 85]);
        let mut of_workers = [0, 1, 2, 3, 4, 5, 6, 7].map(|rank| first(5, rank));
        of_workers.sort_unstable();
        let is_far = |pair: &[u32]| pair[1] - pair[0] > 5;
        assert!(of_workers.windows(2).all(is_far), "{of_workers:?}");
    }
}

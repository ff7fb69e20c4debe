//! A competing flow: a sender like TCP NewReno (RFC 5681, RFC 6582) with ECN (RFC 3168), or like DCTCP (RFC
//! 8257). It is a model: no handshake, no selective or delayed acknowledgements, a constant receive window,
//! one segment size.

use std::{collections::BTreeSet, net::SocketAddrV4};

use crate::{
    events::{MILLI, Nanos},
    packet::{Body, GAP, Packet, Segment, TCP_OVERHEAD, ecn},
};

/// Bytes of data in a full segment of 1,500 bytes.
pub const SEGMENT: u64 = 1_448;
/// Bytes of a full segment on a cable.
pub const FULL_SEGMENT: u64 = SEGMENT + TCP_OVERHEAD + GAP;
/// Linux's minimum RTO.
const MIN_TIMEOUT: Nanos = 200 * MILLI;
/// DCTCP's gain of the estimated part of marked segments (RFC 8257).
const GAIN: f64 = 1.0 / 16.0;
/// Most segments in flight.
const MAX_WINDOW: f64 = 4_096.0;
/// Segments in flight at first (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;

/// The response to marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// One mark halves the window.
    NewReno,
    /// The window falls by half of the part of segments that were marked.
    Dctcp,
}

#[derive(Clone, Copy, Debug)]
pub struct FlowSpec {
    pub algorithm: Algorithm,
    /// Whether its segments are ECN-capable.
    pub is_capable: bool,
    /// Bytes of data; `None`: it always has some.
    pub bytes: Option<u64>,
    /// The least retransmission timeout.
    pub min_timeout: Nanos,
}

impl FlowSpec {
    /// NewReno that always sends; `is_capable`: with ECN.
    pub fn greedy(is_capable: bool) -> FlowSpec {
        FlowSpec { algorithm: Algorithm::NewReno, is_capable, bytes: None, min_timeout: MIN_TIMEOUT }
    }

    /// DCTCP with so many bytes.
    pub fn dctcp(bytes: u64, min_timeout: Nanos) -> FlowSpec {
        FlowSpec { algorithm: Algorithm::Dctcp, is_capable: true, bytes: Some(bytes), min_timeout }
    }

    /// The number of segments.
    fn segments(&self) -> u64 {
        self.bytes.map_or(u64::MAX, |bytes| bytes.div_ceil(SEGMENT).max(1))
    }

    /// Bytes of data of a segment.
    fn len_of(&self, number: u64) -> u64 {
        self.bytes.map_or(SEGMENT, |bytes| bytes.saturating_sub(number * SEGMENT).clamp(1, SEGMENT))
    }
}

/// Both ends of one flow.
#[derive(Debug)]
pub struct Flow {
    id: usize,
    from: SocketAddrV4,
    to: SocketAddrV4,
    spec: FlowSpec,
    sender: Sender,
    receiver: Receiver,
    /// The time at which the last byte arrived.
    finished: Option<Nanos>,
    /// Retransmission timeouts so far.
    timeouts: u64,
    /// Time of the earliest timer event.
    timer: Option<Nanos>,
}

#[derive(Debug)]
struct Sender {
    spec: FlowSpec,
    window: f64,
    threshold: f64,
    /// The first segment that is not acknowledged, and the next one to send.
    first: u64,
    next: u64,
    repeated: u32,
    /// The segment whose acknowledgement ends the current recovery.
    recover: Option<u64>,
    /// The segment after all that were sent before the last timeout: until it, repeated acknowledgements are
    /// of segments that came twice (RFC 6582, section 3.2).
    timed_out_at: u64,
    /// DCTCP: the estimated part of marked segments, the counts of this window, and its end.
    marked_part: f64,
    acknowledged: u64,
    marked: u64,
    window_end: u64,
    /// Acknowledgements up to this segment cause no further reduction.
    reduced_at: u64,
    send_cwr: bool,
    smoothed: Nanos,
    variation: Nanos,
    backoff: u32,
    deadline: Option<Nanos>,
}

#[derive(Debug, Default)]
struct Receiver {
    expected: u64,
    early: BTreeSet<u64>,
    echoes: bool,
}

impl Flow {
    /// A flow that has not begun.
    pub fn new(id: usize, from: SocketAddrV4, to: SocketAddrV4, spec: FlowSpec) -> Flow {
        let (sender, receiver) = (Sender::new(spec), Receiver::default());
        Flow { id, from, to, spec, sender, receiver, finished: None, timeouts: 0, timer: None }
    }

    /// The time at which the last byte arrived.
    pub fn finished(&self) -> Option<Nanos> {
        self.finished
    }

    pub fn timeouts(&self) -> u64 {
        self.timeouts
    }

    /// Bytes that arrived in order.
    pub fn delivered(&self) -> u64 {
        self.receiver.expected * SEGMENT
    }

    /// The deadline for [`Flow::on_timeout`], unless it was returned before.
    pub fn next_timer(&mut self) -> Option<Nanos> {
        let due = self.sender.deadline?;
        if self.timer.is_some_and(|at| at <= due) {
            return None;
        }
        self.timer = Some(due);
        self.timer
    }

    /// Sends what the window allows.
    pub fn transmit(&mut self, now: Nanos, out: &mut Vec<Packet>) {
        let end = self.spec.segments();
        while self.sender.next < end.min(self.sender.first + self.sender.window as u64) {
            let number = self.sender.next;
            self.sender.next += 1;
            self.segment(now, number, out);
        }
        if self.sender.first < self.sender.next && self.sender.deadline.is_none() {
            self.sender.deadline = Some(now + self.sender.timeout());
        }
    }

    fn segment(&mut self, now: Nanos, number: u64, out: &mut Vec<Packet>) {
        let echo = std::mem::take(&mut self.sender.send_cwr);
        let len = self.spec.len_of(number);
        let segment = Segment { flow: self.id, number, is_ack: false, len, sent: now, echo };
        let ecn = if self.spec.is_capable { ecn::CAPABLE } else { ecn::NOT_CAPABLE };
        out.push(Packet {
            source: self.from,
            destination: self.to,
            path: self.id as u16,
            class: 0,
            ecn,
            body: Body::Tcp(segment),
        });
    }

    /// Handles a segment or an acknowledgement; `marked`: it carries CE.
    pub fn on_segment(&mut self, now: Nanos, segment: &Segment, marked: bool, out: &mut Vec<Packet>) {
        if segment.is_ack {
            if let Some(missing) = self.sender.on_ack(now, segment) {
                self.segment(now, missing, out);
            }
            return self.transmit(now, out);
        }
        let (number, echo) = self.receiver.on_segment(segment, marked, self.spec.algorithm);
        if number >= self.spec.segments() {
            self.finished.get_or_insert(now);
        }
        let ack = Segment { number, is_ack: true, len: 0, echo, ..*segment };
        let (source, destination) = (self.to, self.from);
        out.push(Packet {
            source,
            destination,
            path: self.id as u16,
            class: 0,
            ecn: ecn::NOT_CAPABLE,
            body: Body::Tcp(ack),
        });
    }

    /// Retransmits everything in slow start when the retransmission timer is due.
    pub fn on_timeout(&mut self, now: Nanos, out: &mut Vec<Packet>) {
        if self.timer.is_some_and(|at| at <= now) {
            self.timer = None;
        }
        if self.sender.deadline.is_none_or(|at| at > now) {
            return;
        }
        self.timeouts += 1;
        let sender = &mut self.sender;
        sender.timed_out_at = sender.next;
        sender.threshold = sender.half();
        sender.window = 1.0;
        (sender.next, sender.recover, sender.repeated) = (sender.first, None, 0);
        sender.backoff = (sender.backoff + 1).min(6);
        sender.deadline = None;
        self.transmit(now, out);
    }
}

impl Sender {
    fn new(spec: FlowSpec) -> Sender {
        Sender {
            spec,
            window: INITIAL_WINDOW,
            threshold: MAX_WINDOW,
            first: 0,
            next: 0,
            repeated: 0,
            recover: None,
            timed_out_at: 0,
            // RFC 8257: at first a mark halves the window.
            marked_part: 1.0,
            acknowledged: 0,
            marked: 0,
            window_end: 0,
            reduced_at: 0,
            send_cwr: false,
            smoothed: 0,
            variation: 0,
            backoff: 0,
            deadline: None,
        }
    }

    fn timeout(&self) -> Nanos {
        (self.smoothed + 4 * self.variation).max(self.spec.min_timeout) << self.backoff
    }

    fn half(&self) -> f64 {
        let in_flight = (self.next - self.first) as f64;
        (in_flight.min(self.window) / 2.0).max(2.0)
    }

    /// Returns the segment to retransmit.
    fn on_ack(&mut self, now: Nanos, ack: &Segment) -> Option<u64> {
        self.count_marks(ack);
        let mut missing = None;
        if ack.number > self.first {
            missing = self.progress(now, ack);
        } else if self.next > self.first {
            self.repeated += 1;
            if self.recover.is_some() {
                self.window += 1.0;
            } else if self.repeated == 3 && self.first >= self.timed_out_at {
                self.threshold = self.half();
                self.window = self.threshold + 3.0;
                self.recover = Some(self.next);
                missing = Some(self.first);
            }
        }
        if self.spec.is_capable && ack.echo && self.recover.is_none() && ack.number > self.reduced_at {
            self.threshold = match self.spec.algorithm {
                Algorithm::NewReno => self.half(),
                Algorithm::Dctcp => (self.window * (1.0 - self.marked_part / 2.0)).max(2.0),
            };
            self.window = self.threshold;
            self.reduced_at = self.next;
            self.send_cwr = true;
        }
        self.window = self.window.min(MAX_WINDOW);
        missing
    }

    /// Updates the part of marked segments once per window (RFC 8257, section 3.3).
    fn count_marks(&mut self, ack: &Segment) {
        let newly = ack.number.saturating_sub(self.first);
        self.acknowledged += newly;
        self.marked += if ack.echo { newly } else { 0 };
        if ack.number > self.window_end && self.acknowledged > 0 {
            let part = self.marked as f64 / self.acknowledged as f64;
            self.marked_part += GAIN * (part - self.marked_part);
            (self.acknowledged, self.marked, self.window_end) = (0, 0, self.next);
        }
    }

    fn progress(&mut self, now: Nanos, ack: &Segment) -> Option<u64> {
        let newly = ack.number - self.first;
        self.first = ack.number;
        self.next = self.next.max(self.first);
        self.repeated = 0;
        self.sample(now - ack.sent);
        self.deadline = (self.first < self.next).then(|| now + self.timeout());
        match self.recover {
            Some(end) if ack.number >= end => {
                self.recover = None;
                self.window = self.threshold;
                None
            }
            Some(_) => {
                self.window = (self.window - newly as f64 + 1.0).max(1.0);
                Some(self.first)
            }
            None if self.window < self.threshold => {
                self.window += newly as f64;
                None
            }
            None => {
                self.window += newly as f64 / self.window;
                None
            }
        }
    }

    /// RFC 6298.
    fn sample(&mut self, rtt: Nanos) {
        self.backoff = 0;
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (rtt, rtt / 2);
        } else {
            self.variation = (3 * self.variation + self.smoothed.abs_diff(rtt)) / 4;
            self.smoothed = (7 * self.smoothed + rtt) / 8;
        }
    }
}

impl Receiver {
    /// Returns the first missing segment and the ECE bit.
    fn on_segment(&mut self, segment: &Segment, marked: bool, algorithm: Algorithm) -> (u64, bool) {
        if segment.echo {
            self.echoes = false;
        }
        // A DCTCP receiver that acknowledges each segment echoes its mark alone.
        self.echoes = marked || self.echoes && algorithm == Algorithm::NewReno;
        if segment.number >= self.expected {
            self.early.insert(segment.number);
        }
        while self.early.remove(&self.expected) {
            self.expected += 1;
        }
        (self.expected, self.echoes)
    }
}

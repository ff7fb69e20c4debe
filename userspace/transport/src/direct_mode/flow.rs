//! The traffic of one lane with one peer, in both directions: the transfers, the rate, and what is to be sent
//! first.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use sumac_job::limits::ACKNOWLEDGED_EVERY;
use sumac_wire::{Header, header::flag, stream::is_later};

use super::{
    agreement::Agreement,
    outstanding::{Arrived, Outstanding},
    params::DirectParams,
    rate::DelayRate,
    transfer::{Receiver, Sender, TransferId},
};
use crate::{
    budget::{CongestionEvent, MaySend, SendingBudget},
    congestion::CongestionWindow,
    handshake::Handshake,
    params::Tuning,
    rtt::{RttEstimator, RttSample},
    stats::PathStats,
    time::{Time, nanos},
};

/// Agreements kept for transfers that this worker has not begun, and control packets that wait: all are
/// repeated by the peer or by a timer when they are dropped here.
const MOST_KEPT: usize = 1024;

/// A packet that goes before data.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Control {
    /// The answer to a probe of the handshake, with as many elements.
    Answer(Header),
    /// A transfer as this worker means it.
    Agreement { id: TransferId, agreement: Agreement, flags: u16 },
    /// The packets with data so far, a timestamp of the peer, and whether the network marked a packet.
    Acknowledgement { echo: u32, is_marked: bool },
    /// A transfer has enough.
    Stop { id: TransferId },
    /// Asks what a transfer lacks.
    Probe { id: TransferId, probe: u32 },
    /// The chunks of a transfer that have arrived, from `first` on.
    Report { id: TransferId, probe: u32, first: u32 },
}

#[derive(Serialize, Deserialize)]
pub(super) struct Flow {
    /// Until the peer has answered a probe of full size.
    pub handshake: Option<Handshake>,
    pub rate: DelayRate,
    /// Whether the last packet with data said that this worker reacts to marks. Where packets are
    /// distinguished by importance, a mark shows which ones are important, and the rate follows the round
    /// trip alone, as in the paper (section 5.2).
    pub reacts_to_marks: bool,
    /// Halved by the network's marks: beside TCP the round trip alone leaves TCP nothing.
    congestion: CongestionWindow,
    pub rtt: RttEstimator,
    /// The number of the next packet with data, and the highest that the peer has acknowledged.
    pub next_packet: u64,
    acknowledged: u64,
    /// Bytes of the packets with data so far.
    sent: u64,
    pub outstanding: Outstanding,
    /// The last time at which something was acknowledged, or the first packet in flight was sent.
    progress: Time,
    /// Received packets since the last acknowledgement, and the numbers of the last ones.
    unacknowledged: u32,
    pub arrived: Arrived,
    /// Whether the network marked a packet that is not acknowledged yet.
    is_marked: bool,
    control: VecDeque<Control>,
    pub sends: BTreeMap<TransferId, Sender>,
    pub receives: BTreeMap<TransferId, Receiver>,
    /// Agreements on transfers that this worker has not begun.
    early: BTreeMap<TransferId, Agreement>,
    /// The transfers that this worker refused, as it means them.
    refused: BTreeMap<TransferId, Agreement>,
    /// The transfer that sent last, for turns among those of one priority.
    last: Option<TransferId>,
}

impl Flow {
    /// `elements`: the most words of a packet. `seed`: of the choice of paths.
    pub fn new(params: &DirectParams, tuning: &Tuning, elements: u16, seed: u64) -> Flow {
        Flow {
            handshake: Some(Handshake::new(tuning)),
            rate: DelayRate::new(params.line_rate, nanos(tuning.min_rto_confirmed)),
            reacts_to_marks: true,
            congestion: CongestionWindow::new(params.window, params.window, 1),
            rtt: RttEstimator::new(tuning),
            next_packet: 1,
            acknowledged: 0,
            sent: 0,
            outstanding: Outstanding::new(tuning, seed),
            progress: Time(0),
            unacknowledged: 0,
            arrived: Arrived::new(params.window, elements),
            is_marked: false,
            control: VecDeque::new(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            early: BTreeMap::new(),
            refused: BTreeMap::new(),
            last: None,
        }
    }

    pub fn push(&mut self, control: Control) {
        if self.control.len() < MOST_KEPT {
            self.control.push_back(control);
        }
    }

    pub fn pop(&mut self) -> Option<Control> {
        self.control.pop_front()
    }

    /// Processes an agreement on a transfer that this worker has not begun, or has refused.
    pub fn on_early(&mut self, id: TransferId, theirs: Agreement) {
        match self.refused.get(&id).copied() {
            Some(ours) => self.push(Control::Agreement { id, agreement: ours, flags: flag::MISMATCH }),
            None => keep(&mut self.early, id, theirs),
        }
    }

    /// Refuses a transfer: this worker has something else for it.
    pub fn refuse(&mut self, id: TransferId, ours: Agreement) {
        self.push(Control::Agreement { id, agreement: ours, flags: flag::MISMATCH });
        keep(&mut self.refused, id, ours);
    }

    pub fn take_early(&mut self, id: TransferId) -> Option<Agreement> {
        self.early.remove(&id)
    }

    pub fn in_flight(&self) -> usize {
        (self.next_packet - 1 - self.acknowledged) as usize
    }

    /// Packets in flight at most.
    pub fn window(&self) -> u32 {
        self.congestion.window()
    }

    /// Whether no more packets may be in flight. The last of them asks for an acknowledgement: the window may
    /// be shorter than the receiver's turn.
    pub fn is_full(&self) -> bool {
        self.in_flight() >= self.window() as usize
    }

    /// Whether data may go; the time until which it may not.
    pub fn may_send(&self, now: Time) -> MaySend {
        if self.is_full() {
            return MaySend::Blocked;
        }
        self.rate.may_send(now, self.in_flight())
    }

    /// Records that a packet with a transfer's data was sent; returns its number and its path.
    pub fn on_sent(&mut self, now: Time, id: TransferId, bytes: usize, stats: &mut PathStats) -> (u32, u16) {
        let before = self.sent;
        self.sent += bytes as u64;
        if let Some(send) = self.sends.get_mut(&id) {
            send.on_sent(now, before..self.sent);
        }
        let number = self.next_packet as u32;
        if self.in_flight() == 0 {
            self.progress = now;
        }
        self.next_packet += 1;
        self.rate.on_sent(now, bytes);
        (number, self.outstanding.send(now, stats))
    }

    /// Processes an acknowledgement of all packets up to `number`; `echo` is the timestamp of that one, and
    /// the network may have marked one of them. A report has none: its probe did not wait with the data.
    /// Returns the round trip, and whether the window was halved.
    pub fn on_acknowledged(
        &mut self,
        now: Time,
        number: u32,
        echo: Option<u32>,
        is_marked: bool,
    ) -> (Option<u64>, bool) {
        let first = self.acknowledged + 1;
        let new = number.wrapping_sub(self.acknowledged as u32);
        // An earlier one than what was given up as lost: it still tells the round trip, without which the
        // next would be given up too early as well.
        let is_late = is_later(self.acknowledged as u32, number);
        if !is_late {
            if new as usize > self.in_flight() {
                return (None, false);
            }
            self.acknowledged += u64::from(new);
            self.progress = now;
        }
        let event = CongestionEvent { seq: self.acknowledged, base: first, next: self.next_packet, lost: 0 };
        let is_marked = is_marked && self.reacts_to_marks;
        let is_halved = is_marked && self.congestion.on_congestion(event);
        if !is_marked {
            (first..=self.acknowledged).for_each(|number| self.congestion.on_result(number));
        }
        (echo.and_then(|echo| self.on_echo(now, echo)), is_halved)
    }

    /// Takes the round trip from a timestamp of this worker that the peer returned.
    pub fn on_echo(&mut self, now: Time, echo: u32) -> Option<u64> {
        // The clock in packets has microseconds.
        let micros = now.stamp().wrapping_sub(echo);
        if micros > i32::MAX as u32 {
            return None;
        }
        let rtt = u64::from(micros) * 1000;
        let sent = Time(now.0.saturating_sub(rtt));
        self.rtt.sample(rtt, self.acknowledged, self.next_packet);
        self.rate.on_sample(RttSample { sent, acknowledged: now, is_marked: false });
        Some(rtt)
    }

    /// Processes a report on a transfer: a bit for each chunk from `first` on. A pass of which the network
    /// dropped much sets the rate to what has arrived: where ports are short, no round trip is long
    /// when they are full.
    pub fn on_report(&mut self, now: Time, id: TransferId, probe: u32, first: u32, bits: &[u8]) -> bool {
        let Some(send) = self.sends.get_mut(&id) else { return false };
        if send.on_report(probe, first, bits)
            && let Some((pass, lost)) = send.end_pass()
            && let Some(arrived) = pass.arrived(lost)
        {
            let time = pass.ended.since(pass.began) + self.rtt.smoothed();
            self.rate.on_losses(now, arrived, time, self.rtt.smoothed());
        }
        send.ask_when_done(now, 0);
        true
    }

    /// Records that a packet with data arrived, marked by the network or not; `asks`: for an acknowledgement.
    /// Returns whether it is to be acknowledged.
    pub fn on_data(&mut self, number: u32, is_marked: bool, asks: bool) -> bool {
        self.is_marked |= is_marked;
        self.arrived.insert(number);
        self.unacknowledged += 1;
        if self.unacknowledged < ACKNOWLEDGED_EVERY && !asks {
            return false;
        }
        self.unacknowledged = 0;
        true
    }

    /// Acknowledges all data packets so far; `echo` is the timestamp of the last one.
    pub fn acknowledge(&mut self, echo: u32) {
        let is_marked = std::mem::take(&mut self.is_marked);
        self.push(Control::Acknowledgement { echo, is_marked });
    }

    /// The time at which a full window without an acknowledgement counts as lost.
    pub fn stalled_at(&self) -> Option<Time> {
        self.is_full().then(|| self.progress.plus(self.rtt.timeout(0)))
    }

    /// Gives up what is in flight: the peer reports what has arrived.
    pub fn restart(&mut self, now: Time) {
        self.acknowledged = self.next_packet - 1;
        self.progress = now;
    }

    /// The transfer that sends a chunk next: of the highest priority, and the transfers of one priority in
    /// turns.
    pub fn next_sender(&self) -> Option<TransferId> {
        let ready = || self.sends.iter().filter(|(_, send)| send.has_chunks());
        let priority = ready().map(|(_, send)| send.priority).max()?;
        let mut turns = ready().filter(|(_, send)| send.priority == priority).map(|(id, _)| *id);
        let first = turns.clone().next();
        turns.find(|id| Some(*id) > self.last).or(first)
    }

    pub fn took_turn(&mut self, id: TransferId) {
        self.last = Some(id);
    }
}

/// Keeps an agreement, in place of the oldest where there are too many.
fn keep(agreements: &mut BTreeMap<TransferId, Agreement>, id: TransferId, agreement: Agreement) {
    if agreements.len() >= MOST_KEPT {
        agreements.pop_first();
    }
    agreements.insert(id, agreement);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Paths;

    fn flow(window: u32) -> Flow {
        Flow::new(&DirectParams::new(window), &Tuning::default(), 352, 7)
    }

    fn send(flow: &mut Flow, now: Time) {
        flow.on_sent(now, TransferId { exchange: 0, step: 0 }, 100, &mut Paths::new(64, 7).stats());
    }

    #[test]
    fn every_tenth_packet_is_acknowledged() {
        let mut flow = flow(16);
        let acknowledged: Vec<u32> = (1..=30).filter(|number| flow.on_data(*number, false, false)).collect();
        assert_eq!(acknowledged, [10, 20, 30]);
        flow.on_data(25, false, false);
        assert_eq!(flow.arrived.highest(), 30, "it was late");
        assert!(flow.on_data(31, false, true), "it fills the sender's window");
    }

    #[test]
    fn the_window_counts_what_the_peer_has_not_seen() {
        let mut flow = flow(16);
        for _ in 0..16 {
            assert_eq!(flow.may_send(Time(1000)), MaySend::Now);
            send(&mut flow, Time(1000));
        }
        assert_eq!(flow.may_send(Time(1000)), MaySend::Blocked);
        assert_eq!(flow.stalled_at(), Some(Time(1000).plus(flow.rtt.timeout(0))));
        flow.on_acknowledged(Time(51_000), 10, Some(Time(1000).stamp()), false);
        assert_eq!((flow.in_flight(), flow.rtt.shortest()), (6, 50_000));
        flow.on_acknowledged(Time(60_000), 3, Some(Time(1000).stamp()), false);
        flow.on_acknowledged(Time(60_000), 17, Some(Time(1000).stamp()), false);
        assert_eq!(flow.in_flight(), 6, "an old one, and one that was not sent");
        assert_eq!(flow.stalled_at(), None);
        flow.restart(Time(70_000));
        assert_eq!(flow.in_flight(), 0);
        let (rtt, _) = flow.on_acknowledged(Time(81_000), 12, Some(Time(1000).stamp()), false);
        assert_eq!((rtt, flow.in_flight()), (Some(80_000), 0), "given up too early: it tells the round trip");
    }

    #[test]
    fn a_report_tells_no_round_trip() {
        let mut flow = flow(16);
        (0..16).for_each(|_| send(&mut flow, Time(1000)));
        assert_eq!(flow.on_acknowledged(Time(51_000), 10, None, false), (None, false));
        assert_eq!((flow.in_flight(), flow.rtt.shortest()), (6, 0));
    }

    #[test]
    fn a_mark_halves_the_window_once_in_a_round_trip() {
        let mut flow = flow(64);
        let fill = |flow: &mut Flow| {
            while !flow.is_full() {
                send(flow, Time(0));
            }
        };
        let acknowledge = |flow: &mut Flow, number, is_marked| {
            flow.on_acknowledged(Time(1000), number, Some(Time(0).stamp()), is_marked).1
        };
        fill(&mut flow);
        assert!(acknowledge(&mut flow, 10, true) && flow.window() == 32);
        assert!(!acknowledge(&mut flow, 20, true) && flow.window() == 32, "they were sent before");
        acknowledge(&mut flow, 64, false);
        fill(&mut flow);
        assert!(acknowledge(&mut flow, 74, true));
        assert_eq!(flow.window(), 16);
        for _ in 0..100 {
            let number = flow.next_packet as u32 - 1;
            acknowledge(&mut flow, number, false);
            fill(&mut flow);
        }
        assert_eq!(flow.window(), 64, "it grows again");
        // Marks on packets that are distinguished by importance are no claim that the sender yields.
        flow.reacts_to_marks = false;
        let number = flow.next_packet as u32 - 1;
        assert!(!acknowledge(&mut flow, number, true) && flow.window() == 64);
    }

    #[test]
    fn a_mark_is_echoed_once() {
        let mut flow = flow(16);
        let echoes = |flow: &mut Flow| {
            flow.acknowledge(5);
            matches!(flow.pop(), Some(Control::Acknowledgement { is_marked: true, .. }))
        };
        for number in 1..=10 {
            flow.on_data(number, number == 3, false);
        }
        assert_eq!([echoes(&mut flow), echoes(&mut flow)], [true, false]);
    }
}

//! The static mode (SwitchML's Algorithm 4): a lane has slots of its own at the aggregator, and each slot
//! takes one chunk after another.
//!
//! | module | contents |
//! | --- | --- |
//! | `pool` | the numbering of slots, versions and their chunks |
//! | `slots` | the state of each slot |
//! | `probe_train` | the measurement of the bandwidth-delay product, from which the number of slots follows |
//! | `receive`, `transmit` | results and contributions |
//! | `window` | which chunks a congestion window holds back |

mod pool;
mod probe_train;
mod receive;
mod slots;
mod transmit;
mod window;

use serde::{Deserialize, Serialize};
use sumac_job::PathMeasure;
use sumac_wire::{Header, Reason};

use self::{pool::SlotPool, probe_train::ProbeTrain, slots::Slots, window::HeldBack};
use crate::{
    engine_core::{Core, CoreParams, Phase},
    error::ParamError,
    handshake::{Handshake, Outcome},
    in_flight::InFlight,
    mode::{CheckedPath, ModeProtocol},
    packet::Packet,
    params::{JobParams, Tuning, check_slots},
    peer::{PeerId, PeerTable},
    probe_timeout::{PROBE_CHUNKS, ProbeTimeout},
    time::Time,
    timer::Expiry,
    transmit::Transmit,
};

/// The probes before the first chunk.
#[derive(Debug, Serialize, Deserialize)]
enum Probing {
    Handshake(Handshake),
    Train(ProbeTrain),
}

#[derive(Serialize, Deserialize)]
pub(crate) struct StaticMode {
    slots: Slots,
    first: u64,
    aggregator: PeerId,
    probing: Probing,
    held: HeldBack,
    /// Contributions that were sent again without a query since the last new one.
    unasked: u32,
}

impl StaticMode {
    pub fn new(
        params: &JobParams,
        peers: &PeerTable,
        tuning: &Tuning,
        first: u64,
    ) -> Result<(StaticMode, CoreParams), ParamError> {
        let aggregator = peers.aggregator().ok_or(ParamError::NoPeer { role: "aggregator" })?;
        let slots = Slots::new(SlotPool::new(params.slots, params.lane), first);
        let core = CoreParams {
            in_flight: InFlight::new(slots.seqs()),
            budget: window::budget(params, tuning),
            probe_timeout: ProbeTimeout::default(),
            is_cautious: false,
        };
        let probing = Probing::Handshake(Handshake::new(tuning));
        let held = HeldBack { next: first, near: 0 };
        Ok((StaticMode { slots, first, aggregator, probing, held, unasked: 0 }, core))
    }

    /// Makes the slots ready whose chunks the stream has reached. Later chunks follow with their slots'
    /// results. `near` is the number of the operation that most of them belong to. Those that a window holds
    /// back go one by one instead ([`StaticMode::let_go`]).
    fn wake(&mut self, core: &mut Core, near: u64) {
        while let Some(seq) = self.slots.next_idle()
            && let Some(operation) = core.stream.find(seq, near)
            && !window::holds_back(core, operation, seq)
        {
            let slot = self.slots.pop_idle();
            slot.into_iter().for_each(|slot| self.make_ready(core, slot, operation));
        }
    }

    /// Allows the chunk of a slot to be sent, as soon as an exponent chunk that it needs has its result.
    fn make_ready(&mut self, core: &mut Core, slot: usize, operation: u64) {
        let seq = core.in_flight.get(slot).seq;
        self.held = HeldBack { next: self.held.next.max(seq + 1), near: operation };
        core.make_ready(slot, operation, &mut self.slots.get_mut(slot).exponent);
    }

    /// Lets the chunks go that have waited for the result of an exponent chunk which came.
    fn release_held(&mut self, core: &mut Core) {
        core.for_each_held(|core, slot, operation| self.make_ready(core, slot, operation));
    }

    /// Whether the stream has no further chunk for some slot.
    fn is_at_end(&self, core: &Core) -> bool {
        self.slots.next_idle().is_some_and(|seq| core.stream.find(seq, self.held.near).is_none())
    }

    fn expire(&self, core: &mut Core) {
        expire_timers(core);
        // With its chunk suspected, the next one's timer may be due.
        while core.expire_tail_probe(self.is_at_end(core)) {
            expire_timers(core);
        }
    }

    fn on_outcome(&mut self, core: &mut Core, outcome: Option<Outcome>) {
        match outcome {
            None => {}
            Some(Outcome::Ready(rtt)) => {
                if let Some(rtt) = rtt {
                    core.rtt.sample(rtt, 0, core.next_packet);
                }
                if core.params.measure {
                    let train = ProbeTrain::new(&core.tuning, core.frame_len(), rtt, core.now);
                    self.probing = Probing::Train(train);
                } else {
                    core.phase = Phase::Ready;
                }
                core.refresh_gauges();
            }
            Some(Outcome::Failed(why)) => core.fail(why),
        }
    }
}

fn expire_timers(core: &mut Core) {
    while let Some(expiry) = core.next_expiry() {
        match expiry {
            Expiry::Chunk(slot) => core.expire_chunk(slot),
            Expiry::Reordering => {
                core.detect_loss();
            }
            Expiry::Probe => {
                core.probe_timeout.on_probe(core.now);
                // All workers ask about the earliest chunk: the aggregator may have postponed several
                // packets. Of the others, any may be the one that another worker waits for: they take turns.
                let timeout = core.rtt.timeout_confirmed(0);
                let is_due = |slot: &usize| core.now.since(core.in_flight.get(*slot).sent) >= timeout;
                let earliest = core.in_flight.earliest().filter(is_due);
                earliest.into_iter().for_each(|slot| core.expire_chunk(slot));
                for _ in usize::from(earliest.is_some())..PROBE_CHUNKS {
                    core.in_flight.oldest().into_iter().for_each(|slot| core.expire_chunk(slot));
                }
            }
        }
    }
}

impl ModeProtocol for StaticMode {
    fn on_submit(&mut self, core: &mut Core, operation: u64) {
        self.wake(core, operation);
    }

    fn on_result(&mut self, core: &mut Core, packet: &Packet<'_>) -> Result<(), Reason> {
        self.receive(core, packet)
    }

    fn on_report(&mut self, core: &mut Core, report: &Header) {
        // A late answer to a repeated probe is of no use.
        if !matches!(core.phase, Phase::Probing) {
            return;
        }
        match &mut self.probing {
            Probing::Handshake(handshake) => {
                let outcome = handshake.on_report(core.now, report, &core.params);
                self.on_outcome(core, outcome);
            }
            Probing::Train(train) => {
                let measure = train.on_report(core.now, report.seq);
                on_measure(core, measure);
            }
        }
    }

    fn checked_path(&self) -> CheckedPath {
        CheckedPath { to: self.aggregator, numbers: 0, received: 0 }
    }

    fn poll_transmit(&mut self, core: &mut Core, out: &mut [u8]) -> Option<Transmit> {
        if matches!(core.phase, Phase::Ready) {
            return self.send_chunk(core, out);
        }
        let (elements, number) = match &mut self.probing {
            Probing::Handshake(handshake) => handshake.poll(core.now, core.params.elements)?,
            Probing::Train(train) => (core.params.elements, train.poll(core.now)?),
        };
        Some(core.send_probe(0, elements, number, self.aggregator, out))
    }

    fn poll_timeout(&self, core: &Core) -> Option<Time> {
        match (&core.phase, &self.probing) {
            (Phase::Probing, Probing::Handshake(handshake)) => handshake.deadline(),
            (Phase::Probing, Probing::Train(train)) => Some(train.deadline()),
            (Phase::Ready, _) => {
                let tail = core.tail_probe(self.is_at_end(core)).map(|(at, _)| at);
                tail.into_iter().chain(core.timers().next().map(|(at, _)| at)).min()
            }
            (Phase::Measured(_) | Phase::Failed(_), _) => None,
        }
    }

    //= switchml#4.5 retransmission by the worker
    fn on_timeout(&mut self, core: &mut Core) {
        match (&core.phase, &mut self.probing) {
            (Phase::Probing, Probing::Handshake(handshake)) => {
                let outcome = handshake.on_timeout(core.now, &core.params);
                self.on_outcome(core, outcome);
            }
            (Phase::Probing, Probing::Train(train)) => {
                let measure = train.on_timeout(core.now);
                on_measure(core, measure);
            }
            (Phase::Ready, _) => self.expire(core),
            (Phase::Measured(_) | Phase::Failed(_), _) => {}
        }
    }

    fn set_slots(&mut self, core: &mut Core, slots: u32) -> Result<(), ParamError> {
        check_slots(slots)?;
        if core.next_packet > 1 {
            return Err(ParamError::Started);
        }
        core.params.slots = slots;
        core.params.measure = false;
        match (&core.phase, &self.probing) {
            (Phase::Failed(_), _) => return Ok(()),
            (Phase::Measured(_), _) | (Phase::Probing, Probing::Train(_)) => core.phase = Phase::Ready,
            (Phase::Probing, Probing::Handshake(_)) | (Phase::Ready, _) => {}
        }
        self.slots = Slots::new(SlotPool::new(slots, core.params.lane), self.first);
        core.in_flight = InFlight::new(self.slots.seqs());
        core.budget = window::budget(&core.params, &core.tuning);
        self.wake(core, 0);
        Ok(())
    }
}

/// Ends the measurement when there is a result.
fn on_measure(core: &mut Core, measure: Option<PathMeasure>) {
    if let Some(measure) = measure {
        core.phase = Phase::Measured(measure);
    }
}

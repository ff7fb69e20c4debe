//! The dynamic mode (ATP): jobs share all slots of an aggregator by hashing, and a parameter host behind it
//! sums the chunks that find no slot.
//!
//! A chunk is sent when it is less than a window ahead of the first chunk without a result, and the sending
//! budget allows it. Lost chunks are sent again, past the slots: there are no queries, since slots forget. A
//! chunk whose exponent neither a look-ahead nor an exponent chunk tells, or whose sum overflowed, travels as
//! raw floats, which only the parameter host adds.
//!
//! | module | contents |
//! | --- | --- |
//! | `params` | a worker's parameters of a dynamic job |
//! | `slot_map` | the slot of each chunk |
//! | `path` | the path by the aggregator, or straight to the parameter host |
//! | `receive`, `transmit` | results and contributions |

pub(crate) mod params;
mod path;
mod receive;
mod slot_map;
mod transmit;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sumac_wire::{
    Header, Reason,
    admit::payload_len,
    header::exponent::{NONE, UNKNOWN},
};

pub use self::params::DynamicParams;
use self::{path::Path, slot_map::SlotMap};
use crate::{
    budget::{CongestionEvent, FixedWindow},
    chunk::Form,
    congestion::{CongestionWindow, initial_window},
    engine_core::{Budget, Core, CoreParams, Phase},
    error::{JobError, ParamError},
    handshake::{Handshake, Outcome},
    in_flight::{ChunkState, InFlight},
    lane::shard_of,
    loss::Lost,
    mode::{CheckedPath, ModeProtocol},
    packet::Packet,
    params::{JobParams, Tuning},
    peer::{PeerId, PeerTable},
    pending::Pending,
    probe_timeout::{PROBE_CHUNKS, ProbeTimeout},
    time::Time,
    timer::Expiry,
    transmit::Transmit,
};

/// Numbers of probes that go straight to the parameter host begin here, those by the aggregator at 0: reports
/// show by them which path works.
const HOST_PROBES: u32 = 1 << 31;

/// The dynamic mode's part of the state of a chunk in the window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct WindowEntry {
    /// The exponent that all workers scale the chunk by; `UNKNOWN` requires raw floats.
    exponent: i8,
    /// Whether the parameter host has asked for the chunk's floats.
    is_raw: bool,
    /// Whether the parameter host has others' part of the chunk: no slot completes it.
    is_begun: bool,
}

/// The dynamic mode of one lane. Its chunks in flight are a ring: the next chunk with the same index is one
/// window later.
#[derive(Serialize, Deserialize)]
pub(crate) struct DynamicMode {
    params: DynamicParams,
    handshake: Handshake,
    host: PeerId,
    /// The aggregator, or the parameter host where there is none.
    aggregator: PeerId,
    entries: Box<[WindowEntry]>,
    slot_map: SlotMap,
    path: Path,
    /// Whether the parameter host has answered a probe of full size.
    host_answered: bool,
    /// The first chunk without a result.
    base: u64,
    /// The first chunk that was never sent.
    next: u64,
    /// The number of the operation of the latest chunk.
    near: u64,
    /// In the chunks before this one a new worker does not know the exponents and slots that the others
    /// agreed on: they pass all slots, and their results teach nothing.
    settled_from: u64,
    /// The first chunks sent after nothing was in flight. Workers that waited for this one meanwhile have
    /// sent those again, past the slots ([`DynamicMode::probe`]). Then their packets are missing here without
    /// congestion.
    first_of_burst: Range<u64>,
}

impl DynamicMode {
    pub fn new(
        params: &DynamicParams,
        job: &JobParams,
        peers: &PeerTable,
        tuning: &Tuning,
        first: u64,
    ) -> Result<(DynamicMode, CoreParams), ParamError> {
        let host = peers.parameter_host(shard_of(job.lane, job.shards));
        let host = host.ok_or(ParamError::NoPeer { role: "parameter host" })?;
        let aggregator = peers.aggregator().filter(|_| params.slots > 0);
        let usual = || initial_window(payload_len(job.elements), job.shards, params.window);
        let initial = params.initial_window.unwrap_or_else(usual);
        let budget = match params.congestion {
            true => Budget::Congestion(CongestionWindow::new(initial, params.window, job.shards)),
            false => Budget::Fixed(FixedWindow(initial)),
        };
        let window = u64::from(params.window);
        // WindowEntry `i` has the chunks that are `i` modulo the window.
        let seqs = (0..window).map(|index| first + (index.wrapping_sub(first) & (window - 1)));
        let core = CoreParams {
            in_flight: InFlight::new(seqs),
            budget,
            probe_timeout: ProbeTimeout::with_jitter(u32::from(job.rank) << 8 | u32::from(job.lane)),
            // A retransmission on a wrong guess costs more than the static mode's query.
            is_cautious: true,
        };
        let mode = DynamicMode {
            handshake: Handshake::new(tuning),
            host,
            aggregator: aggregator.unwrap_or(host),
            entries: vec![
                WindowEntry { exponent: UNKNOWN, is_raw: false, is_begun: false };
                params.window as usize
            ]
            .into(),
            slot_map: SlotMap::new(job.job, job.lane, params, tuning.linear_placement),
            path: Path::new(aggregator.is_some()),
            host_answered: false,
            base: first,
            next: first,
            near: 0,
            settled_from: 0,
            first_of_burst: 0..0,
            params: params.clone(),
        };
        Ok((mode, core))
    }

    fn on_outcome(&mut self, core: &mut Core, outcome: Option<Outcome>) {
        match outcome {
            None => {}
            // The round trip of a single probe is no estimate for a window of chunks beside other jobs'
            // traffic.
            Some(Outcome::Ready(_)) => self.host_answered = true,
            Some(Outcome::Failed(JobError::NoReply { probes, waited_ms })) => {
                core.fail(JobError::HostSilent { probes, waited_ms });
            }
            Some(Outcome::Failed(why)) => core.fail(why),
        }
    }

    /// Lets chunks go once the path is known.
    fn settle(&mut self, core: &mut Core) {
        if matches!(core.phase, Phase::Probing) && self.host_answered && self.path.is_settled() {
            core.phase = Phase::Ready;
        }
        self.refresh_gauges(core);
    }

    /// Whether the stream has no further chunk.
    fn is_at_end(&self, core: &Core) -> bool {
        core.stream.find(self.next, self.near).is_none()
    }

    fn expire(&mut self, core: &mut Core) {
        self.expire_timers(core);
        // With its chunk suspected, the next one's timer may be due.
        while core.expire_tail_probe(self.is_at_end(core)) {
            self.expire_timers(core);
        }
    }

    fn expire_timers(&mut self, core: &mut Core) {
        while let Some(expiry) = core.next_expiry() {
            match expiry {
                Expiry::Chunk(index) => {
                    let seq = core.in_flight.get(index).seq;
                    core.expire_chunk(index);
                    self.on_loss(core, Lost { latest: seq, chunks: 1 });
                }
                Expiry::Reordering => {
                    let lost = core.detect_loss();
                    lost.into_iter().for_each(|lost| self.on_loss(core, lost));
                }
                Expiry::Probe => {
                    core.probe_timeout.on_probe(core.now);
                    self.probe(core);
                    if self.path.probe(core.now) {
                        on_direct(core);
                    }
                }
            }
        }
    }

    /// Sends the first chunks again. No result has come for long, mostly because a worker is late, and no
    /// slot completes a chunk that is sent again: so only those go that all workers wait for if they were
    /// lost.
    fn probe(&mut self, core: &mut Core) {
        let window = self.base..self.base + u64::from(self.params.window);
        let indexes = window.map(|seq| self.index(seq));
        let mut sent = indexes.filter(|index| core.in_flight.get(*index).state == ChunkState::Sent);
        let first: [Option<usize>; PROBE_CHUNKS] = std::array::from_fn(|_| sent.next());
        drop(sent);
        first.into_iter().flatten().for_each(|index| core.expire_chunk(index));
    }

    fn on_loss(&mut self, core: &mut Core, Lost { latest, chunks }: Lost) {
        if !self.first_of_burst.contains(&latest) {
            core.on_congestion(self.event(latest, chunks));
        }
    }

    /// Congestion on the path of a chunk or its result: a mark, or so many lost chunks.
    fn event(&self, seq: u64, lost: u32) -> CongestionEvent {
        CongestionEvent { seq, base: self.base, next: self.next, lost }
    }

    /// Allows a chunk of the window to be sent, as soon as an exponent chunk that it needs has its result.
    fn make_ready(&mut self, core: &mut Core, index: usize, operation: u64) {
        core.make_ready(index, operation, &mut self.entries[index].exponent);
    }

    /// Lets the chunks go that have waited for the result of an exponent chunk which came, or counts for
    /// nothing any more.
    fn release_held(&mut self, core: &mut Core) {
        core.for_each_held(|core, index, operation| self.make_ready(core, index, operation));
    }

    /// In the chunks before this one a new worker does not know what the others agreed on.
    fn settle_from(&mut self, core: &mut Core, seq: u64) {
        self.settled_from = seq;
        core.stream.exponents.begin_at(seq);
        self.release_held(core);
    }

    fn index(&self, seq: u64) -> usize {
        seq as usize & (self.params.window as usize - 1)
    }

    fn refresh_gauges(&self, core: &mut Core) {
        core.refresh_gauges();
        core.stats.cwnd = u64::from(core.budget.window());
        core.stats.direct = u64::from(self.path.is_settled() && self.path.is_direct());
    }

    /// The form in which a chunk travels: as floats where the exponent is not known, or the parameter host
    /// asked for them.
    fn form(&self, core: &Core, pending: &Pending, seq: u64) -> Form {
        let WindowEntry { exponent, is_raw, .. } = self.entries[self.index(seq)];
        match core.needs_exponent(pending, seq) {
            _ if is_raw => Form::Floats,
            true if exponent == UNKNOWN => Form::Floats,
            true => Form::Scaled(exponent),
            false => Form::Scaled(NONE),
        }
    }
}

/// Packets go straight from now on: the aggregator is gone, and with it the sums in its slots.
fn on_direct(core: &mut Core) {
    core.in_flight.mark_all_lost();
    core.path_check.restart(core.now);
}

impl ModeProtocol for DynamicMode {
    fn on_result(&mut self, core: &mut Core, packet: &Packet<'_>) -> Result<(), Reason> {
        self.receive(core, packet)
    }

    fn on_report(&mut self, core: &mut Core, report: &Header) {
        if report.seq < HOST_PROBES {
            self.path.on_report(report.elements > 0);
            return self.settle(core);
        }
        self.path.on_host_report();
        if matches!(core.phase, Phase::Probing) {
            let report = Header { seq: report.seq - HOST_PROBES, ..*report };
            let outcome = self.handshake.on_report(core.now, &report, &core.params);
            self.on_outcome(core, outcome);
        }
        self.settle(core);
    }

    fn poll_transmit(&mut self, core: &mut Core, out: &mut [u8]) -> Option<Transmit> {
        self.send_probe(core, out).or_else(|| match core.phase {
            Phase::Ready => self.send_chunk(core, out),
            _ => None,
        })
    }

    fn poll_timeout(&self, core: &Core) -> Option<Time> {
        let work = match &core.phase {
            Phase::Probing if !self.host_answered => self.handshake.deadline(),
            Phase::Ready => {
                let tail = core.tail_probe(self.is_at_end(core)).map(|(at, _)| at);
                tail.into_iter().chain(core.timers().next().map(|(at, _)| at)).min()
            }
            Phase::Failed(_) => return None,
            _ => None,
        };
        work.into_iter().chain(self.path.deadline()).min()
    }

    fn on_timeout(&mut self, core: &mut Core) {
        match &core.phase {
            Phase::Probing if !self.host_answered => {
                let outcome = self.handshake.on_timeout(core.now, &core.params);
                self.on_outcome(core, outcome);
            }
            Phase::Ready => self.expire(core),
            _ => {}
        }
        if self.path.on_timeout(core.now) {
            on_direct(core);
        }
        self.settle(core);
    }

    fn on_unknown_job(&mut self, core: &mut Core) {
        if self.path.on_unknown_job() {
            on_direct(core);
        }
        self.settle(core);
    }

    fn checked_path(&self) -> CheckedPath {
        let received = self.base as u32;
        match self.path.is_direct() {
            true => CheckedPath { to: self.host, numbers: HOST_PROBES, received },
            false => CheckedPath { to: self.aggregator, numbers: 0, received },
        }
    }

    fn path_lost(&self, why: JobError) -> JobError {
        let why = match why {
            JobError::NoReply { probes, waited_ms } => JobError::HostSilent { probes, waited_ms },
            why => why,
        };
        JobError::PathLost { reason: why.to_string() }
    }

    fn take_over(&mut self, core: &mut Core) {
        // No worker was further than a window ahead of the first chunk that is not summed.
        self.settle_from(core, self.base + u64::from(self.params.window));
    }

    fn renew(&mut self, core: &mut Core, epoch: u16, resume: u32) {
        core.params.epoch = epoch;
        let ahead = resume.wrapping_sub(self.base as u32);
        // This worker's first chunk without a result is summed already, or it is that one.
        let resume = self.base + u64::from(if i32::try_from(ahead).is_ok() { ahead } else { 0 });
        self.slot_map = self.slot_map.reset();
        self.entries.iter_mut().for_each(|entry| entry.exponent = UNKNOWN);
        self.settle_from(core, resume + u64::from(self.params.window));
        core.in_flight.mark_all_lost();
        // The new worker has begun no operation yet.
        core.confirmed = 0;
        self.refresh_gauges(core);
    }
}

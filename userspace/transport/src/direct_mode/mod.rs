//! The direct mode (MLT): tensors go from worker to worker, without an aggregator and without an order of
//! packets.
//!
//! An operation is a schedule of transfers between two workers each. A transfer ends as soon as all but the
//! fraction has arrived that may be missing. There is no timer per packet: after the last chunk the sender
//! asks what is missing.
//!
//! | module | contents |
//! | --- | --- |
//! | `params` | a worker's parameters of a direct job |
//! | `schedule` | the transfers of an operation: by the owners of blocks, or around the ring |
//! | `running` | the state of an operation |
//! | `transfer` | the two ends of a transfer |
//! | `agreement` | what both ends agree on before data |
//! | `flow` | the traffic with one peer |
//! | `outstanding` | the paths of its packets |
//! | `pass` | the losses between two reports |
//! | `rate` | the sending rate, by round trips and losses |
//! | `values` | the reduction of received values |
//! | `receive`, `transmit` | packets |

mod agreement;
mod flow;
mod outstanding;
pub(crate) mod params;
mod pass;
mod rate;
mod receive;
mod running;
mod schedule;
mod transfer;
mod transmit;
mod values;

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use sumac_job::{DType, NonFinitePolicy};
use sumac_wire::{Header, Kind, Reason, header::flag};

pub(crate) use self::values::first_not_finite;
pub use self::{
    agreement::Agreement,
    params::DirectParams,
    schedule::{Exchange, Pattern},
};
use self::{
    flow::{Control, Flow},
    running::Running,
    schedule::{Action, Step, TRANSFER, steps},
    transfer::{Part, Receiver, Sender, TransferId},
    values::{Reducer, WireForm},
};
use crate::{
    budget::FixedWindow,
    chunk::Span,
    convert::Arithmetic,
    engine_core::{Budget, Core, CoreParams, Phase},
    error::{JobError, OpError, ParamError},
    in_flight::InFlight,
    mode::{CheckedPath, ModeProtocol},
    operation::Operation,
    packet::Packet,
    params::{JobParams, Tuning},
    peer::{PeerId, PeerRole, PeerTable},
    probe_timeout::ProbeTimeout,
    time::{Time, nanos},
    transmit::Transmit,
};

/// The direct mode of one lane. Peers have their ranks as ids.
#[derive(Serialize, Deserialize)]
pub(crate) struct DirectMode {
    rank: u16,
    /// By rank; this worker's own has no traffic.
    flows: Box<[Flow]>,
    /// By the operation's number in the stream.
    running: BTreeMap<u64, Running>,
    /// The rank that sent last.
    turn: usize,
    /// A chunk's values, before they are added.
    scratch: Vec<u8>,
}

impl DirectMode {
    pub fn new(
        params: &DirectParams,
        job: &JobParams,
        peers: &PeerTable,
        tuning: &Tuning,
    ) -> Result<(DirectMode, CoreParams), ParamError> {
        let is_worker = |rank| peers.get(PeerId(rank)).is_some_and(|peer| peer.role == PeerRole::Worker);
        if !(0..job.world).all(is_worker) {
            return Err(ParamError::NoPeer { role: "worker of every rank" });
        }
        let own = job.token ^ u64::from(job.rank) << 16 ^ u64::from(job.lane);
        let flow = |rank: u16| Flow::new(params, tuning, job.elements, own ^ u64::from(rank) << 32);
        let mut flows: Box<[Flow]> = (0..job.world).map(flow).collect();
        if let Some(own) = flows.get_mut(usize::from(job.rank)) {
            own.handshake = None;
        }
        let core = CoreParams {
            in_flight: InFlight::new(std::iter::empty()),
            budget: Budget::Fixed(FixedWindow(params.window)),
            probe_timeout: ProbeTimeout::with_jitter(0),
            is_cautious: false,
        };
        let mode =
            DirectMode { rank: job.rank, flows, running: BTreeMap::new(), turn: 0, scratch: Vec::new() };
        Ok((mode, core))
    }

    /// Processes the acknowledgement in a peer's packet, after which the rate may be another.
    fn on_acknowledged(&mut self, core: &mut Core, rank: usize, header: &Header) {
        let is_marked = header.has(flag::ECN_ECHO);
        let flow = &mut self.flows[rank];
        let echo = (header.kind != Kind::Report as u8).then_some(header.timestamp);
        let (rtt, is_halved) = flow.on_acknowledged(core.now, header.received, echo, is_marked);
        rtt.into_iter().for_each(|rtt| core.stats.round_trips.record(rtt));
        core.stats.marked += u64::from(is_marked);
        core.stats.halvings += u64::from(is_halved);
        self.refresh_gauges(core);
    }

    /// Processes the bits of an acknowledgement. The statistics have the smallest weight of a path towards
    /// any peer.
    fn on_arrivals(&mut self, core: &mut Core, rank: usize, packet: &Packet<'_>) {
        let Packet { header, elements, .. } = packet;
        let Flow { outstanding, rtt, next_packet, .. } = &mut self.flows[rank];
        let range = [header.offset, header.received, *next_packet as u32];
        if !outstanding.on_acknowledged(core.now, range, elements, rtt, &mut core.stats.paths) {
            return;
        }
        core.stats.paths.weight.fill(u64::MAX);
        for flow in &self.flows {
            let weights = core.stats.paths.weight.iter_mut().zip(flow.outstanding.weights());
            weights.for_each(|(least, weight)| *least = weight.min(*least));
        }
    }

    /// Updates the statistics that are states: of the round trips the longest, of the others the sums over
    /// all peers.
    fn refresh_gauges(&self, core: &mut Core) {
        let flows = || (0..).zip(&self.flows).filter(|(rank, _)| *rank != self.rank).map(|(_, flow)| flow);
        let stats = &mut core.stats;
        stats.rate_bps = flows().map(|flow| flow.rate.rate()).sum();
        stats.in_flight = flows().map(|flow| flow.in_flight() as u64).sum();
        stats.cwnd = flows().map(|flow| u64::from(flow.window())).sum();
        let slowest = flows().max_by_key(|flow| flow.rtt.smoothed());
        stats.rtt = slowest.map(|flow| flow.rtt.stats(0)).unwrap_or_default();
    }

    /// Ends the handshake when every peer has answered.
    fn settle(&mut self, core: &mut Core) {
        if matches!(core.phase, Phase::Probing) && self.flows.iter().all(|flow| flow.handshake.is_none()) {
            core.phase = Phase::Ready;
            self.refresh_gauges(core);
        }
    }

    /// Begins the steps of an operation that wait for no other, and ends it after the last one.
    fn advance(&mut self, core: &mut Core, number: u64) {
        while let Some(index) = self.running.get_mut(&number).and_then(Running::begin_next) {
            self.begin(core, number, index);
        }
        let Some(running) = self.running.remove(&number) else { return };
        if !running.is_done() {
            self.running.insert(number, running);
            return;
        }
        if running.is_faulty
            && let Some(pending) = core.stream.get_mut(number)
        {
            let last = pending.operation.base as usize + pending.operation.count.saturating_sub(1);
            pending.fault_unless(OpError::Peer { first: pending.operation.base as usize, last });
        }
        let operation = core.stream.get_mut(number).map(|pending| &mut pending.operation);
        let (bound, base) = operation.map_or((0.0, 0), |operation| {
            let size = operation.dtype.size();
            let is_moved = operation.arithmetic == Arithmetic::Bits;
            for Range { start, end } in running.written(&operation.takes, is_moved) {
                operation.buffer.written(start * size, (end - start) * size);
            }
            (operation.loss_bound, operation.base)
        });
        core.stream.finish(number, core.now, running.loss(bound, base as usize));
    }

    fn begin(&mut self, core: &mut Core, number: u64, index: usize) {
        let Some(running) = self.running.get(&number) else { return };
        let (Some(step), Some(pending)) = (running.step(index).cloned(), core.stream.get_mut(number)) else {
            return;
        };
        let Step { action, peer, range, number: step, .. } = step;
        let id = TransferId { exchange: running.number, step };
        let operation = &mut pending.operation;
        let per_word = WireForm::of(core.codec.codec, operation).values_per_word();
        let chunk = core.codec.words * per_word;
        let part = Part { operation: number, step: index, range, chunk, per_word };
        let (priority, bound, now) = (operation.priority, operation.loss_bound, core.now);
        let Some(flow) = self.flows.get_mut(usize::from(peer)) else { return };
        match action {
            Action::Send => {
                flow.sends.insert(id, Sender::new(part, priority, running.number, self.rank));
                if let Some(theirs) = flow.take_early(id) {
                    self.agree(core, peer, id, &theirs);
                }
            }
            Action::Add | Action::Write { .. } => {
                flow.receives.insert(id, Receiver::new(now, part, bound));
                self.announce(core, peer, id);
            }
            Action::Finish => {
                let is_own_fault = finish_block(core, number, &part, running.is_faulty);
                if let Some(running) = self.running.get_mut(&number) {
                    running.is_faulty |= is_own_fault;
                    running.end(index);
                }
            }
        }
    }

    fn end_step(&mut self, core: &mut Core, part: &Part) {
        if let Some(running) = self.running.get_mut(&part.operation) {
            running.end(part.step);
        }
        self.advance(core, part.operation);
    }

    /// A transfer as this worker means it.
    fn agreement(core: &Core, part: &Part, loss_bound: f32) -> Option<Agreement> {
        let operation = &core.stream.get(part.operation)?.operation;
        let (count, chunk) = (part.range.len() as u32, part.chunk as u32);
        Some(Agreement { signature: operation.signature, dtype: operation.dtype, count, chunk, loss_bound })
    }

    /// Ends an operation with an error, and all that it has begun.
    fn fail_operation(&mut self, core: &mut Core, number: u64, why: OpError) {
        self.running.remove(&number);
        for flow in &mut self.flows {
            flow.sends.retain(|_, send| send.part.operation != number);
            flow.receives.retain(|_, receive| receive.part.operation != number);
        }
        if let Some(pending) = core.stream.get_mut(number) {
            pending.fault_unless(why);
        }
        core.stream.finish(number, core.now, None);
    }

    fn expire(&mut self, core: &mut Core) {
        let now = core.now;
        let mut due = Vec::new();
        for (rank, flow) in (0..).zip(&mut self.flows) {
            let announced = flow
                .receives
                .iter_mut()
                .filter_map(|(id, receive)| receive.announces(now, &flow.rtt).then_some((rank, *id)));
            due.extend(announced);
            if flow.stalled_at().is_some_and(|at| at <= now) {
                flow.restart(now);
                let stalled = flow.sends.iter_mut().find(|(_, send)| send.has_chunks());
                let probe = stalled.map(|(id, send)| {
                    send.probe_stalled(now);
                    Control::Probe { id: *id, probe: send.probes }
                });
                probe.into_iter().for_each(|probe| flow.push(probe));
            }
            let mut probes = Vec::new();
            for (id, send) in &mut flow.sends {
                if send.due().is_some_and(|at| at <= now) {
                    send.asked(now, flow.rtt.timeout(send.unanswered as usize));
                    probes.push(Control::Probe { id: *id, probe: send.probes });
                }
            }
            probes.into_iter().for_each(|probe| flow.push(probe));
            let silent = flow.sends.values().filter_map(Sender::unanswered_since).min();
            let waited = silent.map_or(0, |since| now.since(since));
            if waited >= nanos(core.params.longest_outage) {
                let reason = format!("does not answer probes on the data path for {} ms", waited / 1_000_000);
                return core.fail(JobError::Worker { rank, reason });
            }
        }
        for (rank, id) in due {
            self.announce(core, rank, id);
        }
        self.refresh_gauges(core);
    }

    fn deadlines(&self) -> impl Iterator<Item = Time> {
        self.flows.iter().flat_map(|flow| {
            let sends = flow.sends.values().filter_map(Sender::due);
            let receives = flow.receives.values().filter_map(Receiver::due);
            let handshake = flow.handshake.iter().filter_map(crate::handshake::Handshake::deadline);
            sends.chain(receives).chain(handshake).chain(flow.stalled_at())
        })
    }
}

/// Ends the reduction of a block at its owner: the division of a mean. Returns whether an own value is not
/// finite, which is noted unless another worker has such a value.
fn finish_block(core: &mut Core, number: u64, part: &Part, is_faulty: bool) -> bool {
    let JobParams { local_world, .. } = core.params;
    let refuses = core.params.not_finite == NonFinitePolicy::Error && !is_faulty;
    let Some(pending) = core.stream.get_mut(number) else { return false };
    let Operation { dtype, arithmetic, .. } = pending.operation;
    let (first, size) = (part.range.start, dtype.size());
    let fault =
        if refuses { own_fault(&mut pending.operation, part.range.start, part.range.len()) } else { None };
    let is_faulty = fault.is_some();
    fault.into_iter().for_each(|fault| pending.own_fault(fault));
    if arithmetic == Arithmetic::Mean {
        let workers = pending.operation.exchange.as_ref().map_or(1, |exchange| exchange.contributions());
        let values = pending.operation.buffer.output(first * size, part.range.len() * size);
        // A contribution of floats is a mean already.
        let ranks = if dtype == DType::Int32 { local_world } else { 1 };
        Reducer { dtype, arithmetic }.scale(values, 1.0 / (f64::from(workers) * f64::from(ranks)));
    }
    is_faulty
}

/// The fault of the first value of this worker, among so many from `first` on, that is not finite.
fn own_fault(operation: &mut Operation, first: usize, values: usize) -> Option<OpError> {
    // A server sends others' sums.
    if operation.gives.is_empty() {
        return None;
    }
    let (size, values) = (operation.dtype.size(), first..first + values);
    operation.prepare(&values);
    let input = operation.input(&values);
    let at = first_not_finite(operation.dtype, input)?;
    let value = crate::chunk::number(operation.dtype, &input[at * size..]) as f32;
    Some(OpError::NotFinite { index: operation.base as usize + first + at, value })
}

/// Copies the values that this worker both gives and takes to the output, where that is other memory.
fn copy_own(operation: &mut Operation) {
    const STEP: usize = 16 << 10;
    let size = operation.dtype.size();
    let first = operation.gives.start.max(operation.takes.start) * size;
    let end = operation.gives.end.min(operation.takes.end) * size;
    operation.buffer.prepare(first, end.saturating_sub(first));
    let mut values = [0; STEP];
    for at in (first..end).step_by(STEP) {
        let len = STEP.min(end - at);
        let input = operation.buffer.input(at, len);
        let from = input.as_ptr();
        let len = input.len();
        values[..len].copy_from_slice(input);
        let output = operation.buffer.output(at, len);
        if std::ptr::eq(from, output.as_ptr()) {
            return;
        }
        let len = output.len().min(len);
        output[..len].copy_from_slice(&values[..len]);
    }
}

/// Has a server's block begin as the reduction of no values.
fn clear(operation: &mut Operation, block: &Range<usize>) {
    let (dtype, size) = (operation.dtype, operation.dtype.size());
    let reducer = Reducer { dtype, arithmetic: operation.arithmetic };
    reducer.clear(operation.buffer.output(block.start * size, block.len() * size));
}

/// Whether this worker receives these values.
fn takes(operation: &Operation, span: Span) -> bool {
    operation.takes.start <= span.first && span.first + span.values <= operation.takes.end
}

impl ModeProtocol for DirectMode {
    fn on_submit(&mut self, core: &mut Core, number: u64) {
        if core.has_failed() {
            return;
        }
        let (rank, world) = (self.rank, core.params.world);
        let Some(pending) = core.stream.get_mut(number) else { return };
        let Some(exchange) = pending.operation.exchange.clone() else { return };
        match exchange.served_by(rank) {
            Some(block) => clear(&mut pending.operation, &block),
            None => copy_own(&mut pending.operation),
        }
        let steps = steps(&exchange, rank, world, pending.operation.count);
        let mut running = Running::new(exchange.number, steps, world);
        // Values that are not finite are found where they are sent, and only where they matter.
        let fault = pending.operation.buffer.fault().map(|fault| fault.error);
        if let Some(fault) = fault.filter(|fault| !matches!(fault, OpError::NotFinite { .. })) {
            pending.own_fault(fault);
            running.is_faulty = true;
        }
        self.running.insert(number, running);
        self.advance(core, number);
    }

    fn on_packet(&mut self, core: &mut Core, packet: &Packet<'_>) -> Result<(), Reason> {
        self.receive(core, packet)
    }

    fn on_result(&mut self, _core: &mut Core, _packet: &Packet<'_>) -> Result<(), Reason> {
        Err(Reason::BadType)
    }

    fn on_report(&mut self, _core: &mut Core, _report: &Header) {}

    fn peer_left(&mut self, core: &mut Core, peer: PeerId) {
        let rank = usize::from(peer.0);
        let Some(flow) = self.flows.get(rank) else { return };
        // It has ended all its operations, so it has enough of what it has agreed on, and its last stop may
        // be lost.
        let begun = flow.sends.iter().filter(|(_, send)| send.has_begun());
        let ended: Vec<TransferId> = begun.map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|id| self.on_stop(core, rank, id));
    }

    fn unposted(&self) -> Vec<u64> {
        let is_transfer = |id: &TransferId| id.step == TRANSFER;
        let unposted = self.flows.iter().flat_map(|flow| {
            let sends = flow.sends.iter().filter(|(id, send)| is_transfer(id) && !send.has_begun());
            let receives =
                flow.receives.iter().filter(|(id, receive)| is_transfer(id) && receive.due().is_some());
            sends.map(|(_, send)| &send.part).chain(receives.map(|(_, receive)| &receive.part))
        });
        unposted.map(|part| part.operation).collect()
    }

    fn checked_path(&self) -> CheckedPath {
        CheckedPath { to: PeerId(self.rank), numbers: 0, received: 0 }
    }

    fn poll_transmit(&mut self, core: &mut Core, out: &mut [u8]) -> Option<Transmit> {
        self.settle(core);
        self.transmit(core, out)
    }

    fn poll_timeout(&self, core: &Core) -> Option<Time> {
        if core.has_failed() { None } else { self.deadlines().min() }
    }

    fn on_timeout(&mut self, core: &mut Core) {
        for rank in 0..self.flows.len() {
            let Some(handshake) = &mut self.flows[rank].handshake else { continue };
            if let Some(outcome) = handshake.on_timeout(core.now, &core.params) {
                self.on_handshake(core, rank, outcome);
            }
        }
        if !core.has_failed() {
            self.expire(core);
        }
    }
}

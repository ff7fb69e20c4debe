//! Received packets of the direct mode.

use sumac_wire::{
    Header, Kind, Reason,
    header::{Format, flag},
};

use super::{
    Agreement, DirectMode,
    flow::Control,
    schedule::{Action, TRANSFER},
    takes,
    transfer::{Receiver, TransferId},
    transmit,
    values::{Reducer, WireForm},
};
use crate::{
    engine_core::Core,
    error::{JobError, OpError},
    handshake::Outcome,
    packet::Packet,
};

fn id_of(header: &Header) -> TransferId {
    TransferId { exchange: header.tensor, step: header.contributors }
}

impl DirectMode {
    pub(super) fn receive(&mut self, core: &mut Core, packet: &Packet<'_>) -> Result<(), Reason> {
        let header = &packet.header;
        let rank = usize::from(packet.from.0);
        if rank == usize::from(self.rank) || rank >= self.flows.len() {
            return Err(Reason::WrongSource);
        }
        if header.lane != core.params.lane {
            return Err(Reason::WrongPlace);
        }
        // An answer has as many elements as its probe.
        if header.elements > core.params.elements {
            return Err(Reason::WrongElements);
        }
        match Kind::from_number(header.kind) {
            Some(Kind::Contribution) => self.on_data(core, rank, packet),
            Some(Kind::Probe) if header.has(flag::QUERY) => {
                self.on_probe(rank, header);
                Ok(())
            }
            Some(Kind::Probe) => {
                self.flows[rank].push(Control::Answer(Header { kind: Kind::Report as u8, ..*header }));
                Ok(())
            }
            Some(Kind::Report) if header.has(flag::QUERY) => self.on_report_of(core, rank, packet),
            Some(Kind::Report) => {
                core.stats.reports += 1;
                let flow = &mut self.flows[rank];
                let Some(handshake) = &mut flow.handshake else { return Ok(()) };
                if let Some(outcome) = handshake.on_report(core.now, header, &core.params) {
                    flow.on_echo(core.now, header.timestamp);
                    self.on_handshake(core, rank, outcome);
                }
                Ok(())
            }
            Some(Kind::Control) if header.format == Format::Raw as u8 => {
                self.on_acknowledged(core, rank, header);
                self.on_arrivals(core, rank, packet);
                Ok(())
            }
            Some(Kind::Control) => self.on_agreement(core, rank, packet),
            Some(Kind::Stop) => {
                self.on_stop(core, rank, id_of(header));
                Ok(())
            }
            _ => Err(Reason::BadType),
        }
    }

    pub(super) fn on_handshake(&mut self, core: &mut Core, rank: usize, outcome: Outcome) {
        match outcome {
            Outcome::Ready(_) => {
                self.flows[rank].handshake = None;
                self.settle(core);
            }
            Outcome::Failed(why) => {
                let why = match why {
                    JobError::NoReply { probes, waited_ms } => {
                        format!(
                            "does not answer: {probes} probes in {waited_ms} ms; is its daemon up, and do \
                            UDP packets reach it?"
                        )
                    }
                    why => format!("cannot be reached: {why}"),
                };
                core.fail(JobError::Worker { rank: rank as u16, reason: why });
            }
        }
    }

    fn on_agreement(&mut self, core: &mut Core, rank: usize, packet: &Packet<'_>) -> Result<(), Reason> {
        let theirs = Agreement::read(packet.elements).ok_or(Reason::WrongElements)?;
        let id = id_of(&packet.header);
        if packet.header.has(flag::MISMATCH) {
            // The sender has something else than this worker expects.
            let Some(receive) = self.flows[rank].receives.get(&id) else { return Err(Reason::Stale) };
            let part = receive.part.clone();
            let ours = DirectMode::agreement(core, &part, receive.loss_bound).ok_or(Reason::Internal)?;
            self.disagree(core, rank as u16, part.operation, &ours, &theirs);
            return Ok(());
        }
        if packet.header.has(flag::QUERY) {
            let receive = self.flows[rank].receives.get_mut(&id).ok_or(Reason::Stale)?;
            receive.agreed();
            return Ok(());
        }
        if self.flows[rank].sends.contains_key(&id) {
            self.agree(core, rank as u16, id, &theirs);
        } else {
            self.flows[rank].on_early(id, theirs);
        }
        Ok(())
    }

    /// Begins a transfer if its receiver means the same. A receiver that asks again is told so: others may be
    /// sent before.
    pub(super) fn agree(&mut self, core: &mut Core, rank: u16, id: TransferId, theirs: &Agreement) {
        let flow = &mut self.flows[usize::from(rank)];
        let Some(send) = flow.sends.get_mut(&id) else { return };
        let part = send.part.clone();
        let Some(ours) = DirectMode::agreement(core, &part, theirs.loss_bound) else { return };
        if ours.fits(theirs) {
            let is_repeated = send.has_begun();
            send.begin();
            if is_repeated {
                flow.push(Control::Agreement { id, agreement: ours, flags: flag::QUERY });
            }
            return;
        }
        flow.refuse(id, ours);
        self.disagree(core, rank, part.operation, &ours, theirs);
    }

    /// Another operation of a collective ends the job, as in the other modes; a transfer between two ends
    /// alone.
    fn disagree(&mut self, core: &mut Core, rank: u16, number: u64, ours: &Agreement, theirs: &Agreement) {
        let is_transfer = core.stream.get(number).is_some_and(|pending| {
            let pattern = pending.operation.exchange.as_ref().map(|exchange| &exchange.pattern);
            !matches!(pattern, Some(super::Pattern::Collective { .. }))
        });
        if is_transfer {
            let (ours, theirs) = (ours.to_string(), theirs.to_string());
            return self.fail_operation(core, number, OpError::Disagrees { rank, ours, theirs });
        }
        core.stats.mismatches += 1;
        let lane = core.params.lane;
        let (seq, base) = core
            .stream
            .get(number)
            .map_or((0, 0), |pending| (pending.first_seq() as u32, pending.operation.base));
        core.fail(JobError::Mismatch {
            lane,
            seq,
            base,
            signature: ours.signature,
            theirs: theirs.signature,
        });
    }

    fn on_probe(&mut self, rank: usize, header: &Header) {
        let (id, flow) = (id_of(header), &mut self.flows[rank]);
        // Data comes only after an agreement, so an unknown transfer has ended here.
        if flow.receives.contains_key(&id) {
            flow.push(Control::Report { id, probe: header.seq, first: 0 });
        } else {
            flow.push(Control::Stop { id });
        }
    }

    fn on_report_of(&mut self, core: &mut Core, rank: usize, packet: &Packet<'_>) -> Result<(), Reason> {
        let header = &packet.header;
        core.stats.reports += 1;
        self.on_acknowledged(core, rank, header);
        // Chunks that were sent before the probe have arrived, or are lost.
        self.flows[rank].restart(core.now);
        self.refresh_gauges(core);
        let (id, flow) = (id_of(header), &mut self.flows[rank]);
        let is_taken = flow.on_report(core.now, id, header.seq, header.offset, packet.elements);
        if is_taken { Ok(()) } else { Err(Reason::Stale) }
    }

    //= mlt#4.2.3 bounded loss with stop, probe and report
    pub(super) fn on_stop(&mut self, core: &mut Core, rank: usize, id: TransferId) {
        if let Some(send) = self.flows[rank].sends.remove(&id) {
            self.end_step(core, &send.part);
        }
    }

    fn on_data(&mut self, core: &mut Core, rank: usize, packet: &Packet<'_>) -> Result<(), Reason> {
        let (header, flow) = (&packet.header, &mut self.flows[rank]);
        let id = id_of(header);
        let is_acknowledged = flow.on_data(header.next_seq, packet.is_marked, header.has(flag::QUERY));
        if is_acknowledged {
            flow.acknowledge(header.timestamp);
        }
        let Some(receive) = flow.receives.get_mut(&id) else {
            // The stop may be lost.
            if is_acknowledged {
                flow.push(Control::Stop { id });
            }
            return Err(Reason::Duplicate);
        };
        place(core, receive, packet)?;
        if !receive.is_new(header.seq) {
            return Err(Reason::Duplicate);
        }
        let (operation, step) = (receive.part.operation, receive.part.step);
        let (span, is_enough) = (receive.part.span(header.seq), receive.is_enough());
        let Some(running) = self.running.get_mut(&operation) else { return Err(Reason::Internal) };
        let action = running.step(step).map_or(Action::Finish, |step| step.action);
        running.is_faulty |= header.has(flag::NOT_FINITE);
        let pending = core.stream.get_mut(operation).ok_or(Reason::Internal)?;
        let form = WireForm::of(core.codec.codec, &pending.operation);
        let dtype = pending.operation.dtype;
        let bytes = span.values * dtype.size();
        let output = pending.operation.buffer.output(span.first * dtype.size(), bytes);
        let held = output.len() / dtype.size();
        let mut overflown = None;
        if action == Action::Add {
            self.scratch.resize(bytes, 0);
            form.decode(header.exponent, packet.elements, &mut self.scratch);
            let reducer = Reducer { dtype, arithmetic: pending.operation.arithmetic };
            overflown = reducer.add(output, &self.scratch);
        } else {
            form.decode(header.exponent, packet.elements, output);
        }
        // A barrier has a value that nobody takes.
        if held < span.values && takes(&pending.operation, span) {
            let index = pending.operation.base as usize + span.first + held;
            pending.own_fault(OpError::ShortBuffer { index });
        }
        if overflown.is_some() {
            pending.sum_fault(span);
        }
        // The daemon takes results as a sign that the job's collectives go on.
        core.stats.results += u64::from(id.step != TRANSFER);
        core.stats.elements_received += span.values as u64;
        if is_enough {
            self.end_receive(core, rank, id);
        }
        Ok(())
    }

    /// Ends a transfer of which enough has arrived: the sender may stop, and what is missing gets its values.
    fn end_receive(&mut self, core: &mut Core, rank: usize, id: TransferId) {
        let flow = &mut self.flows[rank];
        let Some(receive) = flow.receives.remove(&id) else { return };
        flow.push(Control::Stop { id });
        let (missing, part) = (receive.missing(), receive.part);
        let lost = u64::from(part.chunks() - receive.count);
        core.stats.chunks_lost += lost;
        let Some(running) = self.running.get_mut(&part.operation) else { return };
        if let (Some(step), Some(pending)) = (running.step(part.step), core.stream.get_mut(part.operation)) {
            let operation = &mut pending.operation;
            let reducer = Reducer { dtype: operation.dtype, arithmetic: operation.arithmetic };
            let size = operation.dtype.size();
            if let Action::Write { held, keeps } = step.action {
                let workers = operation.exchange.as_ref().map_or(1, |exchange| exchange.contributions());
                let factor = transmit::factor(operation.arithmetic, held, workers);
                for range in &missing {
                    let values = operation.buffer.output(range.start * size, range.len() * size);
                    match (factor, keeps) {
                        (Some(factor), _) => reducer.scale(values, factor),
                        (None, true) => {}
                        //= mlt#4.2.1 missing values are zero or kept
                        (None, false) => values.fill(0),
                    }
                }
            }
        }
        running.received(rank, part.range.len(), missing);
        self.end_step(core, &part);
    }
}

/// Checks that a chunk is where its transfer has it.
fn place(core: &Core, receive: &Receiver, packet: &Packet<'_>) -> Result<(), Reason> {
    let header = &packet.header;
    if header.seq >= receive.part.chunks() {
        return Err(Reason::WrongPlace);
    }
    let span = receive.part.span(header.seq);
    if usize::from(header.elements) != span.words {
        return Err(Reason::WrongElements);
    }
    let operation = &core.stream.get(receive.part.operation).ok_or(Reason::Internal)?.operation;
    if header.format != WireForm::of(core.codec.codec, operation).format() as u8 {
        return Err(Reason::BadFormat);
    }
    if header.offset != operation.base.wrapping_add(span.first as u32) {
        return Err(Reason::WrongPlace);
    }
    Ok(())
}

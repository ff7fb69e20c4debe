//! Packets that the direct mode sends.

use sumac_wire::{
    Header, Kind,
    admit::payload_len,
    header::{Format, HEADER_LEN, NO_SLOT, flag},
    tos,
};

use super::{
    DirectMode, agreement::WORDS, flow::Control, own_fault, takes, transfer::TransferId, values::WireForm,
};
use crate::{
    budget::MaySend,
    convert::Arithmetic,
    engine_core::Core,
    packet,
    peer::PeerId,
    time::Time,
    transmit::{Tag, Transmit},
};

/// The factor for values of a reduction that did not arrive, of which those here are the reduction of `held`
/// workers' values out of `all`. So a worker goes on with what it has (MLT appendix A). `None`: they stay.
pub(super) fn factor(arithmetic: Arithmetic, held: u16, all: u16) -> Option<f64> {
    match arithmetic {
        _ if held == 0 => None,
        Arithmetic::Sum => Some(f64::from(all) / f64::from(held)),
        Arithmetic::Mean => Some(1.0 / f64::from(held)),
        Arithmetic::Max | Arithmetic::Min | Arithmetic::Bits => None,
    }
}

fn header(core: &Core, kind: Kind, id: TransferId) -> Header {
    let header = packet::header(&core.params, kind, core.now);
    Header { slot: NO_SLOT, tensor: id.exchange, contributors: id.step, ..header }
}

impl DirectMode {
    /// Sends to a transfer's sender what this worker expects.
    pub(super) fn announce(&mut self, core: &Core, rank: u16, id: TransferId) {
        let Some(flow) = self.flows.get_mut(usize::from(rank)) else { return };
        let Some(receive) = flow.receives.get_mut(&id) else { return };
        // The first time.
        receive.announces(core.now, &flow.rtt);
        if let Some(agreement) = DirectMode::agreement(core, &receive.part, receive.loss_bound) {
            flow.push(Control::Agreement { id, agreement, flags: 0 });
        }
    }

    /// Answers and control packets first, then data: the peers in turns.
    pub(super) fn transmit(&mut self, core: &mut Core, out: &mut [u8]) -> Option<Transmit> {
        for rank in 0..self.flows.len() {
            if let Some(control) = self.flows[rank].pop() {
                return Some(self.send_control(core, rank, control, out));
            }
            let flow = &mut self.flows[rank];
            if let Some(handshake) = &mut flow.handshake
                && let Some((elements, number)) = handshake.poll(core.now, core.params.elements)
            {
                return Some(core.send_probe(0, elements, number, PeerId(rank as u16), out));
            }
        }
        core.paced_until = None;
        for turn in 1..=self.flows.len() {
            let rank = (self.turn + turn) % self.flows.len();
            let Some(id) = self.flows[rank].next_sender() else { continue };
            match self.flows[rank].may_send(core.now) {
                MaySend::Now => {
                    self.turn = rank;
                    if let Some(sent) = self.send_chunk(core, rank, id, out) {
                        return Some(sent);
                    }
                }
                MaySend::At(at) => earliest(&mut core.paced_until, at),
                MaySend::Blocked => {}
            }
        }
        None
    }

    fn send_control(&mut self, core: &mut Core, rank: usize, control: Control, out: &mut [u8]) -> Transmit {
        let flow = &mut self.flows[rank];
        let none = TransferId { exchange: 0, step: 0 };
        let payload = &mut out[HEADER_LEN..];
        let header = match control {
            Control::Answer(answer) => {
                payload[..usize::from(answer.elements) * 4].fill(0);
                answer
            }
            Control::Acknowledgement { echo, is_marked } => {
                let flags = if is_marked { flag::ECN_ECHO } else { 0 };
                let (offset, elements) = flow.arrived.write(payload);
                let (received, format) = (flow.arrived.highest(), Format::Raw as u8);
                let header = header(core, Kind::Control, none);
                Header { received, offset, elements, format, timestamp: echo, flags, ..header }
            }
            Control::Stop { id } => header(core, Kind::Stop, id),
            Control::Probe { id, probe } => {
                core.stats.probes_sent += 1;
                Header { seq: probe, flags: flag::QUERY, ..header(core, Kind::Probe, id) }
            }
            Control::Agreement { id, agreement, flags } => {
                agreement.write(payload);
                Header { flags, elements: WORDS, ..header(core, Kind::Control, id) }
            }
            Control::Report { id, probe, first } => {
                let most = core.params.elements;
                let receive = flow.receives.get(&id);
                let words = receive.map_or(0, |receive| receive.report(first, most, payload));
                let (chunks, next) =
                    (receive.map_or(0, |receive| receive.part.chunks()), first + u32::from(words) * 32);
                if next < chunks {
                    flow.push(Control::Report { id, probe, first: next });
                }
                let received = flow.arrived.highest();
                let header = header(core, Kind::Report, id);
                Header { seq: probe, offset: first, elements: words, flags: flag::QUERY, received, ..header }
            }
        };
        core.next_packet += 1;
        let path = flow.outstanding.control_path(&mut core.stats.paths);
        core.transmit(&header, PeerId(rank as u16), path, tos::CONTROL, out)
    }

    fn send_chunk(
        &mut self,
        core: &mut Core,
        rank: usize,
        id: TransferId,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let now = core.now;
        let flow = &mut self.flows[rank];
        let send = flow.sends.get_mut(&id)?;
        let (priority, part) = (send.priority, send.part.clone());
        let (chunk, is_resend) = send.next()?;
        // A probe has a queue of its own in the network. It would overtake the chunks, and those that wait in
        // queues would be sent again.
        send.ask_when_done(now, flow.rtt.smoothed());
        flow.took_turn(id);
        let span = part.span(chunk);
        let len = payload_len(span.words as u16);
        let (number, path) = flow.on_sent(now, id, len, &mut core.stats.paths);
        let asks = if flow.is_full() { flag::QUERY } else { 0 };
        let refuses = core.params.not_finite == sumac_job::NonFinitePolicy::Error;
        let mut header = Header {
            seq: chunk,
            elements: span.words as u16,
            next_seq: number,
            flags: if is_resend { flag::RESEND | asks } else { asks },
            ..header(core, Kind::Contribution, id)
        };
        let pending = core.stream.get_mut(part.operation)?;
        let operation = &mut pending.operation;
        let form = WireForm::of(core.codec.codec, operation);
        header.offset = operation.base.wrapping_add(span.first as u32);
        let (at, len) = (span.first * operation.dtype.size(), span.values * operation.dtype.size());
        // Values that this worker also receives are sent from the output, which holds the partial sum.
        let is_output = takes(operation, span);
        let values = if is_output {
            &*operation.buffer.output(at, len)
        } else {
            operation.buffer.prepare(at, len);
            operation.buffer.input(at, len)
        };
        let is_important = pending.importance.is_important(operation.dtype, || values);
        flow.reacts_to_marks = is_important.is_none();
        let tag = Tag { priority, is_important, by_precedence: false, reacts: !is_resend };
        let wire = &mut out[HEADER_LEN..payload_len(header.elements)];
        (header.format, header.exponent) = (form.format() as u8, form.encode(values, wire));
        if is_output && matches!(form, WireForm::Halves) {
            // The output gets the rounded values that the packet carries: all workers must have the same
            // bits. For further receivers, and when a chunk is sent again, this changes nothing.
            form.decode(header.exponent, wire, operation.buffer.output(at, len));
        }
        let is_reduced = operation.arithmetic != Arithmetic::Bits;
        let fault = (refuses && is_reduced).then(|| own_fault(operation, span.first, span.values)).flatten();
        let running = self.running.get_mut(&part.operation)?;
        if let Some(fault) = fault.filter(|_| !running.is_faulty) {
            pending.own_fault(fault);
            running.is_faulty = true;
        }
        if running.is_faulty {
            header.flags |= flag::NOT_FINITE;
        }
        core.stats.elements_sent += span.values as u64;
        if is_resend {
            core.stats.resent += 1;
        } else {
            core.stats.chunks_sent += 1;
        }
        core.next_packet += 1;
        Some(core.transmit(&header, PeerId(rank as u16), path, tag.byte(), out))
    }
}

fn earliest(at: &mut Option<Time>, other: Time) {
    *at = Some(at.map_or(other, |at| at.min(other)));
}

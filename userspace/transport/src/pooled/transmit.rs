//! The way out in the static mode.

use sumac_wire::{
    Header, Kind,
    admit::payload_len,
    header::{HEADER_LEN, exponent, flag},
};

use super::Pooled;
use crate::{
    chunk::Form,
    convert::Arithmetic,
    engine::{Core, Phase},
    error::JobError,
    handshake,
    slots::{Sent, Slot, State},
    time::Time,
    transmit::{PacketClass, Transmit, entropy, tag},
};

/// What a slot sends.
struct Packet {
    what: Sent,
    header: Header,
    dscp_ecn: u8,
}

impl Pooled {
    /// Writes the next packet: probes first, then lost chunks, then new ones.
    pub fn poll_transmit(&mut self, core: &mut Core, now: Time, out: &mut [u8]) -> Option<Transmit> {
        match &core.phase {
            Phase::Failed(_) | Phase::Measured(_) => None,
            Phase::Probing(_) | Phase::Measuring(_) => self.send_probe(core, now, out),
            Phase::Ready => self.send_chunk(core, now, out),
        }
    }

    fn send_chunk(&mut self, core: &mut Core, now: Time, out: &mut [u8]) -> Option<Transmit> {
        let slot = core.slots.next_to_send()?;
        let entry = *core.slots.get(slot);
        let is_first = entry.state != State::Lost;
        let Some(Packet { what, header, dscp_ecn }) = self.write_packet(core, now, slot, &entry, out) else {
            given_twice(core, &entry);
            return None;
        };
        let index = core.next_index;
        let len = payload_len(header.elements);
        core.next_index += 1;
        core.slots.launch(slot, now, index, core.backoff.level(), what, entry.op < core.begun);
        match (what, is_first) {
            (Sent::Elements, true) => core.stats.chunks_sent += 1,
            (Sent::Elements, false) => core.stats.resent += 1,
            (Sent::Round, true) => core.stats.exponent_rounds += 1,
            (Sent::Question, _) | (Sent::Round, false) => core.stats.questions += 1,
        }
        let is_faulty = header.has(flag::OVERFLOW | flag::NOT_FINITE);
        core.stats.chunks_faulty += u64::from(is_first && is_faulty);
        core.stats.bytes_sent += len as u64;
        core.stats.in_flight = core.slots.in_flight() as u64;
        let (to, entropy) = (self.aggregator, entropy(index));
        Some(Transmit { len, to, port_offset: core.shard(), entropy, dscp_ecn })
    }

    fn send_probe(&self, core: &mut Core, now: Time, out: &mut [u8]) -> Option<Transmit> {
        let (elements, number) = match &mut core.phase {
            Phase::Probing(handshake) => handshake.poll(now, core.params.elements)?,
            Phase::Measuring(train) => (core.params.elements, train.poll(now)?),
            _ => return None,
        };
        let header = handshake::probe(&core.params, now, elements, number);
        let len = payload_len(elements);
        out[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        out[HEADER_LEN..len].fill(0);
        core.stats.probes_sent += 1;
        core.stats.bytes_sent += len as u64;
        let (to, entropy) = (self.aggregator, entropy(u64::from(number)));
        Some(Transmit { len, to, port_offset: core.shard(), entropy, dscp_ecn: tag(PacketClass::Probe) })
    }

    /// Writes the packet that a slot is to send; `None` when the chunk's result is there already.
    fn write_packet(
        &self,
        core: &mut Core,
        now: Time,
        slot: usize,
        entry: &Slot,
        out: &mut [u8],
    ) -> Option<Packet> {
        let waiting = core.stream.waiting(entry.op, entry.seq)?;
        let needs_exponent = core.numbers.needs_exponent(&waiting.operation);
        let what = match () {
            () if needs_exponent && entry.exponent == exponent::UNKNOWN => Sent::Round,
            // Whose packet was lost nobody can tell from here: the elements go again only when they are missing.
            () if entry.state == State::Lost && !entry.wanted => Sent::Question,
            () => Sent::Elements,
        };
        let ahead = if what == Sent::Elements { core.look_ahead(entry) } else { exponent::NONE };
        let pending = core.stream.get_mut(entry.op)?;
        let operation = &pending.operation;
        let span = core.numbers.span(operation, pending.first(entry.seq));
        let resend = if entry.state == State::Lost { flag::RESEND } else { 0 };
        let version = if entry.version == 1 { flag::POOL_VERSION } else { 0 };
        let order = matches!(operation.arithmetic, Arithmetic::Max | Arithmetic::Min);
        let mut header = Header {
            kind: Kind::Contribution as u8,
            format: core.numbers.format(operation) as u8,
            flags: resend | version | if order { flag::MAXIMUM } else { 0 },
            job: core.params.job,
            epoch: core.params.epoch,
            seq: entry.seq as u32,
            slot: self.pool.number(slot),
            fan_in_0: core.params.rack_world as u8,
            bitmap_0: 1 << core.params.rack_rank,
            tensor: operation.signature,
            offset: operation.base.wrapping_add(span.first as u32),
            timestamp: now.stamp(),
            token: core.params.token,
            // A slot sends its next chunk when it has the result of the one before.
            received: entry.seq as u32,
            lane: core.params.lane,
            ..Header::default()
        };
        header.exponent = match what {
            Sent::Elements | Sent::Question if needs_exponent => entry.exponent,
            _ => exponent::NONE,
        };
        header.next_exponent = ahead;
        match what {
            Sent::Question => header.flags |= flag::QUERY,
            Sent::Round => {
                header.flags |= flag::EXPONENT;
                header.next_exponent = core.numbers.exponent(operation, span);
                core.stats.elements_scanned += core.numbers.given(operation, span) as u64;
            }
            Sent::Elements => {
                header.elements = span.words as u16;
                let elements = &mut out[HEADER_LEN..payload_len(header.elements)];
                let written = core.numbers.write(operation, span, Form::Scaled(header.exponent), elements);
                header.flags |= written.flags;
                core.stats.elements_sent += written.values as u64;
                written.fault.into_iter().for_each(|fault| pending.blame(fault));
            }
        }
        let priority = pending.operation.priority;
        let dscp_ecn = tag(PacketClass::Chunk { priority, reacts_to_marks: false });
        out[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        Some(Packet { what, header, dscp_ecn })
    }
}

/// Only an aggregator that gave the same chunk to two slots can have completed it by another: it cannot be
/// trusted any more.
pub(super) fn given_twice(core: &mut Core, entry: &Slot) {
    let reason = format!("it gave chunk {} of lane {} to two slots", entry.seq as u32, core.params.lane);
    core.fail(JobError::AggregatorLost { reason });
}

//! The way out in the dynamic mode: probes first, then lost chunks, then new ones as far as the window goes.

use sumac_wire::{
    Header, Kind,
    admit::payload_len,
    header::{HEADER_LEN, flag},
};

use super::{Dynamic, HOST_PROBES, form};
use crate::{
    chunk::Form,
    convert::Arithmetic,
    engine::{Core, Phase},
    handshake,
    peer::PeerId,
    silence::PROBES,
    slots::{Sent, Slot, State},
    time::Time,
    transmit::{PacketClass, Transmit, entropy, tag},
};

/// A chunk's packet.
struct Packet {
    header: Header,
    form: Form,
    dscp_ecn: u8,
}

impl Dynamic {
    /// Writes the next packet to `out`, which has room for the longest.
    pub fn poll_transmit(&mut self, core: &mut Core, now: Time, out: &mut [u8]) -> Option<Transmit> {
        match &mut core.phase {
            Phase::Probing(handshake) if !self.host_answered => {
                if let Some((elements, number)) = handshake.poll(now, core.params.elements) {
                    let number = number | HOST_PROBES;
                    return Some(send_probe(core, now, self.base as u32, elements, number, self.host, out));
                }
            }
            Phase::Probing(_) | Phase::Ready => {}
            Phase::Measuring(_) | Phase::Measured(_) | Phase::Failed(_) => return None,
        }
        if let Some((number, is_long)) = self.way.poll(now) {
            let elements = if is_long { core.params.elements } else { 0 };
            return Some(send_probe(core, now, self.base as u32, elements, number, self.aggregator, out));
        }
        if let Some(number) = self.way.poll_host() {
            return Some(send_probe(core, now, self.base as u32, 0, number | HOST_PROBES, self.host, out));
        }
        if matches!(core.phase, Phase::Ready) { self.send_chunk(core, now, out) } else { None }
    }

    /// The place of the next chunk to send, if one may be sent: first what was lost, or whose floats were asked for.
    fn next_chunk(&mut self, core: &mut Core) -> Option<usize> {
        let window = u64::from(self.congestion.window());
        let has_room = (core.slots.flying() as u64) < window;
        if let Some(begun) = core.slots.next_to_send() {
            // What is in flight further ahead does not keep back what others may wait for: they may not be as far.
            let first = self.first_begun(core, self.base + window);
            return first.or(has_room.then_some(begun));
        }
        if has_room { self.next_new(core) } else { None }
    }

    /// The first of the chunks up to `end` that is to be sent once more.
    fn first_begun(&self, core: &Core, end: u64) -> Option<usize> {
        let mut slots = (self.base..end.min(self.next)).map(|seq| self.ring(seq));
        slots.find(|slot| matches!(core.slots.get(*slot).state, State::Lost | State::Ready))
    }

    /// The next chunk of the stream, if its operation is there and the window reaches as far.
    fn next_new(&mut self, core: &mut Core) -> Option<usize> {
        let seq = self.next;
        if seq >= self.base + u64::from(self.params.window) {
            return None;
        }
        self.near = core.stream.find(seq, self.near)?;
        core.slots.make_ready(self.ring(seq), self.near);
        core.stats.remapped += u64::from(self.places.begin(seq));
        self.next += 1;
        core.slots.next_to_send()
    }

    fn send_chunk(&mut self, core: &mut Core, now: Time, out: &mut [u8]) -> Option<Transmit> {
        let slot = self.next_chunk(core)?;
        let entry = *core.slots.get(slot);
        if core.slots.in_flight() == 0 {
            self.first_of_burst = entry.seq..entry.seq + PROBES as u64;
        }
        let was_lost = entry.state == State::Lost;
        let is_first = !was_lost && !entry.raw;
        let Packet { header, form, dscp_ecn } = self.write_packet(core, now, &entry, out)?;
        let index = core.next_index;
        self.echoes = false;
        let len = payload_len(header.elements);
        core.next_index += 1;
        core.slots.launch(slot, now, index, core.backoff.level(), Sent::Elements, entry.op < core.begun);
        if is_first {
            core.stats.chunks_sent += 1;
            core.stats.raw_chunks += u64::from(form == Form::Floats);
            core.stats.chunks_faulty += u64::from(header.has(flag::OVERFLOW | flag::NOT_FINITE));
        }
        core.stats.resent += u64::from(was_lost);
        core.stats.bytes_sent += len as u64;
        core.stats.in_flight = core.slots.in_flight() as u64;
        let (to, port_offset) = (self.destination(), core.shard());
        Some(Transmit { len, to, port_offset, entropy: entropy(index), dscp_ecn })
    }

    fn destination(&self) -> PeerId {
        if self.way.is_direct() { self.host } else { self.aggregator }
    }

    /// Writes the packet of a chunk that waits for its result.
    fn write_packet(&self, core: &mut Core, now: Time, entry: &Slot, out: &mut [u8]) -> Option<Packet> {
        let next_exponent = core.look_ahead(entry);
        let pending = core.stream.waiting(entry.op, entry.seq)?;
        let operation = &pending.operation;
        let form = form(&core.numbers, operation, entry);
        let span = core.numbers.span(operation, pending.first(entry.seq));
        let is_order = matches!(operation.arithmetic, Arithmetic::Max | Arithmetic::Min);
        // What slots shall not keep: they have no room for floats, and who sends again has waited for them in vain.
        let passes = entry.state == State::Lost
            || form == Form::Floats
            || self.way.is_direct()
            || self.places.passes(entry.seq)
            || entry.seq < self.settled_from;
        let flags = [
            (passes, flag::RESEND),
            (is_order, flag::MAXIMUM),
            (form == Form::Floats, flag::RAW_FLOAT),
            (self.params.beside_root, flag::LEVEL),
            (self.echoes, flag::ECN_ECHO),
        ];
        let mut header = Header {
            kind: Kind::Contribution as u8,
            format: core.numbers.format(operation) as u8,
            flags: flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag),
            job: core.params.job,
            epoch: core.params.epoch,
            seq: entry.seq as u32,
            // Also past the aggregator: the result frees it, and the parameter host tells all workers the same of it.
            slot: self.places.slot(entry.seq),
            fan_in_0: core.params.rack_world as u8,
            fan_in_1: self.params.fan_in_1,
            elements: span.words as u16,
            bitmap_0: 1 << core.params.rack_rank,
            bitmap_1: self.params.bitmap_1,
            exponent: form.exponent(),
            next_exponent,
            tensor: operation.signature,
            offset: operation.base.wrapping_add(span.first as u32),
            timestamp: now.stamp(),
            token: core.params.token,
            received: self.base as u32,
            lane: core.params.lane,
            ..Header::default()
        };
        let elements = &mut out[HEADER_LEN..payload_len(header.elements)];
        let written = core.numbers.write(operation, span, form, elements);
        header.flags |= written.flags;
        core.stats.elements_sent += written.values as u64;
        written.fault.into_iter().for_each(|fault| pending.blame(fault));
        out[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        let priority = pending.operation.priority;
        let dscp_ecn = tag(PacketClass::Chunk { priority, reacts_to_marks: true });
        Some(Packet { header, form, dscp_ecn })
    }
}

fn send_probe(
    core: &mut Core,
    now: Time,
    received: u32,
    elements: u16,
    number: u32,
    to: PeerId,
    out: &mut [u8],
) -> Transmit {
    let header = Header { received, ..handshake::probe(&core.params, now, elements, number) };
    let len = payload_len(elements);
    out[..HEADER_LEN].copy_from_slice(&header.to_bytes());
    out[HEADER_LEN..len].fill(0);
    core.stats.probes_sent += 1;
    core.stats.bytes_sent += len as u64;
    Transmit {
        len,
        to,
        port_offset: core.shard(),
        entropy: entropy(u64::from(number)),
        dscp_ecn: tag(PacketClass::Probe),
    }
}

//! The way out: probes first, then lost chunks, then new ones.

use sumac_wire::{
    Header, Kind,
    admit::payload_len,
    header::{HEADER_LEN, exponent, flag},
};

use super::{Engine, Phase};
use crate::{
    convert::Arithmetic,
    error::JobError,
    handshake,
    slots::{Sent, Slot, State},
    time::Time,
};

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the job's aggregator.
    Aggregator,
    /// Straight to the parameter host of the lane's shard (dynamic jobs).
    ParameterHost,
}

/// A UDP payload that was written, and how it wants to travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes written: header and elements.
    pub len: usize,
    /// Whose address it goes to.
    pub to: Destination,
    /// Goes to the job's base port plus this: the lane's shard.
    pub port_offset: u16,
    /// Varies from packet to packet; spread over source ports it makes ECMP use all paths.
    pub entropy: u16,
    /// IPv4's DSCP and ECN byte: the class selector of the operation's priority; ECT(0) in dynamic jobs, else not
    /// ECN-capable.
    pub dscp_ecn: u8,
}

/// What a slot sends.
struct Packet {
    what: Sent,
    header: Header,
    dscp_ecn: u8,
}

impl Engine {
    /// Writes the next packet to `out`; `None`: nothing to send now.
    ///
    /// `out` must have room for [`Engine::frame_len`] bytes; the job fails when it has not.
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        self.now = now;
        match &self.phase {
            Phase::Failed(_) | Phase::Measured(_) => None,
            _ if out.len() < self.frame_len() => {
                self.fail(JobError::FrameTooSmall { needed: self.frame_len(), given: out.len() });
                None
            }
            Phase::Probing(_) | Phase::Measuring(_) => self.send_probe(now, out),
            Phase::Ready => self.send_chunk(now, out),
        }
    }

    fn send_probe(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        let (elements, number) = match &mut self.phase {
            Phase::Probing(handshake) => handshake.poll(now, self.params.elements)?,
            Phase::Measuring(train) => (self.params.elements, train.poll(now)?),
            _ => return None,
        };
        let header = handshake::probe(&self.params, now, elements, number);
        let len = payload_len(elements);
        out[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        out[HEADER_LEN..len].fill(0);
        self.stats.probes_sent += 1;
        self.stats.bytes_sent += len as u64;
        let (to, entropy) = (Destination::Aggregator, entropy(u64::from(number)));
        Some(Transmit { len, to, port_offset: self.shard(), entropy, dscp_ecn: 0 })
    }

    fn send_chunk(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        let slot = self.slots.next_to_send()?;
        let entry = *self.slots.get(slot);
        let is_first = entry.state != State::Lost;
        let Some(Packet { what, header, dscp_ecn }) = self.write_packet(now, slot, &entry, out) else {
            self.given_twice(&entry);
            return None;
        };
        let index = self.next_index;
        let len = payload_len(header.elements);
        self.next_index += 1;
        self.slots.launch(slot, now, index, self.backoff.level(), what, entry.op < self.begun);
        match (what, is_first) {
            (Sent::Elements, true) => self.stats.chunks_sent += 1,
            (Sent::Elements, false) => self.stats.resent += 1,
            (Sent::Round, true) => self.stats.exponent_rounds += 1,
            (Sent::Question, _) | (Sent::Round, false) => self.stats.questions += 1,
        }
        let is_faulty = header.has(flag::OVERFLOW | flag::NOT_FINITE);
        self.stats.chunks_faulty += u64::from(is_first && is_faulty);
        self.stats.bytes_sent += len as u64;
        self.stats.in_flight = self.slots.in_flight() as u64;
        let (to, entropy) = (Destination::Aggregator, entropy(index));
        Some(Transmit { len, to, port_offset: self.shard(), entropy, dscp_ecn })
    }

    /// Only an aggregator that gave the same chunk to two slots can have completed it by another: it cannot be
    /// trusted any more.
    pub(super) fn given_twice(&mut self, entry: &Slot) {
        let reason = format!("it gave chunk {} of lane {} to two slots", entry.seq as u32, self.params.lane);
        self.fail(JobError::AggregatorLost { reason });
    }

    /// Writes the packet that a slot is to send; `None` when the chunk's result is there already.
    fn write_packet(&mut self, now: Time, slot: usize, entry: &Slot, out: &mut [u8]) -> Option<Packet> {
        let waiting = self.stream.waiting(entry.op, entry.seq)?;
        let needs_exponent = self.numbers.needs_exponent(&waiting.operation);
        let what = match () {
            () if needs_exponent && entry.exponent == exponent::UNKNOWN => Sent::Round,
            // Whose packet was lost nobody can tell from here: the elements go again only when they are missing.
            () if entry.state == State::Lost && !entry.wanted => Sent::Question,
            () => Sent::Elements,
        };
        let ahead = if what == Sent::Elements { self.look_ahead(entry) } else { exponent::NONE };
        let pending = self.stream.get_mut(entry.op)?;
        let operation = &pending.operation;
        let span = self.numbers.span(operation, pending.first(entry.seq));
        let resend = if entry.state == State::Lost { flag::RESEND } else { 0 };
        let version = if entry.version == 1 { flag::POOL_VERSION } else { 0 };
        let order = matches!(operation.arithmetic, Arithmetic::Max | Arithmetic::Min);
        let mut header = Header {
            kind: Kind::Contribution as u8,
            format: self.numbers.format(operation) as u8,
            flags: resend | version | if order { flag::MAXIMUM } else { 0 },
            job: self.params.job,
            epoch: self.params.epoch,
            seq: entry.seq as u32,
            slot: self.pool.number(slot),
            fan_in_0: self.params.rack_world as u8,
            bitmap_0: 1 << self.params.rack_rank,
            tensor: operation.signature,
            offset: operation.base.wrapping_add(span.first as u32),
            timestamp: now.stamp(),
            token: self.params.token,
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
                header.next_exponent = self.numbers.exponent(operation, span);
                self.stats.elements_scanned += self.numbers.given(operation, span) as u64;
            }
            Sent::Elements => {
                header.elements = span.words as u16;
                let elements = &mut out[HEADER_LEN..payload_len(header.elements)];
                let written = self.numbers.write(operation, span, header.exponent, elements);
                header.flags |= written.flags;
                self.stats.elements_sent += written.values as u64;
                written.fault.into_iter().for_each(|fault| pending.blame(fault));
            }
        }
        let dscp_ecn = pending.operation.priority.min(7) << 5;
        out[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        Some(Packet { what, header, dscp_ecn })
    }

    /// The exponent of what this worker will give to the slot's next chunk (SwitchML section 4.6): all workers' go
    /// with this chunk's contributions, so that the next chunk's scale is known with this one's result.
    fn look_ahead(&mut self, entry: &Slot) -> i8 {
        let Some(pending) =
            self.stream.find(entry.after, entry.op).and_then(|number| self.stream.get_mut(number))
        else {
            return exponent::UNKNOWN;
        };
        let operation = &pending.operation;
        if !self.numbers.needs_exponent(operation) {
            return exponent::NONE;
        }
        let span = self.numbers.span(operation, pending.first(entry.after));
        self.stats.elements_scanned += self.numbers.given(operation, span) as u64;
        self.numbers.exponent(operation, span)
    }

    fn shard(&self) -> u16 {
        self.params.lane % self.params.shards
    }
}

/// Spreads consecutive numbers over 16 bits (Fibonacci hashing).
fn entropy(index: u64) -> u16 {
    (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

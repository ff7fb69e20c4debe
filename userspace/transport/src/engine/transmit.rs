//! The way out: probes first, then lost chunks, then new ones.

use sumac_wire::{
    Header, Kind,
    header::{HEADER_LEN, exponent, flag},
};

use super::{Engine, Phase};
use crate::{
    convert::{Arithmetic, Codec},
    error::{JobError, OpError},
    handshake,
    operation::{DType, Operation},
    slots::State,
    stream::{Pending, Range},
    time::Time,
};

/// A UDP payload that was written, and how it wants to travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes written: header and elements.
    pub len: usize,
    /// Goes to the job's base port plus this: the shard of the chunk's slot.
    pub port_offset: u16,
    /// Varies from packet to packet; spread over source ports it makes ECMP use all paths.
    pub entropy: u16,
    /// IPv4's DSCP and ECN byte: the class selector of the operation's priority, not ECN-capable.
    pub dscp_ecn: u8,
}

impl Engine {
    /// Writes the next packet to `out`; `None`: nothing to send now.
    ///
    /// `out` must have room for [`Engine::frame_len`] bytes; the job fails when it has not.
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        self.now = now;
        match &self.phase {
            Phase::Failed(_) => None,
            _ if out.len() < self.frame_len() => {
                self.fail(JobError::FrameTooSmall { needed: self.frame_len(), given: out.len() });
                None
            }
            Phase::Probing(_) => self.send_probe(now, out),
            Phase::Ready => self.send_chunk(now, out),
        }
    }

    fn send_probe(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        let Phase::Probing(handshake) = &mut self.phase else { return None };
        let (elements, number) = handshake.poll(now, self.params.elements)?;
        let header = handshake::probe(&self.params, now, elements, number);
        let len = sumac_wire::admit::payload_len(elements);
        out[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        out[HEADER_LEN..len].fill(0);
        self.stats.probes_sent += 1;
        self.stats.bytes_sent += len as u64;
        Some(Transmit { len, port_offset: 0, entropy: entropy(u64::from(number)), dscp_ecn: 0 })
    }

    fn send_chunk(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        let slot = self.slots.next_to_send()?;
        let entry = *self.slots.get(slot);
        let resend = entry.state == State::Lost;
        // A slot with a chunk to send belongs to an operation that is not complete.
        let pending = self.stream.get_mut(entry.op)?;
        let range = pending.range(entry.seq, usize::from(self.params.elements));
        let len = HEADER_LEN + range.elements * sumac_wire::header::ELEMENT_LEN;
        let (head, elements) = out[..len].split_at_mut(HEADER_LEN);
        let saturated = write_elements(&self.codec, &self.params, pending, range, elements);

        let place = self.pool.place(entry.seq);
        let mut flags = if place.version == 1 { flag::POOL_VERSION } else { 0 };
        flags |= if resend { flag::RESEND } else { 0 };
        flags |= if saturated { flag::OVERFLOW } else { 0 };
        let header = Header {
            kind: Kind::Contribution as u8,
            flags,
            job: self.params.job,
            epoch: self.params.epoch,
            seq: entry.seq as u32,
            slot: place.slot,
            fan_in_0: self.params.world as u8,
            elements: range.elements as u16,
            bitmap_0: 1 << self.params.rank,
            tensor: pending.operation.tensor,
            offset: range.first as u32,
            timestamp: now.stamp(),
            token: self.params.token,
            ..Header::default()
        };
        head.copy_from_slice(&header.to_bytes());
        let dscp_ecn = pending.operation.priority.min(7) << 5;

        let index = self.next_index;
        self.next_index += 1;
        self.slots.launch(slot, now, index, self.backoff.level());
        self.stats.chunks_sent += u64::from(!resend);
        self.stats.chunks_saturated += u64::from(saturated && !resend);
        self.stats.elements_sent += range.elements as u64;
        self.stats.bytes_sent += len as u64;
        self.stats.in_flight = self.slots.in_flight() as u64;
        Some(Transmit { len, port_offset: self.shard(place.slot), entropy: entropy(index), dscp_ecn })
    }

    fn shard(&self, slot: u32) -> u16 {
        (slot % u32::from(self.params.shards)) as u16
    }
}

/// Converts a chunk's input straight into the packet; says whether a value did not fit, and
/// remembers which.
fn write_elements(
    codec: &Codec,
    params: &crate::params::JobParams,
    pending: &mut Pending,
    range: Range,
    wire: &mut [u8],
) -> bool {
    let Operation { tensor, dtype, ref buffer, .. } = pending.operation;
    let size = dtype.size();
    let input = buffer.input(range.first * size, range.elements * size);
    let fault = if input.len() < range.elements * size {
        wire.fill(0);
        let index = range.first + input.len() / size;
        codec.encode(dtype, Arithmetic::Sum, exponent::NONE, input, wire);
        Some(OpError::ShortBuffer { tensor, index })
    } else {
        let encoded = codec.encode(dtype, Arithmetic::Sum, exponent::NONE, input, wire);
        // The first of the two.
        let fault = encoded.saturated.into_iter().chain(encoded.not_finite).min();
        fault.map(|at| describe(tensor, dtype, range.first + at, &input[at * size..], codec, params.scale))
    };
    let saturated = fault.is_some();
    fault.into_iter().for_each(|fault| pending.blame(fault));
    saturated
}

/// The error for the element at the front of `bytes`, which did not fit.
fn describe(tensor: u32, dtype: DType, index: usize, bytes: &[u8], codec: &Codec, scale: f32) -> OpError {
    let word: [u8; 4] = bytes.first_chunk().copied().unwrap_or_default();
    let half: [u8; 2] = bytes.first_chunk().copied().unwrap_or_default();
    let limit = codec.limit(dtype, Arithmetic::Sum);
    let value = match dtype {
        DType::F32 => f32::from_ne_bytes(word),
        DType::F16 => half::f16::from_ne_bytes(half).to_f32(),
        DType::BF16 => half::bf16::from_ne_bytes(half).to_f32(),
        DType::I32 => {
            let value = f64::from(i32::from_ne_bytes(word));
            return OpError::Saturated { tensor, index, value, scale: 1.0, limit };
        }
    };
    if value.is_finite() {
        OpError::Saturated { tensor, index, value: f64::from(value), scale, limit }
    } else {
        OpError::NotFinite { tensor, index, value }
    }
}

/// Spreads consecutive numbers over 16 bits (Fibonacci hashing).
fn entropy(index: u64) -> u16 {
    (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

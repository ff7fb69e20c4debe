//! Packets that all modes send: a chunk's, with its path and priority, and probes.

use sumac_wire::{
    Header, Kind,
    admit::payload_len,
    header::{Format, HEADER_LEN, flag},
    result_paths, tos,
};

use super::Core;
use crate::{
    chunk::{ChunkCodec, Form},
    convert::Arithmetic,
    handshake,
    in_flight::{ChunkRecord, ChunkState, SentPacket},
    lane::shard_of,
    packet,
    params::JobParams,
    peer::PeerId,
    pending::Pending,
    transmit::{Tag, Transmit},
};

impl Core {
    /// The header of a contribution, with the fields that all modes have.
    pub fn contribution(&self, seq: u64, pending: &Pending) -> Header {
        let operation = &pending.operation;
        let is_exponents = pending.is_exponents(seq);
        let is_maximum = is_exponents || matches!(operation.arithmetic, Arithmetic::Max | Arithmetic::Min);
        let format = if is_exponents { Format::Int32 } else { self.codec.format(operation) };
        let header = packet::header(&self.params, Kind::Contribution, self.now);
        Header {
            format: format as u8,
            flags: header.flags | if is_maximum { flag::MAXIMUM } else { 0 },
            seq: seq as u32,
            tensor: operation.signature,
            offset: operation.base.wrapping_add(pending.first(seq) as u32),
            ..header
        }
    }

    /// Whether workers without values of this operation send headers in place of their zeros. Of a short one
    /// the last header would cost a round trip more, and save little.
    pub fn has_headers(&self, pending: &Pending) -> bool {
        let operation = &pending.operation;
        // Zeros count in an order.
        let is_sum = !matches!(operation.arithmetic, Arithmetic::Max | Arithmetic::Min);
        let is_long = pending.end() - pending.first_seq() > u64::from(self.params.slots);
        self.params.takes_empty && is_long && is_sum && operation.loss_bound == 0.0
    }

    /// The values of a chunk that this worker gives.
    pub fn given(&self, pending: &Pending, seq: u64) -> usize {
        let span = self.codec.span(&pending.operation, pending.first(seq));
        ChunkCodec::contributed(&pending.operation, span)
    }

    /// Whether this worker's elements of a chunk are zeros that need not be sent. A worker that is alone
    /// below its aggregator would always be asked for them.
    pub fn is_empty(&self, pending: &Pending, seq: u64) -> bool {
        let may_be = self.params.rack_world > 1 && self.has_headers(pending);
        may_be && !pending.is_exponents(seq) && self.given(pending, seq) == 0
    }

    /// Converts a chunk's values into its packet, and notes what does not fit in header and operation.
    pub fn write_elements(
        &mut self,
        record: &ChunkRecord,
        form: Form,
        header: &mut Header,
        out: &mut [u8],
    ) -> Option<()> {
        let pending = self.stream.get_mut(record.operation)?;
        if pending.is_exponents(record.seq) {
            self.write_exponents(record, header, out);
            return Some(());
        }
        let span = self.codec.span(&pending.operation, pending.first(record.seq));
        header.elements = span.words as u16;
        let elements = &mut out[HEADER_LEN..payload_len(header.elements)];
        let written = self.codec.encode(&mut pending.operation, span, form, elements);
        header.flags |= written.flags;
        header.exponent = written.exponent.unwrap_or(header.exponent);
        self.stats.elements_sent += written.values as u64;
        written.fault.into_iter().for_each(|fault| pending.own_fault(fault));
        Some(())
    }

    /// Hands out a chunk's packet whose elements, if it has any, are written. `is_start`: the chunk's
    /// completion time counts from here.
    pub fn send_chunk(
        &mut self,
        index: usize,
        header: &Header,
        to: PeerId,
        is_start: bool,
        out: &mut [u8],
    ) -> Transmit {
        let ChunkRecord { operation, state, seq, .. } = *self.in_flight.get(index);
        if self.in_flight.unanswered() == 0 {
            self.path_check.restart(self.now);
        }
        let packet = self.next_packet;
        self.next_packet += 1;
        let path = self.choose_path();
        self.in_flight.on_sent(
            index,
            SentPacket {
                now: self.now,
                packet,
                path,
                backoff: self.backoff.level(),
                is_start,
                is_query: header.has(flag::QUERY),
                is_confirmed: operation < self.confirmed,
            },
        );
        let is_exponents = self.stream.get(operation).is_some_and(|pending| pending.is_exponents(seq));
        self.stats.exponent_chunks += u64::from(is_exponents && state != ChunkState::Lost);
        let len = payload_len(header.elements);
        self.budget.on_sent(self.now, len);
        self.stats.in_flight = self.in_flight.unanswered() as u64;
        let tag = Tag {
            priority: self.stream.get(operation).map_or(0, |pending| pending.operation.priority),
            is_important: self.is_important(operation, seq, header),
            by_precedence: self.params.dynamic.is_some() || self.params.congestion_control,
            // Retransmissions are not ECN-capable (RFC 3168, section 6.1.5).
            reacts: self.budget.reacts_to_marks() && state != ChunkState::Lost,
        };
        self.transmit(header, to, path, tag.byte(), out)
    }

    /// Whether a chunk's packet is important; `None` where the operation's packets are not told apart.
    fn is_important(&mut self, operation: u64, seq: u64, header: &Header) -> Option<bool> {
        let pending = self.stream.get_mut(operation).filter(|pending| pending.importance.tells_apart())?;
        if header.elements == 0 || pending.is_exponents(seq) {
            return pending.importance.of_short();
        }
        let first = pending.first(seq);
        let operation = &mut pending.operation;
        let (dtype, given) = (operation.dtype, self.codec.span(operation, first).overlap(&operation.gives));
        pending.importance.is_important(dtype, move || {
            operation.prepare(&given);
            operation.input(&given)
        })
    }

    /// Chooses the path of a packet.
    pub fn choose_path(&mut self) -> u16 {
        self.paths.choose(self.now, &mut self.stats.paths)
    }

    pub fn transmit(
        &mut self,
        header: &Header,
        to: PeerId,
        path: u16,
        dscp_ecn: u8,
        out: &mut [u8],
    ) -> Transmit {
        out[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        let len = payload_len(header.elements);
        self.stats.bytes_sent += len as u64;
        let JobParams { lane, shards, .. } = self.params;
        Transmit { len, to, port_offset: shard_of(lane, shards), path, dscp_ecn }
    }

    /// Writes a probe. `received`: all chunks before this one have their results.
    pub fn send_probe(
        &mut self,
        received: u32,
        elements: u16,
        number: u32,
        to: PeerId,
        out: &mut [u8],
    ) -> Transmit {
        let header = Header { received, ..handshake::probe(&self.params, self.now, elements, number) };
        let header = result_paths::probe(header, self.result_paths.of_probe(number), 0);
        out[HEADER_LEN..payload_len(elements)].fill(0);
        self.stats.probes_sent += 1;
        let path = self.paths.of_probe(number, &mut self.stats.paths);
        self.transmit(&header, to, path, tos::CONTROL, out)
    }

    /// Writes a probe that is answered by this path, with the paths that results are to avoid.
    pub fn send_survey_probe(
        &mut self,
        number: u32,
        answer_path: u16,
        avoided: u16,
        to: PeerId,
        out: &mut [u8],
    ) -> Transmit {
        let header = handshake::probe(&self.params, self.now, 0, number);
        let header = result_paths::probe(header, answer_path, avoided);
        self.stats.probes_sent += 1;
        let path = self.paths.choose_without_probes(&mut self.stats.paths);
        self.transmit(&header, to, path, tos::CONTROL, out)
    }
}

//! Packets of the dynamic mode: probes come first, then lost chunks, then new ones as far as the window goes.

use sumac_wire::{Header, header::flag};

use super::{DynamicMode, HOST_PROBES};
use crate::{
    chunk::Form,
    engine_core::{Core, Phase},
    in_flight::{ChunkRecord, ChunkState},
    probe_timeout::PROBE_CHUNKS,
    transmit::Transmit,
};

impl DynamicMode {
    pub(super) fn send_probe(&mut self, core: &mut Core, out: &mut [u8]) -> Option<Transmit> {
        let full = core.params.elements;
        let received = self.base as u32;
        if matches!(core.phase, Phase::Probing)
            && !self.host_answered
            && let Some((elements, number)) = self.handshake.poll(core.now, full)
        {
            return Some(core.send_probe(received, elements, number | HOST_PROBES, self.host, out));
        }
        if let Some((number, is_full)) = self.path.poll(core.now) {
            let elements = if is_full { full } else { 0 };
            return Some(core.send_probe(received, elements, number, self.aggregator, out));
        }
        let number = self.path.poll_host()?;
        Some(core.send_probe(received, 0, number | HOST_PROBES, self.host, out))
    }

    /// The next chunk to send, if one may be sent: first chunks that were sent before.
    fn next_chunk(&mut self, core: &mut Core) -> Option<usize> {
        let may_send = core.may_send(core.in_flight.in_network());
        if let Some(index) = core.in_flight.next_to_send() {
            // Chunks in flight further ahead do not delay those that others may wait for: they may not be as
            // far.
            let first = self.first_to_resend(core, self.base + u64::from(core.budget.window()));
            return first.or(may_send.then_some(index));
        }
        if may_send { self.next_new(core) } else { None }
    }

    /// The first of the chunks before `end` that is to be sent again.
    fn first_to_resend(&self, core: &Core, end: u64) -> Option<usize> {
        let mut indexes = (self.base..end.min(self.next)).map(|seq| self.index(seq));
        indexes.find(|at| matches!(core.in_flight.get(*at).state, ChunkState::Lost | ChunkState::Ready))
    }

    /// The next chunk of the stream that need not wait for its exponent, if its operation is there and the
    /// window reaches as far.
    fn next_new(&mut self, core: &mut Core) -> Option<usize> {
        while core.in_flight.next_to_send().is_none() {
            self.skip_answered(core);
            let seq = self.next;
            if seq >= self.base + u64::from(self.params.window) {
                return None;
            }
            self.near = core.stream.find(seq, self.near)?;
            self.make_ready(core, self.index(seq), self.near);
            core.stats.remapped += u64::from(self.slot_map.assign(seq));
            self.next += 1;
        }
        core.in_flight.next_to_send()
    }

    /// Skips the next chunks whose results have come before them: this worker was left out.
    pub(super) fn skip_answered(&mut self, core: &Core) {
        let end = self.base + u64::from(self.params.window);
        while self.next < end && core.in_flight.get(self.index(self.next)).seq != self.next {
            // All workers' maps follow the same chunks.
            self.slot_map.assign(self.next);
            self.next += 1;
        }
    }

    pub(super) fn send_chunk(&mut self, core: &mut Core, out: &mut [u8]) -> Option<Transmit> {
        let index = self.next_chunk(core)?;
        let record = *core.in_flight.get(index);
        if core.in_flight.unanswered() == 0 {
            self.first_of_burst = record.seq..record.seq + PROBE_CHUNKS as u64;
        }
        let was_lost = record.state == ChunkState::Lost;
        let is_start = !self.entries[index].is_raw;
        let (header, form) = self.write_packet(core, &record, out)?;
        core.echoes_mark = false;
        if !was_lost && is_start {
            core.stats.chunks_sent += 1;
            core.stats.raw_chunks += u64::from(form == Form::Floats);
            core.stats.chunks_faulty += u64::from(header.has(flag::OVERFLOW | flag::NOT_FINITE));
        }
        core.stats.resent += u64::from(was_lost);
        core.stats.flushes += u64::from(header.has(flag::PARTIAL));
        let to = if self.path.is_direct() { self.host } else { self.aggregator };
        Some(core.send_chunk(index, &header, to, is_start, out))
    }

    fn write_packet(&self, core: &mut Core, record: &ChunkRecord, out: &mut [u8]) -> Option<(Header, Form)> {
        let seq = record.seq;
        let next_exponent = core.look_ahead(seq + u64::from(self.params.window), record.operation);
        let pending = core.stream.waiting(record.operation, seq)?;
        let (form, terms) = (self.form(core, pending, seq), pending.terms(seq));
        // Chunks that slots must not keep: slots have no room for floats, and a resent chunk has waited for
        // one in vain. All else waits for exponents: without a slot in between, whoever sends them again
        // delays no worker that is late. And a slot's sum would state the terms of one worker for all.
        let bypasses = record.state == ChunkState::Lost
            || form == Form::Floats
            || pending.is_exponents(seq)
            || terms.is_some()
            || self.path.is_direct()
            || self.slot_map.bypasses(seq)
            || self.entries[self.index(seq)].is_begun
            || seq < self.settled_from;
        let flags = [
            (bypasses, flag::RESEND),
            (form == Form::Floats, flag::RAW_FLOAT),
            (core.echoes_mark, flag::ECN_ECHO),
        ];
        let mut header = core.contribution(seq, pending);
        header.flags |= flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
        // Also past the aggregator: the result frees the slot, and the parameter host reports the same of it
        // to all workers.
        header.slot = self.slot_map.slot(seq);
        (header.exponent, header.next_exponent) = (form.exponent(), next_exponent);
        header.received = self.base as u32;
        // A window of chunks whose exponents a new worker does not know is waited for.
        let flush = core.flush(record).filter(|_| seq >= self.settled_from);
        match flush {
            Some(flush) => flush.mark(&mut header),
            None => terms.into_iter().for_each(|terms| terms.state(&mut header)),
        }
        core.write_elements(record, form, &mut header, out)?;
        Some((header, form))
    }
}

//! Contributions of the static mode: lost chunks come first, then new ones.

use sumac_wire::{
    Header,
    header::{exponent, flag},
};

use super::{StaticMode, window};
use crate::{
    budget::CongestionEvent,
    chunk::Form,
    engine_core::Core,
    error::JobError,
    in_flight::{ChunkRecord, ChunkState},
    transmit::Transmit,
};

/// One part in so many of the slots: the last chunks of a stream that may be sent again without a query.
const UNASKED_PART: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketForm {
    Elements,
    /// The statement that its elements are zeros.
    Empty,
    /// Its elements, and the request to complete the chunk with the contributions that the aggregator has.
    Flush,
    ExponentRound,
    /// A query whether the aggregator has its elements.
    Query,
}

impl StaticMode {
    //= switchml#4.4 self-clocked stream of chunks
    pub(super) fn send_chunk(&mut self, core: &mut Core, out: &mut [u8]) -> Option<Transmit> {
        let slot = self.let_go(core)?;
        let record = *core.in_flight.get(slot);
        let is_first = record.state != ChunkState::Lost;
        // The window has admitted a chunk that is ready. Only pacing may delay it.
        if is_first && !core.may_send(0) {
            return None;
        }
        let Some((form, header)) = self.write_packet(core, slot, &record, out) else {
            chunk_in_two_slots(core, &record);
            return None;
        };
        let is_again = form == PacketForm::Elements && !is_first && !core.is_exponents(&record);
        let is_wanted = self.slots.get(slot).is_wanted;
        let is_unasked = is_again && !is_wanted;
        self.unasked = if is_first { 0 } else { self.unasked + u32::from(is_unasked) };
        match (form, is_first) {
            // Its zeros; the chunk was counted when it was sent without.
            (PacketForm::Elements, true) if is_wanted => core.stats.empty_wanted += 1,
            (PacketForm::Elements, false) if core.is_exponents(&record) => core.stats.questions += 1,
            (PacketForm::Elements | PacketForm::Flush | PacketForm::Empty, true) => {
                core.stats.chunks_sent += 1;
            }
            (PacketForm::Elements | PacketForm::Flush | PacketForm::Empty, false) => core.stats.resent += 1,
            (PacketForm::ExponentRound, true) => core.stats.exponent_rounds += 1,
            (PacketForm::Query, _) | (PacketForm::ExponentRound, false) => core.stats.questions += 1,
        }
        let echoes_mark = header.has(flag::ECN_ECHO);
        core.echoes_mark &= !echoes_mark;
        core.stats.chunks_empty += u64::from(form == PacketForm::Empty);
        core.stats.flushes += u64::from(form == PacketForm::Flush);
        let is_faulty = header.has(flag::OVERFLOW | flag::NOT_FINITE);
        core.stats.chunks_faulty += u64::from(is_first && is_faulty);
        let state = self.slots.get_mut(slot);
        let in_round = form == PacketForm::ExponentRound;
        let is_start = in_round || !state.in_round && !is_wanted;
        (state.in_round, state.is_wanted) = (in_round, false);
        (state.is_empty, state.echoed_mark) = (form == PacketForm::Empty, echoes_mark);
        Some(core.send_chunk(slot, &header, self.aggregator, is_start, out))
    }

    /// Whether a suspected chunk's elements go at once, without a query: one of the last chunks of the
    /// stream, of which a later one has its result, or the first that is probed since the latest result. No
    /// other chunk hides the time of a query then, and the link is idle. All workers send them, though one
    /// packet is missing: so only few of the chunks, and one where a worker is late.
    ///
    /// With congestion control the answer to a query is the sign of a loss, which all workers are to learn
    /// of.
    fn sends_unasked(&self, core: &Core, record: &ChunkRecord) -> bool {
        let most = (self.slots.pool().slots() / UNASKED_PART).max(1);
        !core.params.congestion_control
            && !core.tuning.timers_only
            && (record.overtaken.is_some() || core.has_probed_tail_once() && !record.is_resent)
            && core.in_flight.unanswered() as u64 <= most
            && u64::from(self.unasked) < most
            && self.is_at_end(core)
    }

    /// Writes the packet that a slot is to send; `None` when the chunk already has its result.
    fn write_packet(
        &self,
        core: &mut Core,
        slot: usize,
        record: &ChunkRecord,
        out: &mut [u8],
    ) -> Option<(PacketForm, Header)> {
        let state = self.slots.get(slot);
        let waiting = core.stream.waiting(record.operation, record.seq)?;
        let needs_exponent = core.needs_exponent(waiting, record.seq);
        let is_lost = record.state == ChunkState::Lost;
        let flush = core.flush(record);
        let form = match () {
            () if needs_exponent && state.exponent == exponent::UNKNOWN => PacketForm::ExponentRound,
            () if flush.is_some() => PacketForm::Flush,
            // The lost packet may be another worker's, so a query goes first. An exponent chunk is sent again
            // at once: all other chunks wait for it.
            () if is_lost
                && !state.is_wanted
                && !waiting.is_exponents(record.seq)
                && !self.sends_unasked(core, record) =>
            {
                PacketForm::Query
            }
            () if !is_lost && !state.is_wanted && core.is_empty(waiting, record.seq) => PacketForm::Empty,
            () => PacketForm::Elements,
        };
        let next_exponent = match form {
            PacketForm::Elements | PacketForm::Empty | PacketForm::Flush => {
                core.look_ahead(state.after, record.operation)
            }
            PacketForm::ExponentRound | PacketForm::Query => exponent::NONE,
        };
        let pending = core.stream.get(record.operation)?;
        let mut header = core.contribution(record.seq, pending);
        header.slot = self.slots.pool().number(slot);
        // A slot sends its next chunk when it has the result of the one before.
        header.received = record.seq as u32;
        header.flags |= if is_lost { flag::RESEND } else { 0 };
        // A chunk that is sent again may have its result: slots would merge nothing.
        header.flags |= if core.echoes_mark && !is_lost { flag::ECN_ECHO } else { 0 };
        header.flags |= if state.version == 1 { flag::POOL_VERSION } else { 0 };
        header.exponent = match form {
            PacketForm::ExponentRound => exponent::NONE,
            _ if needs_exponent => state.exponent,
            _ => exponent::NONE,
        };
        header.next_exponent = next_exponent;
        match form {
            PacketForm::Query => header.flags |= flag::QUERY,
            PacketForm::Empty => header.flags |= flag::EMPTY,
            PacketForm::ExponentRound => {
                header.flags |= flag::EXPONENT;
                header.next_exponent = core.look_ahead(record.seq, record.operation);
            }
            PacketForm::Elements | PacketForm::Flush => {
                match flush {
                    Some(flush) => flush.mark(&mut header),
                    None => pending.terms(record.seq).into_iter().for_each(|terms| terms.state(&mut header)),
                }
                let scaled = Form::Scaled(header.exponent);
                core.write_elements(record, scaled, &mut header, out)?;
            }
        }
        Some((form, header))
    }

    /// The slot of the next chunk to send. Where none is ready, lets the first ones go that are held back, as
    /// far as the window has room, until one of them need not wait for its exponent.
    pub(super) fn let_go(&mut self, core: &mut Core) -> Option<usize> {
        while core.in_flight.next_to_send().is_none() {
            let seq = self.slots.next_idle()?;
            let operation = core.stream.find(seq, self.held.near)?;
            let before = self.outstanding_before(core, seq);
            if before >= window::of(core, operation, seq) || !core.may_send(before) {
                return None;
            }
            let slot = self.slots.pop_idle()?;
            self.make_ready(core, slot, operation);
        }
        core.in_flight.next_to_send()
    }

    /// Chunks before `seq` without a result, if all idle slots have later ones.
    fn outstanding_before(&self, core: &Core, seq: u64) -> usize {
        let active = self.slots.active();
        // A slot that a loss has held up has earlier chunks than those in flight.
        if seq >= self.held.next {
            return active;
        }
        let records = (0..self.slots.pool().slots() as usize).map(|slot| core.in_flight.get(slot));
        records.filter(|record| record.state != ChunkState::Idle && record.seq < seq).count()
    }

    /// A mark on the path of a chunk or its result. Chunks without a result count as if they followed each
    /// other, since the window counts them and not their numbers.
    pub(super) fn congestion(&self, seq: u64) -> CongestionEvent {
        let next = self.held.next;
        let base = next.saturating_sub(self.slots.active() as u64);
        CongestionEvent { seq, base, next, lost: 0 }
    }
}

/// Fails the job: only an aggregator that assigned a chunk to two slots can have completed it by another one.
pub(super) fn chunk_in_two_slots(core: &mut Core, record: &ChunkRecord) {
    let lane = core.params.lane;
    let reason = format!("it assigned chunk {} of lane {lane} to two slots", record.seq as u32);
    core.fail(JobError::AggregatorLost { reason });
}

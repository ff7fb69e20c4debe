//! Results of the static mode: only the answer to a chunk in flight changes anything.

use sumac_wire::{
    Header, Reason,
    header::{exponent, flag},
    stream::is_later,
};

use super::{StaticMode, pool::SlotPool, slots::Slot, transmit::chunk_in_two_slots, window};
use crate::{chunk::Form, engine_core::Core, in_flight::ChunkRecord, packet::Packet};

/// Flags that no result of this mode has: one with any of them answers nothing.
const FOREIGN_FLAGS: u16 = flag::COLLISION | flag::RAW_FLOAT | flag::LEVEL | flag::EMPTY;

/// A slot whose chunk a result answers.
struct Answered {
    slot: usize,
    record: ChunkRecord,
    state: Slot,
}

impl StaticMode {
    pub(super) fn receive(&mut self, core: &mut Core, packet: &Packet<'_>) -> Result<(), Reason> {
        let header = &packet.header;
        let answered = self.answered(core, header)?;
        if header.has(flag::MISMATCH) {
            core.mismatch(&answered.record, header)
        } else if header.has(flag::QUERY) {
            self.on_request(core, &answered, header)
        } else if header.has(flag::EXPONENT) {
            self.on_exponent(core, &answered, packet)
        } else {
            self.accept(core, &answered, packet)
        }
    }

    /// The chunk in flight that a result answers.
    fn answered(&self, core: &Core, header: &Header) -> Result<Answered, Reason> {
        if header.has(FOREIGN_FLAGS) {
            return Err(Reason::BadType);
        }
        let is_partial = header.has(flag::PARTIAL);
        if !is_partial && header.contributors != core.params.world {
            return Err(Reason::WrongWorker);
        }
        let slot = self.slots.pool().slot(header.slot).ok_or(Reason::WrongSlot)?;
        let (record, state) = (*core.in_flight.get(slot), *self.slots.get(slot));
        let expected = record.seq as u32;
        if is_later(expected, header.seq) {
            return Err(if header.seq == state.previous { Reason::Duplicate } else { Reason::Stale });
        }
        if header.seq != expected {
            return Err(Reason::OutOfTurn);
        }
        let is_sent = record.state.is_sent();
        if header.has(flag::EXPONENT) && !(state.in_round && is_sent) {
            // The elements may have been sent already; a chunk that was not sent at all has no round.
            return Err(if state.in_round || is_sent { Reason::Duplicate } else { Reason::OutOfTurn });
        }
        if !is_sent || state.in_round != header.has(flag::EXPONENT) {
            return Err(Reason::OutOfTurn);
        }
        if header.pool_version() != state.version {
            return Err(Reason::WrongSlot);
        }
        if is_partial {
            let ledger = core.stream.get(record.operation).and_then(|pending| pending.ledger.as_ref());
            ledger.ok_or(Reason::BadType)?.check(header)?;
        }
        Ok(Answered { slot, record, state })
    }

    /// Processes the answer to a query: the aggregator does not have the chunk's elements.
    fn on_request(&mut self, core: &mut Core, answered: &Answered, header: &Header) -> Result<(), Reason> {
        if answered.state.is_empty {
            return self.on_values_wanted(core, answered, header);
        }
        if !answered.record.is_query || answered.state.is_wanted {
            // They have been sent since, or will be.
            return Err(Reason::Duplicate);
        }
        core.check_short(&answered.record, header)?;
        if answered.record.overtaken.is_some() {
            core.loss.on_recovery();
        }
        core.on_path_loss(answered.record.path);
        core.echo_loss(answered.record.seq);
        core.in_flight.mark_lost(answered.slot, false);
        self.slots.get_mut(answered.slot).is_wanted = true;
        core.stats.missing += 1;
        Ok(())
    }

    /// Processes the answer to a contribution without values, which would have been the last one: the
    /// aggregator needs a packet with room for the result. Nothing was lost.
    fn on_values_wanted(
        &mut self,
        core: &mut Core,
        answered: &Answered,
        header: &Header,
    ) -> Result<(), Reason> {
        core.check_short(&answered.record, header)?;
        core.in_flight.reopen(answered.slot);
        let state = self.slots.get_mut(answered.slot);
        (state.is_empty, state.is_wanted) = (false, true);
        // The aggregator has not taken the mark either.
        core.echoes_mark |= state.echoed_mark;
        core.refresh_gauges();
        Ok(())
    }

    /// Processes the answer to an exponent round: the chunk's elements can be sent.
    fn on_exponent(
        &mut self,
        core: &mut Core,
        answered: &Answered,
        packet: &Packet<'_>,
    ) -> Result<(), Reason> {
        let header = &packet.header;
        core.check_short(&answered.record, header)?;
        // All workers have the chunk, or there would have been no round.
        if header.exponent == exponent::UNKNOWN {
            return Err(Reason::WrongPlace);
        }
        core.in_flight.reopen(answered.slot);
        self.slots.get_mut(answered.slot).exponent = header.exponent;
        self.acknowledge(core, &answered.record, packet);
        core.refresh_gauges();
        Ok(())
    }

    /// Writes a result to its tensor and advances the slot.
    fn accept(
        &mut self,
        core: &mut Core,
        Answered { slot, record, state }: &Answered,
        packet: &Packet<'_>,
    ) -> Result<(), Reason> {
        let Packet { header, elements, .. } = packet;
        if core.stream.waiting(record.operation, record.seq).is_none() {
            chunk_in_two_slots(core, record);
            return Err(Reason::Internal);
        }
        let pool = self.slots.pool();
        let after = SlotPool::follow(state.after, header.next_seq).ok_or(Reason::OutOfTurn)?;
        let is_exponents = core.is_exponents(record);
        core.deliver(record, Form::Scaled(state.exponent), header, elements)?;
        core.stats.steals += u64::from(after != pool.regular(record.seq));
        let operation = core.stream.find(state.after, record.operation);
        let next = self.slots.advance(*slot, record.seq, after, header.next_exponent);
        core.in_flight.advance(*slot, next);
        // Chunks go in their order: one that another overtakes would look lost.
        let is_later = self.slots.next_idle().is_some_and(|earlier| earlier < next);
        match operation.filter(|operation| !is_later && !window::holds_back(core, *operation, next)) {
            Some(operation) => self.make_ready(core, *slot, operation),
            None => self.slots.push_idle(*slot, next),
        }
        if is_exponents {
            self.release_held(core);
        }
        if !self.acknowledge(core, record, packet) {
            core.budget.on_result(record.seq);
        }
        core.refresh_gauges();
        Ok(())
    }

    /// Processes an answer that the chunk's packet has arrived. Returns whether it carries a mark that all
    /// workers know.
    fn acknowledge(&self, core: &mut Core, record: &ChunkRecord, packet: &Packet<'_>) -> bool {
        let is_marked = packet.is_marked || packet.header.has(flag::ECN_ECHO);
        core.acknowledge(record, &packet.header, is_marked);
        core.take_marks(packet, self.congestion(record.seq))
    }
}

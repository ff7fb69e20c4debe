//! Results of the static mode: only the answer to a chunk in flight changes anything.

use sumac_wire::{
    Header, Reason,
    header::{exponent, flag},
    stream::is_later,
};

use super::{Pooled, transmit::given_twice};
use crate::{
    chunk::Form,
    engine::Core,
    packet::Packet,
    slots::{Slot, State},
    time::Time,
};

/// Flags of the other modes: a result with one of them is not what was asked for.
const FOREIGN_FLAGS: u16 = flag::COLLISION | flag::PARTIAL | flag::RAW_FLOAT | flag::LEVEL;

impl Pooled {
    /// Takes a result of this job.
    pub fn on_result(&mut self, core: &mut Core, now: Time, packet: &Packet<'_>) -> Result<(), Reason> {
        let header = &packet.header;
        let (slot, entry) = self.outstanding(core, header)?;
        if header.has(flag::MISMATCH) {
            core.mismatch(&entry, header)
        } else if header.has(flag::QUERY) {
            Pooled::resend(core, slot, &entry, header)
        } else if header.has(flag::EXPONENT) {
            Pooled::agree(core, now, slot, entry, header)
        } else {
            self.accept(core, now, slot, entry, header, packet.elements)
        }
    }

    /// The chunk in flight that this result answers.
    fn outstanding(&self, core: &Core, header: &Header) -> Result<(usize, Slot), Reason> {
        if header.has(FOREIGN_FLAGS) {
            return Err(Reason::BadType);
        }
        if header.contributors != core.params.world {
            return Err(Reason::WrongWorker);
        }
        let slot = self.pool.slot(header.slot).ok_or(Reason::WrongSlot)?;
        let entry = *core.slots.get(slot);
        let expected = entry.seq as u32;
        if is_later(expected, header.seq) {
            return Err(if header.seq == entry.previous { Reason::Duplicate } else { Reason::Stale });
        }
        if header.seq != expected {
            return Err(Reason::OutOfTurn);
        }
        let is_flying = matches!(entry.state, State::Flying | State::Lost);
        if header.has(flag::EXPONENT) && !(entry.asks && is_flying) {
            // The elements may be on their way already; or, of a chunk that was not sent at all, nothing is.
            return Err(if entry.asks || is_flying { Reason::Duplicate } else { Reason::OutOfTurn });
        }
        if !is_flying || entry.asks != header.has(flag::EXPONENT) {
            return Err(Reason::OutOfTurn);
        }
        if header.pool_version() != entry.version {
            return Err(Reason::WrongSlot);
        }
        Ok((slot, entry))
    }

    /// The answer to a question: the chunk's elements are wanted.
    fn resend(core: &mut Core, slot: usize, entry: &Slot, header: &Header) -> Result<(), Reason> {
        if !entry.questioned || entry.wanted {
            // They have been sent since, or will be.
            return Err(Reason::Duplicate);
        }
        core.check_short(entry, header)?;
        core.slots.want(slot);
        core.stats.missing += 1;
        Ok(())
    }

    /// All workers' exponents of a chunk are known: its elements may go.
    fn agree(core: &mut Core, now: Time, slot: usize, entry: Slot, header: &Header) -> Result<(), Reason> {
        core.check_short(&entry, header)?;
        // Everybody has the chunk, or it would not have been asked for.
        if header.exponent == exponent::UNKNOWN {
            return Err(Reason::WrongPlace);
        }
        core.slots.agree(slot, header.exponent);
        core.learn(now, &entry, header.timestamp);
        core.refresh_gauges();
        Ok(())
    }

    /// Writes a result to its tensor and lets the slot go on.
    fn accept(
        &mut self,
        core: &mut Core,
        now: Time,
        slot: usize,
        entry: Slot,
        header: &Header,
        elements: &[u8],
    ) -> Result<(), Reason> {
        if core.stream.waiting(entry.op, entry.seq).is_none() {
            given_twice(core, &entry);
            return Err(Reason::Internal);
        }
        let after = self.pool.follow(entry.after, header.next_seq).ok_or(Reason::OutOfTurn)?;
        core.deliver(now, &entry, Form::Scaled(entry.exponent), header, elements)?;
        core.stats.steals += u64::from(after != self.pool.regular(entry.seq));
        let op = core.stream.find(entry.after, entry.op);
        core.slots.advance(slot, after, header.next_exponent, op);
        core.learn(now, &entry, header.timestamp);
        core.refresh_gauges();
        Ok(())
    }
}

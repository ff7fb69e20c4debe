//! Results of the dynamic mode: only what a chunk in flight waits for changes anything.

use sumac_wire::{
    Header, Reason,
    header::{exponent, flag},
    stream::is_later,
};

use super::{Dynamic, form};
use crate::{
    chunk::Form,
    engine::{Core, check_empty},
    packet::Packet,
    slots::{Slot, State},
    time::Time,
};

/// Flags of the other modes, and of packets between aggregators.
const FOREIGN: u16 = flag::PARTIAL | flag::LEVEL | flag::POOL_VERSION | flag::EXPONENT | flag::QUERY;

/// A result as it came.
struct Arrival<'a> {
    now: Time,
    header: &'a Header,
    elements: &'a [u8],
    /// Whether the network was congested on its last way.
    is_marked: bool,
}

impl Dynamic {
    /// Takes a result of this job.
    pub fn on_result(&mut self, core: &mut Core, now: Time, packet: &Packet<'_>) -> Result<(), Reason> {
        let Packet { header, elements, is_marked, .. } = packet;
        let (slot, entry) = self.outstanding(core, header)?;
        if header.has(flag::MISMATCH) {
            check_empty(header)?;
            return core.mismatch(&entry, header);
        }
        if header.contributors != core.params.world {
            return Err(Reason::WrongWorker);
        }
        let arrival = Arrival { now, header, elements, is_marked: *is_marked };
        if header.elements == 0 {
            self.ask(core, slot, &entry, &arrival)
        } else {
            self.accept(core, slot, &entry, &arrival)
        }
    }

    /// The chunk in flight that this result answers.
    fn outstanding(&self, core: &Core, header: &Header) -> Result<(usize, Slot), Reason> {
        if header.has(FOREIGN) {
            return Err(Reason::BadType);
        }
        if header.lane != core.params.lane {
            return Err(Reason::WrongPlace);
        }
        let (base, window) = (self.base as u32, self.params.window);
        if is_later(base, header.seq) {
            let is_recent = base.wrapping_sub(header.seq) <= window;
            return Err(if is_recent { Reason::Duplicate } else { Reason::Stale });
        }
        let ahead = header.seq.wrapping_sub(base);
        if ahead >= window {
            return Err(Reason::OutOfTurn);
        }
        let seq = self.base + u64::from(ahead);
        let slot = self.ring(seq);
        let entry = *core.slots.get(slot);
        if entry.seq != seq {
            return Err(Reason::Duplicate);
        }
        match entry.state {
            State::Flying | State::Lost => Ok((slot, entry)),
            // Asked for its floats, and not sent since.
            State::Ready => Err(Reason::Duplicate),
            State::Waiting => Err(Reason::OutOfTurn),
        }
    }

    /// The form in which a chunk in flight was sent.
    fn form_of(&self, core: &mut Core, entry: &Slot) -> Result<Form, Reason> {
        let pending = core.stream.waiting(entry.op, entry.seq).ok_or(Reason::Internal)?;
        Ok(form(&core.numbers, &pending.operation, entry))
    }

    /// A sum overflowed: the chunk's floats are wanted (ATP section 3.8).
    fn ask(
        &mut self,
        core: &mut Core,
        slot: usize,
        entry: &Slot,
        arrival: &Arrival<'_>,
    ) -> Result<(), Reason> {
        let header = arrival.header;
        if !header.has(flag::RAW_FLOAT) {
            return Err(Reason::WrongElements);
        }
        core.check_short(entry, header)?;
        if self.form_of(core, entry)? == Form::Floats {
            // They are on their way, or will be.
            return Err(Reason::Duplicate);
        }
        // It answers the integers: everybody's came.
        core.slots.want_floats(slot);
        core.stats.raw_chunks += 1;
        self.judge(core, entry, arrival);
        self.refresh_gauges(core);
        Ok(())
    }

    /// Writes a result to its tensor, and lets the window go on.
    fn accept(
        &mut self,
        core: &mut Core,
        slot: usize,
        entry: &Slot,
        arrival: &Arrival<'_>,
    ) -> Result<(), Reason> {
        let Arrival { now, header, elements, .. } = *arrival;
        let is_settled = entry.seq >= self.settled_from;
        let form = match (self.form_of(core, entry)?, header.has(flag::RAW_FLOAT)) {
            // It may have been summed before a worker was replaced, whatever was sent since.
            (_, true) if !is_settled => Form::Floats,
            (_, false) if !is_settled => Form::Scaled(header.exponent),
            (form, is_raw) if is_raw == (form == Form::Floats) => form,
            _ => return Err(Reason::OutOfTurn),
        };
        let has_collided = header.has(flag::COLLISION);
        if has_collided && !self.places.has(header.bitmap_0) {
            return Err(Reason::WrongSlot);
        }
        core.deliver(now, entry, form, header, elements)?;

        core.stats.collisions += u64::from(has_collided);
        if is_settled {
            self.places.met(entry.seq, has_collided.then_some(header.bitmap_0));
        }
        self.places.pass(entry.seq, is_settled && header.has(flag::RESEND));
        let next_exponent = if is_settled { header.next_exponent } else { exponent::UNKNOWN };
        let after = entry.after + u64::from(self.params.window);
        core.slots.go_on(slot, after, next_exponent);
        while core.slots.get(self.ring(self.base)).seq != self.base {
            self.base += 1;
        }
        self.judge(core, entry, arrival);
        self.refresh_gauges(core);
        Ok(())
    }

    /// What a result says of the way there and back.
    fn judge(&mut self, core: &mut Core, entry: &Slot, arrival: &Arrival<'_>) {
        self.way.on_result();
        let lost = core.learn(arrival.now, entry, arrival.header.timestamp);
        if !entry.resent && entry.state != State::Lost {
            // It says little of the path when another worker's recovery was waited for, but that chunks get through.
            core.backoff.reset();
        }
        // What only this worker knows goes back with its next packet; what all know decides, on all alike.
        self.echoes |= arrival.is_marked;
        let is_echoed = arrival.header.has(flag::ECN_ECHO);
        core.stats.marked += u64::from(arrival.is_marked || is_echoed);
        if is_echoed {
            // All workers have halved their windows, for what this one alone had seen so far as well.
            self.echoes &= !self.congested(core, entry.seq);
        } else {
            self.congestion.on_result(entry.seq);
        }
        lost.into_iter().for_each(|seq| self.lost(core, seq));
    }
}

//! Results of the dynamic mode: only the answer to a chunk in flight changes anything.

use sumac_wire::{
    Header, Reason,
    header::{exponent, flag},
    stream::is_later,
};

use super::{DynamicMode, WindowEntry, slot_map::CollisionFeedback};
use crate::{
    chunk::Form,
    engine_core::{Core, check_empty},
    in_flight::{ChunkRecord, ChunkState},
    loss::Acknowledged,
    packet::Packet,
};

/// Flags of the other modes, and of packets between aggregators.
const FOREIGN_FLAGS: u16 = flag::LEVEL | flag::POOL_VERSION | flag::EXPONENT | flag::QUERY;

impl DynamicMode {
    pub(super) fn receive(&mut self, core: &mut Core, packet: &Packet<'_>) -> Result<(), Reason> {
        let header = &packet.header;
        let record = self.answered(core, header)?;
        if header.has(flag::MISMATCH) {
            check_empty(header)?;
            return core.mismatch(&record, header);
        }
        let is_partial = header.has(flag::PARTIAL);
        if is_partial {
            check_partial(core, &record, header)?;
        } else if header.contributors != core.params.world {
            return Err(Reason::WrongWorker);
        }
        if header.elements == 0 && !is_partial {
            self.on_float_request(core, &record, packet)
        } else {
            self.accept(core, &record, packet)
        }
    }

    /// The chunk in flight that a result answers.
    fn answered(&self, core: &Core, header: &Header) -> Result<ChunkRecord, Reason> {
        if header.has(FOREIGN_FLAGS) {
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
        let record = *core.in_flight.get(self.index(seq));
        if record.seq != seq {
            return Err(Reason::Duplicate);
        }
        let operation = match record.state {
            ChunkState::Sent | ChunkState::Lost => record.operation,
            // This worker is late, and the others did not wait for it.
            ChunkState::Held | ChunkState::Ready if header.has(flag::PARTIAL) => record.operation,
            ChunkState::Idle if header.has(flag::PARTIAL) => {
                core.stream.find(seq, self.near).ok_or(Reason::OutOfTurn)?
            }
            // Its floats were asked for, and not sent since.
            ChunkState::Ready => return Err(Reason::Duplicate),
            ChunkState::Idle | ChunkState::Held => return Err(Reason::OutOfTurn),
        };
        let first_sent = if record.state.is_sent() { record.first_sent } else { core.now };
        Ok(ChunkRecord { operation, first_sent, ..record })
    }

    /// The form in which a chunk in flight was sent.
    fn form_of(&self, core: &Core, record: &ChunkRecord) -> Result<Form, Reason> {
        let pending = core.stream.waiting(record.operation, record.seq).ok_or(Reason::Internal)?;
        Ok(self.form(core, pending, record.seq))
    }

    /// Processes a request for a chunk's floats: its sum overflowed (ATP section 3.8).
    fn on_float_request(
        &mut self,
        core: &mut Core,
        record: &ChunkRecord,
        packet: &Packet<'_>,
    ) -> Result<(), Reason> {
        let header = &packet.header;
        if !header.has(flag::RAW_FLOAT) || core.is_exponents(record) {
            return Err(Reason::WrongElements);
        }
        core.check_short(record, header)?;
        if self.form_of(core, record)? == Form::Floats {
            // They have been sent, or will be.
            return Err(Reason::Duplicate);
        }
        // It acknowledges the integers: those of all workers came.
        let index = self.index(record.seq);
        core.in_flight.reopen(index);
        self.entries[index].is_raw = true;
        core.stats.raw_chunks += 1;
        self.acknowledge(core, record, packet);
        self.refresh_gauges(core);
        Ok(())
    }

    /// Writes a result to its tensor, and advances the window.
    fn accept(&mut self, core: &mut Core, record: &ChunkRecord, packet: &Packet<'_>) -> Result<(), Reason> {
        let Packet { header, elements, .. } = packet;
        let seq = record.seq;
        let is_settled = seq >= self.settled_from;
        // It may have been summed before a worker was replaced, in another form than was sent since; or by
        // others, before the exponent is known here.
        let is_known = is_settled && record.state.is_sent();
        let form = match (self.form_of(core, record)?, header.has(flag::RAW_FLOAT)) {
            (_, true) if !is_known => Form::Floats,
            (_, false) if !is_known => Form::Scaled(header.exponent),
            (form, is_raw) if is_raw == (form == Form::Floats) => form,
            _ => return Err(Reason::OutOfTurn),
        };
        let has_collided = header.has(flag::COLLISION);
        if has_collided && !self.slot_map.has(header.bitmap_0) {
            return Err(Reason::WrongSlot);
        }
        let is_exponents = core.is_exponents(record);
        core.deliver(record, form, header, elements)?;

        core.stats.collisions += u64::from(has_collided);
        if is_settled && !header.has(flag::PARTIAL) {
            let other = has_collided.then_some(header.bitmap_0);
            self.slot_map.on_feedback(seq, other.map_or(CollisionFeedback::Free, CollisionFeedback::Busy));
        }
        if is_settled && header.has(flag::RESEND) {
            self.slot_map.on_bypass(seq);
        }
        let next_exponent = if is_settled { header.next_exponent } else { exponent::UNKNOWN };
        let index = self.index(seq);
        core.in_flight.advance(index, seq + u64::from(self.params.window));
        self.entries[index] = WindowEntry { exponent: next_exponent, is_raw: false, is_begun: false };
        self.note_begun(core, seq, header.bitmap_1);
        while core.in_flight.get(self.index(self.base)).seq != self.base {
            self.base += 1;
        }
        if is_exponents {
            self.release_held(core);
        }
        match record.state.is_sent() {
            true => self.acknowledge(core, record, packet),
            false => self.on_unsent_result(core, record),
        }
        self.refresh_gauges(core);
        Ok(())
    }

    /// Processes the result of a chunk that this worker has not sent, and need not send any more.
    fn on_unsent_result(&mut self, core: &mut Core, record: &ChunkRecord) {
        self.path.on_result();
        core.note_result(record.operation);
        self.skip_answered(core);
    }

    /// Notes the chunks after `seq`, a bit each, of which the parameter host has a part. Those to be sent yet
    /// bypass their slots: a worker that is ahead may have sent a whole window past them, and others would
    /// wait for each of its chunks.
    fn note_begun(&mut self, core: &Core, seq: u64, begun: u32) {
        for later in
            (0..u32::BITS).filter(|ahead| begun >> ahead & 1 == 1).map(|ahead| seq + 1 + u64::from(ahead))
        {
            let index = self.index(later);
            self.entries[index].is_begun |= core.in_flight.get(index).seq == later;
        }
    }

    fn acknowledge(&mut self, core: &mut Core, record: &ChunkRecord, packet: &Packet<'_>) {
        self.path.on_result();
        let was_suspected = record.is_resent || record.state == ChunkState::Lost;
        let is_marked = packet.is_marked || packet.header.has(flag::ECN_ECHO);
        let Acknowledged { lost, is_spurious, is_repaired } =
            core.acknowledge(record, &packet.header, is_marked);
        if is_repaired {
            // Another worker's packet may have been lost: that lowers all of this worker's paths alike.
            core.on_path_loss(record.lost_path);
        }
        if !was_suspected {
            // Where another worker's recovery was waited for it is no sample, but shows that chunks get
            // through.
            core.backoff.reset();
        }
        if !core.take_marks(packet, self.event(record.seq, 0)) {
            core.budget.on_result(record.seq);
        }
        // A slot was busy for some packets of the chunk and free for others, which waited for them in vain
        // (ATP section 3.6). That looks like a loss, and is none. If the network is congested, it marks.
        let has_collided = was_suspected && packet.header.has(flag::COLLISION);
        if (is_spurious || has_collided) && !self.first_of_burst.contains(&record.seq) {
            core.on_spurious_loss();
        }
        lost.into_iter().for_each(|lost| self.on_loss(core, lost));
    }
}

/// Checks a result without some workers: it names those that are in it, and this worker is not, if it has not
/// sent the chunk.
fn check_partial(core: &Core, record: &ChunkRecord, header: &Header) -> Result<(), Reason> {
    let pending = core.stream.waiting(record.operation, record.seq).ok_or(Reason::OutOfTurn)?;
    let ledger = pending.ledger.as_ref().ok_or(Reason::BadType)?;
    ledger.check(header)?;
    // It has the ranks where others have a new slot.
    if header.has(flag::COLLISION) {
        return Err(Reason::BadType);
    }
    if record.state.is_sent() || ledger.is_left_out(header.bitmap_0) {
        Ok(())
    } else {
        Err(Reason::OutOfTurn)
    }
}

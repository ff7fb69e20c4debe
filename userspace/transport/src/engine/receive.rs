//! The way in: every frame ends in exactly one counter, and only the answer to a chunk in flight
//! changes anything.

use sumac_wire::{
    Header, Kind, Reason,
    header::{HEADER_LEN, exponent, flag},
    stream::is_later,
};

use super::{Engine, Phase};
use crate::{
    convert::Arithmetic,
    error::OpError,
    slots::{Slot, State},
    time::Time,
    timer,
};

/// Flags of the other modes: a result with one of them is not what was asked for.
const FOREIGN_FLAGS: u16 = flag::COLLISION | flag::PARTIAL | flag::RAW_FLOAT | flag::LEVEL;

impl Engine {
    /// Takes one UDP payload: Sumac's header and elements. What is not the answer to something in
    /// flight is counted by reason and changes nothing.
    pub fn on_frame(&mut self, now: Time, payload: &[u8]) {
        self.now = now;
        self.stats.bytes_received += payload.len() as u64;
        let reason = match self.dispatch(now, payload) {
            Ok(()) => Reason::Steered,
            Err(reason) => reason,
        };
        self.stats.frames.count(reason);
    }

    fn dispatch(&mut self, now: Time, payload: &[u8]) -> Result<(), Reason> {
        let header = Header::read(payload, 0, payload.len())?;
        self.identify(&header)?;
        if header.kind == Kind::Result as u8 {
            let (slot, entry) = self.outstanding(&header)?;
            self.accept(now, slot, entry, &header, &payload[HEADER_LEN..])
        } else if header.kind == Kind::Report as u8 {
            self.report(now, &header);
            Ok(())
        } else {
            Err(Reason::BadType)
        }
    }

    /// Is it this job's?
    fn identify(&self, header: &Header) -> Result<(), Reason> {
        if matches!(self.phase, Phase::Failed(_)) || header.job != self.params.job {
            return Err(Reason::UnknownJob);
        }
        if header.token != self.params.token {
            return Err(Reason::BadToken);
        }
        if header.epoch != self.params.epoch {
            return Err(Reason::WrongEpoch);
        }
        Ok(())
    }

    fn report(&mut self, now: Time, header: &Header) {
        self.stats.reports += 1;
        // A late answer to a repeated probe is as good as none.
        let Phase::Probing(handshake) = &mut self.phase else { return };
        if let Some(verdict) = handshake.on_report(now, header, &self.params) {
            self.conclude(verdict);
        }
    }

    /// The chunk in flight that this result answers.
    fn outstanding(&self, header: &Header) -> Result<(usize, Slot), Reason> {
        if header.has(FOREIGN_FLAGS) {
            return Err(Reason::BadType);
        }
        if header.contributors != self.params.world {
            return Err(Reason::WrongWorker);
        }
        let slot = self.pool.slot(u64::from(header.seq));
        let entry = *self.slots.get(slot);
        let expected = entry.seq as u32;
        if is_later(expected, header.seq) {
            let previous = expected.wrapping_sub(self.params.slots);
            return Err(if header.seq == previous { Reason::Duplicate } else { Reason::Stale });
        }
        if header.seq != expected || !matches!(entry.state, State::Flying | State::Lost) {
            return Err(Reason::OutOfTurn);
        }
        let place = self.pool.place(entry.seq);
        if header.slot != place.slot || header.pool_version() != place.version {
            return Err(Reason::WrongSlot);
        }
        Ok((slot, entry))
    }

    /// Writes a result to its tensor and lets the slot go on.
    fn accept(
        &mut self,
        now: Time,
        slot: usize,
        entry: Slot,
        header: &Header,
        elements: &[u8],
    ) -> Result<(), Reason> {
        let pending = self.stream.get_mut(entry.op).ok_or(Reason::Internal)?;
        let range = pending.range(entry.seq, usize::from(self.params.elements));
        if usize::from(header.elements) != range.elements {
            return Err(Reason::WrongElements);
        }
        let operation = &mut pending.operation;
        if header.tensor != operation.tensor || header.offset != range.first as u32 {
            return Err(Reason::WrongPlace);
        }
        let size = operation.dtype.size();
        let output = operation.buffer.output(range.first * size, range.elements * size);
        let written = output.len() / size;
        self.codec.decode(operation.dtype, Arithmetic::Sum, exponent::NONE, elements, output);
        if written < range.elements {
            let index = range.first + written;
            pending.blame(OpError::ShortBuffer { tensor: header.tensor, index });
        }
        if header.has(flag::OVERFLOW) {
            pending.blame_peer(range);
            self.stats.results_saturated += 1;
        }
        pending.chunk_done(now);
        self.stats.results += 1;
        self.stats.elements_received += range.elements as u64;

        let next = self.pool.next(entry.seq);
        let op = self.stream.find(next, entry.op);
        self.slots.advance(slot, next, op);
        self.learn(now, &entry, header.timestamp);
        self.refresh_gauges();
        Ok(())
    }

    /// What the answer says about the path, and about packets sent before the one it answers.
    ///
    /// A result echoes the clock of the packet that completed its slot, or asked for it again. `echo`
    /// being this worker's own, nobody was waited for: the time is the path's. Else the answer may be
    /// as late as the slowest worker, or as another's recovery from a loss; it counts only when it
    /// is no later than usual, or a loss anywhere would lengthen everybody's timeouts.
    fn learn(&mut self, now: Time, answered: &Slot, echo: u32) {
        self.stats.retransmits_spared += u64::from(answered.state == State::Lost);
        self.silence.end(now);
        let rtt = now.since(answered.sent);
        let own = echo == answered.sent.stamp();
        let once = !answered.resent && answered.state != State::Lost;
        let delayed = self.silence.delayed(answered.sent);
        if own || once && !delayed && self.rtt.is_usual(rtt) {
            self.rtt.sample(rtt, answered.index, self.next_index);
            self.backoff.reset();
        } else if !once {
            self.backoff.keep(answered.level);
        }
        if !once {
            // Nobody knows which transmission was answered: no sure sign of order.
            if !delayed || self.rtt.is_likely(rtt) {
                self.later.note_again(answered.index);
            }
            return;
        }
        self.later.note(answered.index);
        while let Some((slot, index)) = timer::oldest(&self.slots) {
            if !self.later.outrun(index) {
                break;
            }
            self.slots.lose(slot, false);
            self.stats.retransmits_fast += 1;
        }
    }
}

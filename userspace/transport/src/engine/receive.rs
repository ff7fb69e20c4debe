//! The way in: every frame ends in exactly one counter, and only the answer to a chunk in flight
//! changes anything.

use sumac_wire::{
    Header, Kind, Reason,
    header::{HEADER_LEN, exponent, flag},
    stream::is_later,
};

use super::{Engine, Phase};
use crate::{
    chunk::{Numbers, Span},
    error::JobError,
    operation::Operation,
    params::NotFinite,
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

    /// The same of a payload whose IP header the network has marked: congestion experienced.
    pub fn on_marked_frame(&mut self, now: Time, payload: &[u8]) {
        self.on_frame(now, payload);
    }

    fn dispatch(&mut self, now: Time, payload: &[u8]) -> Result<(), Reason> {
        let header = Header::read(payload, 0, payload.len())?;
        self.identify(&header)?;
        if header.kind == Kind::Result as u8 {
            let (slot, entry) = self.outstanding(&header)?;
            if header.has(flag::MISMATCH) {
                self.mismatch(&entry, &header)
            } else if header.has(flag::QUERY) {
                self.resend(slot, &entry, &header)
            } else if header.has(flag::EXPONENT) {
                self.agree(now, slot, entry, &header)
            } else {
                self.accept(now, slot, entry, &header, &payload[HEADER_LEN..])
            }
        } else if header.kind == Kind::Report as u8 {
            self.report(now, &header)
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

    fn report(&mut self, now: Time, header: &Header) -> Result<(), Reason> {
        if header.tensor != u32::from(self.params.lane) {
            return Err(Reason::WrongPlace);
        }
        self.stats.reports += 1;
        match &mut self.phase {
            Phase::Probing(handshake) => {
                let verdict = handshake.on_report(now, header, &self.params);
                self.conclude(now, verdict);
            }
            Phase::Measuring(train) => {
                let measure = train.on_report(now, header.seq);
                self.measured(measure);
            }
            // A late answer to a repeated probe is as good as none.
            Phase::Measured(_) | Phase::Ready | Phase::Failed(_) => {}
        }
        Ok(())
    }

    /// The chunk in flight that this result answers.
    fn outstanding(&self, header: &Header) -> Result<(usize, Slot), Reason> {
        if header.has(FOREIGN_FLAGS) {
            return Err(Reason::BadType);
        }
        if header.contributors != self.params.world {
            return Err(Reason::WrongWorker);
        }
        let slot = self.pool.slot(header.slot).ok_or(Reason::WrongSlot)?;
        let entry = *self.slots.get(slot);
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

    /// Another worker takes the chunk for another operation's: the job is over.
    fn mismatch(&mut self, entry: &Slot, header: &Header) -> Result<(), Reason> {
        let pending = self.stream.get_mut(entry.op).ok_or(Reason::Internal)?;
        let operation = &pending.operation;
        let base = operation.base.wrapping_add(pending.first(entry.seq) as u32);
        let (signature, theirs) = (operation.signature, header.tensor);
        if header.offset != base || theirs == signature {
            return Err(Reason::WrongPlace);
        }
        self.stats.mismatches += 1;
        self.fail(JobError::Mismatch { lane: self.params.lane, seq: header.seq, base, signature, theirs });
        Ok(())
    }

    /// Whether a header without elements is of the slot's chunk.
    fn check_short(&mut self, entry: &Slot, header: &Header) -> Result<(), Reason> {
        let pending = self.stream.get_mut(entry.op).ok_or(Reason::Internal)?;
        let operation = &pending.operation;
        let offset = operation.base.wrapping_add(pending.first(entry.seq) as u32);
        if header.tensor != operation.signature || header.offset != offset {
            return Err(Reason::WrongPlace);
        }
        if header.elements != 0 {
            return Err(Reason::WrongElements);
        }
        Ok(())
    }

    /// The answer to a question: the chunk's elements are wanted.
    fn resend(&mut self, slot: usize, entry: &Slot, header: &Header) -> Result<(), Reason> {
        if !entry.questioned || entry.wanted {
            // They have been sent since, or will be.
            return Err(Reason::Duplicate);
        }
        self.check_short(entry, header)?;
        self.slots.want(slot);
        self.stats.missing += 1;
        Ok(())
    }

    /// All workers' exponents of a chunk are known: its elements may go.
    fn agree(&mut self, now: Time, slot: usize, entry: Slot, header: &Header) -> Result<(), Reason> {
        self.check_short(&entry, header)?;
        // Everybody has the chunk, or it would not have been asked for.
        if header.exponent == exponent::UNKNOWN {
            return Err(Reason::WrongPlace);
        }
        self.slots.agree(slot, header.exponent);
        self.learn(now, &entry, header.timestamp);
        self.refresh_gauges();
        Ok(())
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
        let Some(pending) = self.stream.waiting(entry.op, entry.seq) else {
            self.given_twice(&entry);
            return Err(Reason::Internal);
        };
        let first = pending.first(entry.seq);
        let operation = &mut pending.operation;
        let span = self.numbers.span(operation, first);
        check_place(&self.numbers, operation, span, entry.exponent, header)?;
        let after = self.pool.follow(entry.after, header.next_seq).ok_or(Reason::OutOfTurn)?;

        let is_faulty = header.has(flag::OVERFLOW | flag::NOT_FINITE);
        let carries = header.has(flag::NOT_FINITE) && self.params.not_finite == NotFinite::Carry;
        let read = self.numbers.read(operation, span, entry.exponent, elements, carries);
        self.stats.elements_received += read.values as u64;
        read.fault.into_iter().for_each(|fault| pending.blame(fault));
        if header.has(flag::OVERFLOW) || header.has(flag::NOT_FINITE) && !carries {
            pending.blame_peer(span);
        }
        self.stream.chunk_done(entry.op, entry.seq, now);
        self.stats.results_faulty += u64::from(is_faulty);
        self.stats.results += 1;
        self.stats.steals += u64::from(after != self.pool.regular(entry.seq));
        self.stats.completions.record(now.since(entry.begun));

        let op = self.stream.find(entry.after, entry.op);
        self.slots.advance(slot, after, header.next_exponent, op);
        self.learn(now, &entry, header.timestamp);
        self.refresh_gauges();
        Ok(())
    }

    /// An answer for a chunk of this operation: all workers have begun it, and those before it. Its other chunks in
    /// flight may be lost from now on, and not only early.
    fn begin(&mut self, now: Time, op: u64) {
        if op < self.begun {
            return;
        }
        self.begun = op + 1;
        // Packets that were sent later but belong to an operation before say nothing of these: where there are any, only
        // what is sent from now on does.
        let latest = self.later.latest().max(self.slots.latest_sure());
        let is_first = |first: &Slot| first.index > latest;
        let anew = !self.slots.first_unsure().is_some_and(|(_, first)| is_first(first));
        // All of them: those that were asked about in a silence stand behind later operations'.
        let mut next = self.slots.first_unsure().map(|(slot, first)| (slot, first.op));
        while let Some((slot, its)) = next {
            next = self.slots.next_of(slot).map(|(slot, entry)| (slot, entry.op));
            if its <= op {
                self.slots.make_sure(slot, anew.then_some((now, self.next_index - 1)));
            }
        }
    }

    /// What the answer says about the path, and about packets sent before the one it answers.
    ///
    /// A result echoes the clock of the packet that completed its slot, or asked for it again. `echo`
    /// being this worker's own, nobody was waited for: the time is the path's. Else the answer may be
    /// as late as the slowest worker, or as another's recovery from a loss; it counts only when it
    /// is no later than usual, or a loss anywhere would lengthen everybody's timeouts.
    fn learn(&mut self, now: Time, answered: &Slot, echo: u32) {
        self.begin(now, answered.op);
        self.stats.suspects_spared += u64::from(answered.state == State::Lost);
        self.silence.end(now);
        let rtt = now.since(answered.sent);
        let own = echo == answered.sent.stamp() && !answered.questioned;
        let once = !answered.resent && answered.state != State::Lost;
        let delayed = self.silence.delayed(answered.sent);
        if once {
            self.stats.round_trips.record(rtt);
        }
        if own || once && !delayed && self.rtt.is_usual(rtt) {
            self.rtt.sample(rtt, answered.index, self.next_index);
            self.backoff.reset();
        } else if !once {
            self.backoff.keep(answered.level);
        }
        if !once && !own {
            // Nobody knows which transmission was answered: no sure sign of order.
            if !delayed || self.rtt.is_likely(rtt) {
                self.later.note_again(answered.index);
            }
            return;
        }
        self.later.note(answered.index);
        while let Some((slot, threshold)) = timer::oldest(&self.slots) {
            if !self.later.outrun(threshold) {
                break;
            }
            self.slots.lose(slot, false);
            self.stats.suspects_fast += 1;
        }
    }
}

/// Whether a result is of these values, as they were asked for.
fn check_place(
    numbers: &Numbers,
    operation: &Operation,
    span: Span,
    exponent: i8,
    header: &Header,
) -> Result<(), Reason> {
    if header.format != numbers.format(operation) as u8 {
        return Err(Reason::BadFormat);
    }
    if usize::from(header.elements) != span.words {
        return Err(Reason::WrongElements);
    }
    let offset = operation.base.wrapping_add(span.first as u32);
    let is_scaled_alike = !numbers.needs_exponent(operation) || header.exponent == exponent;
    if header.tensor != operation.signature || header.offset != offset || !is_scaled_alike {
        return Err(Reason::WrongPlace);
    }
    Ok(())
}

//! What the engine keeps in either mode: the stream of operations, what of it is in flight, and what answers taught about
//! the path.

use sumac_wire::{
    Header, Reason,
    admit::payload_len,
    header::{exponent, flag},
};

use crate::{
    chunk::{Form, Numbers},
    error::{JobError, SubmitError},
    handshake::Handshake,
    lane::shard_of,
    loss::LaterResults,
    measure::{PathMeasure, Train},
    operation::{Completion, OpId, Operation},
    params::{JobParams, NonFinitePolicy, Tuning},
    rtt::RttEstimator,
    silence::Silence,
    slots::{Slot, Slots},
    stats::{EngineStats, RttStats},
    stream::Stream,
    time::Time,
    timer::{Backoff, Timers},
};

/// How far the job has come.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The handshake.
    Probing(Handshake),
    /// The path is being measured (static mode).
    Measuring(Train),
    /// It has been.
    Measured(PathMeasure),
    /// Chunks flow, or would.
    Ready,
    /// The end.
    Failed(JobError),
}

/// The state that both modes work on.
pub(crate) struct Core {
    pub params: JobParams,
    pub tuning: Tuning,
    pub phase: Phase,
    pub numbers: Numbers,
    pub stream: Stream,
    pub slots: Slots,
    pub rtt: RttEstimator,
    pub backoff: Backoff,
    pub later: LaterResults,
    pub silence: Silence,
    /// Operations below this number have been begun by all workers: a result of the last one, or of a later one,
    /// came.
    pub begun: u64,
    /// Send index of the next packet.
    pub next_index: u64,
    /// The latest time that the caller told.
    pub now: Time,
    pub stats: EngineStats,
}

impl Core {
    /// Before the handshake, of a stream that begins with chunk `first`. `later`: how many later results are a sign of loss,
    /// where the tuning does not say.
    pub fn new(params: JobParams, tuning: &Tuning, slots: Slots, first: u64, later: u32) -> Core {
        Core {
            tuning: tuning.clone(),
            phase: Phase::Probing(Handshake::new(tuning)),
            numbers: Numbers::new(&params),
            stream: Stream::new(first),
            slots,
            begun: 0,
            rtt: RttEstimator::new(tuning),
            backoff: Backoff::default(),
            later: LaterResults::new(tuning.later_results.unwrap_or(later)),
            silence: Silence::default(),
            next_index: 1,
            now: Time(0),
            stats: EngineStats::default(),
            params,
        }
    }

    /// Queues an operation; gives its number. After the job has failed it completes at once, with the job's error.
    pub fn submit(&mut self, now: Time, operation: Operation) -> Result<OpId, (SubmitError, Operation)> {
        self.now = now;
        if let Err(error) = operation.check() {
            return Err((error, operation));
        }
        let chunk = self.numbers.chunk(&operation);
        if !self.stream.may_skip(&operation, chunk) {
            let Operation { signature, skip, .. } = operation;
            return Err((SubmitError::Skip { signature, skip }, operation));
        }
        self.stats.operations_submitted += 1;
        let number = self.stream.push(operation, chunk, now);
        if let Phase::Failed(why) = &self.phase {
            self.stream.fail_last(why);
        }
        Ok(OpId(number))
    }

    /// The next operation that ended, in the order of submission.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        let completion = self.stream.pop_complete()?;
        match completion.result {
            Ok(()) => self.stats.operations_completed += 1,
            Err(_) => self.stats.operations_failed += 1,
        }
        Some(completion)
    }

    /// Ends the job; the first reason stays.
    pub fn fail(&mut self, why: JobError) {
        if self.has_failed() {
            return;
        }
        self.stream.fail(&why, self.now);
        self.slots.clear();
        self.phase = Phase::Failed(why);
        self.refresh_gauges();
    }

    /// Whether the job is over.
    pub fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed(_))
    }

    /// What decides when a timer expires.
    pub fn timers(&self) -> Timers<'_> {
        let Core { slots, rtt, later, silence, backoff, .. } = self;
        // Where what is lost is sent again, and not only asked about, a wrong guess is dear.
        let restarts = self.params.dynamic.is_some();
        Timers { slots, rtt, later, silence, backoff: *backoff, restarts }
    }

    /// A chunk's timer has expired.
    pub fn expire_chunk(&mut self, slot: usize) {
        self.slots.lose(slot, true);
        self.stats.suspects_timer += 1;
    }

    /// Bytes of the longest packet.
    pub fn frame_len(&self) -> usize {
        payload_len(self.params.elements)
    }

    /// The shard of the lane, which counts its ports.
    pub fn shard(&self) -> u16 {
        shard_of(self.params.lane, self.params.shards)
    }

    /// Is a packet this job's?
    pub fn identify(&self, header: &Header) -> Result<(), Reason> {
        if self.has_failed() || header.job != self.params.job {
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

    /// The first element of a slot's chunk as packets carry it, and the operation's signature.
    pub fn place(&mut self, entry: &Slot) -> Result<(u32, u32), Reason> {
        let pending = self.stream.get_mut(entry.op).ok_or(Reason::Internal)?;
        let operation = &pending.operation;
        Ok((operation.base.wrapping_add(pending.first(entry.seq) as u32), operation.signature))
    }

    /// Whether a header without elements is of the slot's chunk.
    pub fn check_short(&mut self, entry: &Slot, header: &Header) -> Result<(), Reason> {
        if (header.offset, header.tensor) != self.place(entry)? {
            return Err(Reason::WrongPlace);
        }
        check_empty(header)
    }

    /// Another worker takes the chunk for another operation's: the job is over.
    pub fn mismatch(&mut self, entry: &Slot, header: &Header) -> Result<(), Reason> {
        let (base, signature) = self.place(entry)?;
        let theirs = header.tensor;
        if header.offset != base || theirs == signature {
            return Err(Reason::WrongPlace);
        }
        self.stats.mismatches += 1;
        self.fail(JobError::Mismatch { lane: self.params.lane, seq: header.seq, base, signature, theirs });
        Ok(())
    }

    /// The exponent of what this worker will give to the slot's next chunk (SwitchML section 4.6): all workers' go
    /// with this chunk's contributions, so that the next chunk's scale is known with this one's result.
    pub fn look_ahead(&mut self, entry: &Slot) -> i8 {
        let Some(pending) =
            self.stream.find(entry.after, entry.op).and_then(|number| self.stream.get_mut(number))
        else {
            return exponent::UNKNOWN;
        };
        let operation = &pending.operation;
        if !self.numbers.needs_exponent(operation) {
            return exponent::NONE;
        }
        let span = self.numbers.span(operation, pending.first(entry.after));
        self.stats.elements_scanned += self.numbers.given(operation, span) as u64;
        self.numbers.exponent(operation, span)
    }

    /// Writes a chunk's result to its tensor, when it is what was asked for.
    pub fn deliver(
        &mut self,
        now: Time,
        entry: &Slot,
        form: Form,
        header: &Header,
        elements: &[u8],
    ) -> Result<(), Reason> {
        let pending = self.stream.waiting(entry.op, entry.seq).ok_or(Reason::Internal)?;
        let first = pending.first(entry.seq);
        let operation = &mut pending.operation;
        let span = self.numbers.span(operation, first);
        self.numbers.check(operation, span, form, header)?;

        let carries = header.has(flag::NOT_FINITE) && self.params.not_finite == NonFinitePolicy::Carry;
        let read = self.numbers.read(operation, span, form, elements, carries);
        self.stats.elements_received += read.values as u64;
        read.fault.into_iter().for_each(|fault| pending.blame(fault));
        let is_refused = header.has(flag::OVERFLOW) || header.has(flag::NOT_FINITE) && !carries;
        if is_refused {
            match self.numbers.may_overflow(&pending.operation) {
                true => pending.blame_sum(span),
                false => pending.blame_peer(span),
            }
        }
        self.stream.chunk_done(entry.op, entry.seq, now);
        self.stats.results_faulty += u64::from(header.has(flag::OVERFLOW | flag::NOT_FINITE));
        self.stats.results += 1;
        self.stats.completions.record(now.since(entry.begun));
        Ok(())
    }

    /// Brings those statistics up to date that are states, not counters.
    pub fn refresh_gauges(&mut self) {
        self.stats.in_flight = self.slots.in_flight() as u64;
        self.stats.rtt = RttStats {
            smoothed_ns: self.rtt.smoothed(),
            variation_ns: self.rtt.variation(),
            shortest_ns: self.rtt.shortest(),
            timeout_ns: self.rtt.timeout(usize::from(self.backoff.level())),
            timeout_begun_ns: self.rtt.timeout_begun(usize::from(self.backoff.level())),
        };
    }
}

/// Whether a header is without elements.
pub(crate) fn check_empty(header: &Header) -> Result<(), Reason> {
    if header.elements == 0 { Ok(()) } else { Err(Reason::WrongElements) }
}

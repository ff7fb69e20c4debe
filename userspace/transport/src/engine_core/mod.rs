//! The state and steps that all modes share: the stream of operations, the chunks in flight, and the path's
//! estimates.

mod acknowledge;
mod budget;
mod deadlines;
mod exponents;
mod transmit;

pub(crate) use self::budget::Budget;

use serde::{Deserialize, Serialize};
use sumac_job::{PathMeasure, result_token};
use sumac_wire::{Header, MAX_WORKERS, Reason, admit::payload_len, header::flag};

use crate::{
    bounded_loss::Ledger,
    budget::{CongestionEvent, MaySend},
    chunk::{ChunkCodec, Form},
    error::{JobError, SubmitError},
    in_flight::{ChunkRecord, InFlight},
    loss::LossDetector,
    operation::{Completion, OpId, Operation},
    params::{JobParams, Tuning},
    path_check::PathCheck,
    paths::Paths,
    probe_timeout::ProbeTimeout,
    result_paths::ResultPaths,
    rtt::RttEstimator,
    stats::{EngineStats, RttStats},
    stream::Stream,
    time::Time,
    timer::{Backoff, Expiry, Timers},
};

/// The state of the job on this lane.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// No chunk may be sent before the peers have answered probes.
    Probing,
    /// The path was measured, and the number of slots is to be set.
    Measured(PathMeasure),
    /// Chunks may be sent.
    Ready,
    /// The job has ended, and is not handed over.
    #[serde(skip)]
    Failed(JobError),
}

/// The properties in which the modes' use of the core differs.
pub(crate) struct CoreParams {
    pub in_flight: InFlight,
    pub budget: Budget,
    pub probe_timeout: ProbeTimeout,
    /// Whether a wrong guess of a loss is costly: each result restarts all retransmission timers, and the
    /// reordering window is wider.
    pub is_cautious: bool,
}

/// The state that all modes work on.
#[derive(Serialize, Deserialize)]
pub(crate) struct Core {
    pub params: JobParams,
    /// The token of packets to this worker.
    answer_token: u64,
    pub tuning: Tuning,
    pub phase: Phase,
    /// The codec that the parameters require.
    #[serde(skip, default = "ChunkCodec::unset")]
    pub codec: ChunkCodec,
    pub stream: Stream,
    pub in_flight: InFlight,
    pub rtt: RttEstimator,
    pub backoff: Backoff,
    pub loss: LossDetector,
    pub paths: Paths,
    pub probe_timeout: ProbeTimeout,
    pub path_check: PathCheck,
    pub result_paths: ResultPaths,
    pub budget: Budget,
    /// Whether the latest result was one without some workers.
    latest_is_partial: bool,
    /// The time of the last tail loss probe.
    tail_probed: Time,
    /// Tail loss probes since the last result.
    tail_probes: u32,
    /// Whether a mark, or a loss, is to go out with the next contribution, so that its result reaches all
    /// workers with it; also after a pause, since the window is still too large.
    pub echoes_mark: bool,
    /// The time until which a paced budget lets no packet go.
    pub paced_until: Option<Time>,
    results_restart_timers: bool,
    /// Operations below this number have begun on all workers: a result of the last of them, or of a later
    /// one, arrived.
    pub confirmed: u64,
    pub next_packet: u64,
    /// The time from a packet to its answer, of the last answer that identified its packet, in nanoseconds.
    pub latest_rtt: u64,
    /// The time of the caller's last call.
    pub now: Time,
    pub stats: EngineStats,
}

impl Core {
    pub fn new(params: JobParams, tuning: &Tuning, first: u64, mode: CoreParams) -> Core {
        let CoreParams { in_flight, budget, probe_timeout, is_cautious } = mode;
        let paths =
            Paths::new(tuning.paths, params.token ^ u64::from(params.rank) << 16 ^ u64::from(params.lane));
        Core {
            stats: EngineStats { paths: paths.stats(), ..EngineStats::default() },
            paths,
            result_paths: ResultPaths::new(params.result_paths),
            // Workers of a direct job answer each other, and have one token.
            answer_token: if params.direct.is_some() { params.token } else { result_token(params.token) },
            tuning: tuning.clone(),
            phase: Phase::Probing,
            codec: ChunkCodec::new(&params),
            stream: Stream::new(first),
            in_flight,
            confirmed: 0,
            rtt: RttEstimator::new(tuning),
            backoff: Backoff::default(),
            loss: LossDetector::new(tuning.timers_only, is_cautious),
            probe_timeout,
            path_check: PathCheck::default(),
            budget,
            latest_is_partial: false,
            tail_probed: Time(0),
            tail_probes: 0,
            echoes_mark: false,
            paced_until: None,
            results_restart_timers: is_cautious,
            next_packet: 1,
            latest_rtt: 0,
            now: Time(0),
            params,
        }
    }

    /// Continues with what follows from the parameters, after another process has handed the rest over.
    pub fn resume(&mut self) {
        self.codec = ChunkCodec::new(&self.params);
        self.refresh_gauges();
    }

    /// Queues an operation and returns its number. After the job has failed it completes at once, with the
    /// job's error.
    pub fn submit(&mut self, operation: Operation) -> Result<OpId, (SubmitError, Operation)> {
        if let Err(error) = operation.check().and_then(|()| self.check_bound(&operation)) {
            return Err((error, operation));
        }
        if self.params.direct.is_some() != operation.exchange.is_some() {
            return Err((SubmitError::Exchange { signature: operation.signature }, operation));
        }
        let chunk = self.codec.chunk(&operation);
        let is_block_scaled = operation.exchange.is_none() && self.codec.needs_exponent(&operation);
        let Some(place) = self.stream.place(&operation, chunk, is_block_scaled) else {
            let Operation { signature, skip, .. } = operation;
            return Err((SubmitError::Skip { signature, skip }, operation));
        };
        self.stats.operations_submitted += 1;
        let ledger = Ledger::of(&operation, chunk, self.params.rank, self.params.world);
        let number = self.stream.push(operation, place, self.now);
        if let Some(pending) = self.stream.get_mut(number) {
            pending.ledger = ledger;
        }
        if let Phase::Failed(why) = &self.phase {
            self.stream.fail_last(why);
        }
        Ok(OpId(number))
    }

    fn check_bound(&self, operation: &Operation) -> Result<(), SubmitError> {
        let problem = match () {
            () if operation.loss_bound == 0.0 || operation.exchange.is_some() => return Ok(()),
            () if usize::from(self.params.world) > MAX_WORKERS => {
                "a job of more than 32 workers is reliable, ask for 0"
            }
            () => return Ok(()),
        };
        let Operation { signature, loss_bound: bound, .. } = *operation;
        Err(SubmitError::LossBound { signature, bound, problem })
    }

    pub fn poll_completion(&mut self) -> Option<Completion> {
        let completion = self.stream.pop_complete()?;
        match completion.result {
            Ok(()) => self.stats.operations_completed += 1,
            Err(_) => self.stats.operations_failed += 1,
        }
        Some(completion)
    }

    /// Ends the job. The first error stays.
    pub fn fail(&mut self, why: JobError) {
        if self.has_failed() {
            return;
        }
        self.stream.fail(&why, self.now);
        self.in_flight.clear();
        self.paced_until = None;
        self.phase = Phase::Failed(why);
        self.refresh_gauges();
    }

    pub fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed(_))
    }

    pub fn timers(&self) -> Timers<'_> {
        let Core { in_flight, rtt, loss, probe_timeout, backoff, .. } = self;
        let restarts = self.results_restart_timers;
        Timers { in_flight, rtt, loss, probe_timeout, backoff: *backoff, restarts }
    }

    /// The timer that has expired first.
    pub fn next_expiry(&self) -> Option<Expiry> {
        self.timers().next().filter(|(at, _)| *at <= self.now).map(|(_, expiry)| expiry)
    }

    /// Whether the running job waits for results, so that its path is to be checked.
    pub fn checks_path(&self) -> bool {
        matches!(self.phase, Phase::Ready) && self.in_flight.unanswered() > 0
    }

    /// Checks the path when no result has come for long. Returns the reason for which it is lost.
    pub fn check_path(&mut self) -> Option<JobError> {
        if !self.checks_path() {
            return None;
        }
        if let Some(answered) = self.path_check.surveyed(self.now) {
            self.paths.on_survey(self.now, &answered, &mut self.stats.paths);
        }
        self.result_paths.on_timeout(self.now, self.rtt.timeout_confirmed(0));
        self.path_check.on_timeout(self.now, &self.tuning, &self.params)
    }

    /// Considers that the paths of results may be at fault for a suspected loss.
    pub fn suspect_result_paths(&mut self) {
        self.result_paths.on_suspected_loss(self.now, self.rtt.timeout_confirmed(0));
    }

    /// Considers a chunk lost because its timer expired.
    pub fn expire_chunk(&mut self, index: usize) {
        self.in_flight.mark_lost(index, true);
        self.stats.suspects_timer += 1;
        self.suspect_result_paths();
    }

    /// Whether the budget lets a new chunk go after so many others. A time that it names becomes the engine's
    /// deadline.
    pub fn may_send(&mut self, before: usize) -> bool {
        let answer = self.budget.may_send(self.now, before);
        self.paced_until = match answer {
            MaySend::At(at) => Some(at),
            MaySend::Now | MaySend::Blocked => None,
        };
        answer == MaySend::Now
    }

    /// Records congestion. Returns whether the budget was reduced.
    pub fn on_congestion(&mut self, event: CongestionEvent) -> bool {
        let is_reduced = self.budget.on_congestion(event);
        self.stats.halvings += u64::from(is_reduced);
        is_reduced
    }

    /// Records that a packet on this path was lost.
    pub fn on_path_loss(&mut self, path: u16) {
        self.paths.on_loss(self.now, path, &mut self.stats.paths);
    }

    /// Takes back a reduction of the budget when all losses that caused it were only late packets (RFC 4015).
    pub fn on_spurious_loss(&mut self) {
        self.stats.halvings_undone += u64::from(self.budget.on_spurious_loss());
    }

    pub fn frame_len(&self) -> usize {
        payload_len(self.params.elements)
    }

    /// Checks that a packet is this job's.
    pub fn identify(&self, header: &Header) -> Result<(), Reason> {
        if self.has_failed() || header.job != self.params.job {
            return Err(Reason::UnknownJob);
        }
        if header.token != self.answer_token {
            return Err(Reason::BadToken);
        }
        if header.epoch != self.params.epoch {
            return Err(Reason::WrongEpoch);
        }
        Ok(())
    }

    /// Counts a report, and checks that it is this lane's.
    pub fn check_report(&mut self, header: &Header) -> Result<(), Reason> {
        if header.lane != self.params.lane {
            return Err(Reason::WrongPlace);
        }
        self.stats.reports += 1;
        Ok(())
    }

    /// The offset of a chunk as packets carry it, and the operation's signature.
    fn identity(&self, record: &ChunkRecord) -> Result<(u32, u32), Reason> {
        let pending = self.stream.get(record.operation).ok_or(Reason::Internal)?;
        let operation = &pending.operation;
        Ok((operation.base.wrapping_add(pending.first(record.seq) as u32), operation.signature))
    }

    /// Checks that a header without elements is of this chunk.
    pub fn check_short(&self, record: &ChunkRecord, header: &Header) -> Result<(), Reason> {
        if (header.offset, header.tensor) != self.identity(record)? {
            return Err(Reason::WrongPlace);
        }
        check_empty(header)
    }

    /// Ends the job because another worker has another operation in this chunk.
    pub fn mismatch(&mut self, record: &ChunkRecord, header: &Header) -> Result<(), Reason> {
        let (base, signature) = self.identity(record)?;
        let theirs = header.tensor;
        if header.offset != base || theirs == signature {
            return Err(Reason::WrongPlace);
        }
        self.stats.mismatches += 1;
        self.fail(JobError::Mismatch { lane: self.params.lane, seq: header.seq, base, signature, theirs });
        Ok(())
    }

    /// Writes a chunk's result to its tensor, or notes the exponents in it, after checking that it is the one
    /// that was asked for.
    pub fn deliver(
        &mut self,
        record: &ChunkRecord,
        form: Form,
        header: &Header,
        elements: &[u8],
    ) -> Result<(), Reason> {
        let pending = self.stream.waiting(record.operation, record.seq).ok_or(Reason::Internal)?;
        match pending.is_exponents(record.seq) {
            true => self.take_exponents(record, header, elements)?,
            false => self.write_sum(record, form, header, elements)?,
        }
        self.stream.chunk_done(record.operation, record.seq, self.now);
        self.stats.results_faulty += u64::from(header.has(flag::OVERFLOW | flag::NOT_FINITE));
        self.stats.results += 1;
        self.stats.completions.record(self.now.since(record.first_sent));
        Ok(())
    }

    fn write_sum(
        &mut self,
        record: &ChunkRecord,
        form: Form,
        header: &Header,
        elements: &[u8],
    ) -> Result<(), Reason> {
        let pending = self.stream.get_mut(record.operation).ok_or(Reason::Internal)?;
        let first = pending.first(record.seq);
        let operation = &mut pending.operation;
        let span = self.codec.span(operation, first);
        self.codec.check(operation, span, form, header)?;

        self.latest_is_partial = header.has(flag::PARTIAL);
        if header.has(flag::OVERFLOW) && self.codec.leaves_floats(operation) {
            pending.leave(record.seq);
            return Ok(());
        }
        let carries = header.has(flag::NOT_FINITE) && self.codec.carries(operation);
        let codec = match &mut pending.ledger {
            Some(ledger) if header.has(flag::PARTIAL) => {
                ledger.record(header.bitmap_0, span);
                self.stats.partial += 1;
                &self.codec.of_contributors(header.contributors)
            }
            _ => &self.codec,
        };
        let read = codec.decode(operation, span, form, (header.exponent, elements), carries);
        self.stats.elements_received += read.values as u64;
        read.fault.into_iter().for_each(|fault| pending.own_fault(fault));
        let is_refused = header.has(flag::OVERFLOW) || header.has(flag::NOT_FINITE) && !carries;
        if is_refused {
            match self.codec.may_overflow(&pending.operation) {
                true => pending.sum_fault(span),
                false => pending.peer_fault(span),
            }
        }
        Ok(())
    }

    /// Updates the statistics that are states, not counters.
    pub fn refresh_gauges(&mut self) {
        self.stats.in_flight = self.in_flight.unanswered() as u64;
        if self.budget.reacts_to_marks() {
            self.stats.cwnd = u64::from(self.budget.window());
        }
        // A direct job has an estimate for each peer.
        if self.params.direct.is_none() {
            let reordering_ns = self.loss.reordering_window(&self.rtt);
            let rtt = self.rtt.stats(usize::from(self.backoff.level()));
            self.stats.rtt = RttStats { reordering_ns, ..rtt };
        }
    }
}

pub(crate) fn check_empty(header: &Header) -> Result<(), Reason> {
    if header.elements == 0 { Ok(()) } else { Err(Reason::WrongElements) }
}

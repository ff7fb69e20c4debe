//! The engine of one lane of a job on one worker: SwitchML's Algorithm 4 as a continuous stream over many
//! operations, with timers that adapt and a faster sign of loss.
//!
//! The calling loop, whatever does its input and output:
//!
//! ```text
//!   for each payload received:      engine.on_frame(now, payload)
//!   if poll_timeout() <= now:       engine.on_timeout(now)
//!   while poll_transmit(now, buf):  send it
//!   while poll_completion():        hand it back
//!   wait for a frame, a submission, or poll_timeout()
//! ```
//!
//! The handshake starts with the first `poll_transmit`, also before anything is submitted:
//!
//! ```
//! use sumac_transport::{Arithmetic, DType, Engine, JobParams, JobState, NotFinite, Operation, Scaling, Time, WireFormat};
//!
//! let (job, epoch, token, rank, world) = (1, 1, 0x5eed, 0, 2);
//! let (rack_rank, rack_world) = (rank, world); // one level of aggregators
//! let (lane, shards, slots, elements) = (0, 1, 64, 256);
//! let (wire, scaling, not_finite) = (WireFormat::Int32, Scaling::Block, NotFinite::Error);
//! let mut engine = Engine::new(JobParams {
//!     job, epoch, token, rank, world, rack_rank, rack_world, lane, shards, slots, elements,
//!     wire, scaling, not_finite, measure: false, dynamic: None,
//! })?;
//!
//! let buffer = Box::new(vec![0u8; 1000 * 4]);
//! let operation = Operation::allreduce(0xfeed, DType::F32, Arithmetic::Sum, 1000, buffer);
//! engine.submit(Time(0), operation).map_err(|(error, _operation)| error)?;
//!
//! let mut payload = vec![0; engine.frame_len()];
//! let probe = engine.poll_transmit(Time(0), &mut payload).map(|sent| sent.len);
//! assert_eq!(probe, Some(56 + 256 * 4), "the first packet asks whether whole chunks get through");
//! assert_eq!(engine.state(), JobState::Probing);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod path;
mod receive;
mod transmit;

use sumac_wire::admit::payload_len;

pub use transmit::{Destination, Transmit};

use crate::{
    chunk::Numbers,
    error::{JobError, ParamError, SubmitError},
    handshake::Handshake,
    loss::LaterResults,
    measure::{PathMeasure, Train},
    operation::{Completion, OpId, Operation},
    params::{JobParams, Tuning},
    placement::StaticPool,
    rtt::RttEstimator,
    silence::{PROBES, Silence},
    slots::Slots,
    stats::{EngineStats, RttStats},
    stream::Stream,
    time::Time,
    timer::{self, Backoff, Expiry, Timers},
};

/// Later results that make a packet count as lost, by default.
const LATER_RESULTS: u32 = 2;

/// How far a job has come on this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState<'a> {
    /// The aggregator has not answered a probe of full size yet, or the path is being measured.
    Probing,
    /// The path is known, and [`Engine::start`] is waited for.
    Measured(PathMeasure),
    /// Chunks flow, or would.
    Ready,
    /// The job is over.
    Failed(&'a JobError),
}

#[derive(Debug)]
enum Phase {
    Probing(Handshake),
    Measuring(Train),
    Measured(PathMeasure),
    Ready,
    Failed(JobError),
}

/// One lane of a job on one worker. See the module for how to drive it.
pub struct Engine {
    params: JobParams,
    tuning: Tuning,
    phase: Phase,
    numbers: Numbers,
    pool: StaticPool,
    stream: Stream,
    slots: Slots,
    rtt: RttEstimator,
    backoff: Backoff,
    later: LaterResults,
    silence: Silence,
    /// Operations below this number have been begun by all workers: a result of the last one, or of a later one,
    /// came.
    begun: u64,
    /// The stream's first chunk.
    first: u64,
    /// Send index of the next packet.
    next_index: u64,
    /// The latest time that the caller told.
    now: Time,
    stats: EngineStats,
}

impl Engine {
    /// An engine whose stream begins with chunk 0.
    pub fn new(params: JobParams) -> Result<Engine, ParamError> {
        Engine::starting_at(params, &Tuning::default(), 0)
    }

    /// An engine with other timeouts, whose stream begins with chunk `first_seq`. All workers of a job
    /// must begin with the same; tunings may differ.
    pub fn starting_at(params: JobParams, tuning: &Tuning, first_seq: u32) -> Result<Engine, ParamError> {
        params.check()?;
        tuning.check()?;
        if params.dynamic.is_some() {
            return Err(ParamError::NotYet);
        }
        let pool = StaticPool::new(params.slots, params.lane);
        let first = u64::from(first_seq);
        Ok(Engine {
            tuning: tuning.clone(),
            phase: Phase::Probing(Handshake::new(tuning)),
            numbers: Numbers::new(&params),
            pool,
            stream: Stream::new(first),
            slots: Slots::new(pool, first),
            begun: 0,
            first,
            rtt: RttEstimator::new(tuning),
            backoff: Backoff::default(),
            later: LaterResults::new(tuning.later_results.unwrap_or(LATER_RESULTS)),
            silence: Silence::default(),
            next_index: 1,
            now: Time(0),
            stats: EngineStats::default(),
            params,
        })
    }

    /// Queues an operation. After the job has failed it completes at once, with the job's error.
    pub fn submit(&mut self, now: Time, operation: Operation) -> Result<OpId, (SubmitError, Operation)> {
        self.now = now;
        if let Err(error) = operation.check() {
            return Err((error, operation));
        }
        self.stats.operations_submitted += 1;
        let chunk = self.numbers.chunk(&operation);
        let number = self.stream.push(operation, chunk, now);
        if let Phase::Failed(why) = &self.phase {
            self.stream.fail_last(why);
        } else {
            self.wake(number);
        }
        Ok(OpId(number))
    }

    /// Gives the slots that wait for the stream what it has reached; further chunks follow by themselves, since each
    /// slot goes on when its result arrives. `near` is the number of the operation that most of them will find.
    fn wake(&mut self, near: u64) {
        while let Some(op) = self.slots.waits_for().and_then(|seq| self.stream.find(seq, near)) {
            self.slots.wake(op);
        }
    }

    /// When [`Engine::on_timeout`] wants to be called; `None` while nothing is in flight.
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.phase {
            Phase::Probing(handshake) => handshake.deadline(),
            Phase::Measuring(train) => Some(train.deadline()),
            Phase::Ready => self.timers().next().map(|(at, _)| at),
            Phase::Measured(_) | Phase::Failed(_) => None,
        }
    }

    /// Does what is due at `now`: queues expired chunks and probes for sending.
    pub fn on_timeout(&mut self, now: Time) {
        self.now = now;
        match &mut self.phase {
            Phase::Probing(handshake) => {
                let verdict = handshake.on_timeout(now, &self.params);
                self.conclude(now, verdict);
            }
            Phase::Measuring(train) => {
                let measure = train.on_timeout(now);
                self.measured(measure);
            }
            Phase::Ready => self.expire(now),
            Phase::Measured(_) | Phase::Failed(_) => {}
        }
    }

    fn timers(&self) -> Timers<'_> {
        let Engine { slots, rtt, later, silence, backoff, .. } = self;
        Timers { slots, rtt, later, silence, backoff: *backoff }
    }

    /// Queues what has expired for sending.
    fn expire(&mut self, now: Time) {
        while let Some((_, expiry)) = self.timers().next().filter(|(at, _)| *at <= now) {
            match expiry {
                Expiry::Chunk(slot) => self.expire_chunk(slot),
                Expiry::Path => {
                    self.silence.deepen(now);
                    // Nobody is late for one that all workers are at; of the rest, one may be what another worker waits for.
                    let sure = timer::oldest(&self.slots).map(|(slot, _)| slot);
                    sure.into_iter().for_each(|slot| self.expire_chunk(slot));
                    for _ in usize::from(sure.is_some())..PROBES {
                        timer::oldest_of_all(&self.slots)
                            .into_iter()
                            .for_each(|slot| self.expire_chunk(slot));
                    }
                }
            }
        }
    }

    fn expire_chunk(&mut self, slot: usize) {
        self.slots.lose(slot, true);
        self.stats.suspects_timer += 1;
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

    /// Ends the job: everything outstanding and everything submitted later fails with `why`. The
    /// first reason stays.
    pub fn fail(&mut self, why: JobError) {
        if matches!(self.phase, Phase::Failed(_)) {
            return;
        }
        self.stream.fail(&why, self.now);
        self.slots.clear();
        self.phase = Phase::Failed(why);
        self.refresh_gauges();
    }

    /// Counters and the timer's view of the path.
    pub fn stats(&self) -> &EngineStats {
        &self.stats
    }

    /// Whether no operation is under way or waits to be collected. The handshake may go on.
    pub fn is_idle(&self) -> bool {
        self.stream.is_empty()
    }

    /// How far the job has come.
    pub fn state(&self) -> JobState<'_> {
        match &self.phase {
            Phase::Probing(_) | Phase::Measuring(_) => JobState::Probing,
            Phase::Measured(measure) => JobState::Measured(*measure),
            Phase::Ready => JobState::Ready,
            Phase::Failed(why) => JobState::Failed(why),
        }
    }

    /// The lane of the job, with the slots that [`Engine::start`] gave it.
    pub fn params(&self) -> &JobParams {
        &self.params
    }

    /// Bytes of UDP payload of the lane's longest packet: what `poll_transmit` needs room for.
    pub fn frame_len(&self) -> usize {
        payload_len(self.params.elements)
    }

    /// Brings those statistics up to date that are states, not counters.
    fn refresh_gauges(&mut self) {
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

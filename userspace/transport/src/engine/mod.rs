//! The engine of one lane of a job on one worker: a continuous stream over many operations, with timers that adapt and a
//! faster sign of loss. Static jobs follow SwitchML's Algorithm 4 (`pooled`), dynamic ones ATP (`dynamic`).
//!
//! The calling loop, whatever does its input and output:
//!
//! ```text
//!   for each packet received:       engine.on_packet(now, packet)
//!   if poll_timeout() <= now:       engine.on_timeout(now)
//!   while poll_transmit(now, buf):  send it
//!   while poll_completion():        hand it back
//!   wait for a frame, a submission, or poll_timeout()
//! ```
//!
//! The handshake starts with the first `poll_transmit`, also before anything is submitted:
//!
//! ```
//! use sumac_transport::{
//!     Arithmetic, DType, Engine, JobParams, JobState, NonFinitePolicy, Operation, PeerTable, Scale, Time, WireFormat,
//! };
//!
//! let (job, epoch, token, rank, world) = (1, 1, 0x5eed, 0, 2);
//! let (rack_rank, rack_world) = (rank, world); // one level of aggregators
//! let (lane, shards, slots, elements) = (0, 1, 64, 256);
//! let (wire, scaling, not_finite) = (WireFormat::Int32, Scale::Block, NonFinitePolicy::Error);
//! let peers = PeerTable::of(Some("10.0.0.1:48700".parse()?), []);
//! let params = JobParams {
//!     job, epoch, token, rank, world, rack_rank, rack_world, lane, shards, slots, elements,
//!     wire, scaling, not_finite, measure: false, dynamic: None,
//! };
//! let mut engine = Engine::new(params, &peers)?;
//!
//! let buffer = Box::new(vec![0u8; 1000 * 4]);
//! let operation = Operation::allreduce(0xfeed, DType::Float32, Arithmetic::Sum, 1000, buffer);
//! engine.submit(Time(0), operation).map_err(|(error, _operation)| error)?;
//!
//! let mut payload = vec![0; engine.frame_len()];
//! let probe = engine.poll_transmit(Time(0), &mut payload).map(|sent| sent.len);
//! assert_eq!(probe, Some(64 + 256 * 4), "the first packet asks whether whole chunks get through");
//! assert_eq!(engine.state(), JobState::Probing);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod core;
mod learn;

use sumac_wire::{Kind, Reason};

pub(crate) use self::core::{Core, Phase, check_empty};

use crate::{
    dynamic::Dynamic,
    error::{JobError, ParamError, SubmitError},
    measure::PathMeasure,
    operation::{Completion, OpId, Operation},
    packet::Packet,
    params::{JobParams, Tuning},
    peer::{PeerId, PeerTable},
    pooled::Pooled,
    silence::Silence,
    stats::EngineStats,
    time::Time,
    transmit::Transmit,
};

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

/// What is particular to a mode.
enum Mode {
    /// SwitchML: a pool of slots of the lane's own.
    Static(Pooled),
    /// ATP: slots that jobs share, and a parameter host.
    Dynamic(Box<Dynamic>),
}

/// One lane of a job on one worker. See the module for how to drive it.
pub struct Engine {
    core: Core,
    mode: Mode,
}

impl Engine {
    /// An engine whose stream begins with chunk 0.
    pub fn new(params: JobParams, peers: &PeerTable) -> Result<Engine, ParamError> {
        Engine::starting_at(params, peers, &Tuning::default(), 0)
    }

    /// An engine with other timeouts, whose stream begins with chunk `first_seq`. All workers of a job
    /// must begin with the same; tunings may differ.
    pub fn starting_at(
        params: JobParams,
        peers: &PeerTable,
        tuning: &Tuning,
        first_seq: u32,
    ) -> Result<Engine, ParamError> {
        params.check()?;
        tuning.check()?;
        let first = u64::from(first_seq);
        Ok(match params.dynamic.clone() {
            None => {
                let (mode, slots) = Pooled::new(&params, peers, first)?;
                Engine {
                    core: Core::new(params, tuning, slots, first, Pooled::LATER_RESULTS),
                    mode: Mode::Static(mode),
                }
            }
            Some(dynamic) => {
                let (mode, slots) = Dynamic::new(dynamic, &params, peers, first)?;
                let worker = u32::from(params.rank) << 8 | u32::from(params.lane);
                let mut core = Core::new(params, tuning, slots, first, Dynamic::LATER_RESULTS);
                core.silence = Silence::apart(worker);
                Engine { core, mode: Mode::Dynamic(Box::new(mode)) }
            }
        })
    }

    /// An engine of a worker that takes the place of one that died in the middle of a dynamic job (ATP appendix A.3): its stream begins with
    /// chunk `resume`, the lane's first that is not summed. Where that is within an operation,
    /// [`Operation::skip`] says so. In a static job it is the same as [`Engine::starting_at`].
    pub fn taking_over(
        params: JobParams,
        peers: &PeerTable,
        tuning: &Tuning,
        resume: u32,
    ) -> Result<Engine, ParamError> {
        let mut engine = Engine::starting_at(params, peers, tuning, resume)?;
        if let Mode::Dynamic(dynamic) = &mut engine.mode {
            dynamic.take_over();
        }
        Ok(engine)
    }

    /// Goes on with a dynamic job under a new incarnation, after another worker was replaced (ATP appendix A.3). What has no
    /// result is sent again. `resume`: the lane's first chunk that is not summed, where the newcomer begins. A static job
    /// cannot go on so, and ends.
    pub fn renew(&mut self, now: Time, epoch: u16, resume: u32) {
        self.core.now = now;
        match &mut self.mode {
            Mode::Static(_) => {
                let reason = String::from("a worker of a static job cannot be replaced");
                self.core.fail(JobError::Ended { reason });
            }
            Mode::Dynamic(dynamic) => dynamic.renew(&mut self.core, epoch, resume),
        }
    }

    /// Queues an operation. After the job has failed it completes at once, with the job's error.
    pub fn submit(&mut self, now: Time, operation: Operation) -> Result<OpId, (SubmitError, Operation)> {
        let id = self.core.submit(now, operation)?;
        if let Mode::Static(pooled) = &self.mode {
            pooled.wake(&mut self.core, id.0);
        }
        Ok(id)
    }

    /// Sets the number of slots and lets chunks go, where the engine has measured its path and waits for this
    /// ([`JobParams::measure`]); else it only changes the slots. All workers must do so alike, before the first chunk is
    /// sent. A dynamic job has no slots of its own and refuses.
    pub fn start(&mut self, slots: u32) -> Result<(), ParamError> {
        match &mut self.mode {
            Mode::Static(pooled) => pooled.start(&mut self.core, slots),
            Mode::Dynamic(_) => Err(ParamError::Measure),
        }
    }

    /// When [`Engine::on_timeout`] wants to be called; `None` while nothing is in flight.
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.mode {
            Mode::Static(pooled) => pooled.poll_timeout(&self.core),
            Mode::Dynamic(dynamic) => dynamic.poll_timeout(&self.core),
        }
    }

    /// Does what is due at `now`: queues expired chunks and probes for sending.
    pub fn on_timeout(&mut self, now: Time) {
        self.core.now = now;
        match &mut self.mode {
            Mode::Static(pooled) => pooled.on_timeout(&mut self.core, now),
            Mode::Dynamic(dynamic) => dynamic.on_timeout(&mut self.core, now),
        }
    }

    /// Parses and processes one UDP payload. One that is not a packet is counted by reason and changes nothing.
    pub fn on_payload(&mut self, now: Time, from: PeerId, payload: &[u8]) {
        match Packet::parse(payload, from, false) {
            Ok(packet) => self.on_packet(now, &packet),
            Err(reason) => {
                self.core.now = now;
                self.core.stats.bytes_received += payload.len() as u64;
                self.core.stats.frames.count(reason);
            }
        }
    }

    /// Processes one packet. One that does not answer a packet in flight is counted by reason and changes nothing.
    pub fn on_packet(&mut self, now: Time, packet: &Packet<'_>) {
        self.core.now = now;
        self.core.stats.bytes_received += packet.payload_len() as u64;
        let reason = match self.dispatch(now, packet) {
            Ok(()) => Reason::Steered,
            Err(reason) => reason,
        };
        self.core.stats.frames.count(reason);
    }

    fn dispatch(&mut self, now: Time, packet: &Packet<'_>) -> Result<(), Reason> {
        let header = &packet.header;
        self.core.identify(header)?;
        if header.kind == Kind::Result as u8 {
            match &mut self.mode {
                Mode::Static(pooled) => pooled.on_result(&mut self.core, now, packet),
                Mode::Dynamic(dynamic) => dynamic.on_result(&mut self.core, now, packet),
            }
        } else if header.kind == Kind::Report as u8 {
            if header.tensor != u32::from(self.core.params.lane) {
                return Err(Reason::WrongPlace);
            }
            self.core.stats.reports += 1;
            match &mut self.mode {
                Mode::Static(pooled) => pooled.on_report(&mut self.core, now, header),
                Mode::Dynamic(dynamic) => dynamic.on_report(&mut self.core, now, header),
            }
            Ok(())
        } else {
            Err(Reason::BadType)
        }
    }

    /// Writes the next packet to `out`; `None`: nothing to send now.
    ///
    /// `out` must have room for [`Engine::frame_len`] bytes; the job fails when it has not.
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        self.core.now = now;
        let (needed, given) = (self.core.frame_len(), out.len());
        if given < needed && !matches!(self.core.phase, Phase::Failed(_) | Phase::Measured(_)) {
            self.fail(JobError::FrameTooSmall { needed, given });
            return None;
        }
        match &mut self.mode {
            Mode::Static(pooled) => pooled.poll_transmit(&mut self.core, now, out),
            Mode::Dynamic(dynamic) => dynamic.poll_transmit(&mut self.core, now, out),
        }
    }

    /// The next operation that ended, in the order of submission.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.core.poll_completion()
    }

    /// Ends the job: everything outstanding and everything submitted later fails with `why`. The
    /// first reason stays.
    pub fn fail(&mut self, why: JobError) {
        self.core.fail(why);
    }

    /// Counters and the timer's view of the path.
    pub fn stats(&self) -> &EngineStats {
        &self.core.stats
    }

    /// Whether no operation is under way or waits to be collected. The handshake may go on.
    pub fn is_idle(&self) -> bool {
        self.core.stream.is_empty()
    }

    /// How far the job has come.
    pub fn state(&self) -> JobState<'_> {
        match &self.core.phase {
            Phase::Probing(_) | Phase::Measuring(_) => JobState::Probing,
            Phase::Measured(measure) => JobState::Measured(*measure),
            Phase::Ready => JobState::Ready,
            Phase::Failed(why) => JobState::Failed(why),
        }
    }

    /// The lane of the job, with the slots that [`Engine::start`] gave it.
    pub fn params(&self) -> &JobParams {
        &self.core.params
    }

    /// Bytes of UDP payload of the lane's longest packet: what `poll_transmit` needs room for.
    pub fn frame_len(&self) -> usize {
        self.core.frame_len()
    }
}

//! The engine of one lane of a job on one worker: a continuous stream over many operations, with adaptive
//! timers and loss detection. Each mode implements one trait (`mode`) in a module of its own.
//!
//! The loop around it, whatever does the input and output:
//!
//! ```text
//!   for each packet received:       engine.on_packet(now, packet)
//!   if poll_timeout() <= now:       engine.on_timeout(now)
//!   while poll_transmit(now, buf):  send it
//!   while poll_completion():        return it to its submitter
//!   wait for a packet, a submission, or poll_timeout()
//! ```
//!
//! The handshake starts with the first `poll_transmit`, also before anything is submitted:
//!
//! ```
//! use sumac_transport::{
//!     Arithmetic, DType, Engine, JobParams, JobState, Operation, PeerTable, Time,
//! };
//!
//! let peers = PeerTable::of(Some("10.0.0.1:48700".parse()?), []);
//! let (job, world, slots, elements) = (1, 2, 64, 256); // this is worker 0
//! let params = JobParams { token: 0x5eed, ..JobParams::new(job, world, slots, elements) };
//! let mut engine = Engine::new(params, &peers)?;
//!
//! let buffer = Box::new(vec![0u8; 1000 * 4]);
//! let operation = Operation::allreduce(0xfeed, DType::Float32, Arithmetic::Sum, 1000, buffer);
//! engine.submit(Time(0), operation).map_err(|(error, _operation)| error)?;
//!
//! let mut payload = vec![0; engine.frame_len()];
//! let probe = engine.poll_transmit(Time(0), &mut payload).map(|sent| sent.len);
//! assert_eq!(probe, Some(64 + 256 * 4), "the first packet is a probe of full size");
//! assert_eq!(engine.state(), JobState::Probing);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use sumac_job::PathMeasure;
use sumac_wire::Reason;

use crate::{
    direct_mode::DirectMode,
    dynamic_mode::DynamicMode,
    engine_core::{Core, Phase},
    engine_mode::EngineMode,
    error::{JobError, ParamError, SubmitError},
    mode::CheckedPath,
    operation::{Completion, OpId, Operation},
    packet::Packet,
    params::{JobParams, Tuning},
    peer::{PeerId, PeerTable},
    static_mode::StaticMode,
    stats::EngineStats,
    time::Time,
    transmit::Transmit,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState<'a> {
    /// The peers have not answered a probe of full size yet, or the path is being measured.
    Probing,
    /// The path was measured, and [`Engine::set_slots`] is waited for.
    Measured(PathMeasure),
    Ready,
    Failed(&'a JobError),
}

/// One lane of a job on one worker. See the module for how to drive it.
pub struct Engine {
    pub(crate) core: Core,
    pub(crate) mode: EngineMode,
}

impl Engine {
    pub fn new(params: JobParams, peers: &PeerTable) -> Result<Engine, ParamError> {
        Engine::starting_at(params, peers, &Tuning::default(), 0)
    }

    /// An engine with this tuning, whose stream begins with chunk `first_seq`. All workers of a job must
    /// begin with the same chunk; tunings may differ.
    pub fn starting_at(
        params: JobParams,
        peers: &PeerTable,
        tuning: &Tuning,
        first_seq: u32,
    ) -> Result<Engine, ParamError> {
        params.check()?;
        tuning.check()?;
        let first = u64::from(first_seq);
        let (mode, core) = match (&params.dynamic, &params.direct) {
            (_, Some(direct)) => {
                let (mode, core) = DirectMode::new(direct, &params, peers, tuning)?;
                (EngineMode::Direct(Box::new(mode)), core)
            }
            (None, None) => {
                let (mode, core) = StaticMode::new(&params, peers, tuning, first)?;
                (EngineMode::Static(Box::new(mode)), core)
            }
            (Some(dynamic), None) => {
                let (mode, core) = DynamicMode::new(dynamic, &params, peers, tuning, first)?;
                (EngineMode::Dynamic(Box::new(mode)), core)
            }
        };
        Ok(Engine { core: Core::new(params, tuning, first, core), mode })
    }

    /// An engine of a worker that replaces one that died in the middle of a dynamic job (ATP appendix A.3).
    /// Its stream begins with chunk `resume`, the lane's first that is not summed. Where that is within an
    /// operation, [`Operation::skip`] says so. In a static job it is the same as [`Engine::starting_at`].
    pub fn taking_over(
        params: JobParams,
        peers: &PeerTable,
        tuning: &Tuning,
        resume: u32,
    ) -> Result<Engine, ParamError> {
        let mut engine = Engine::starting_at(params, peers, tuning, resume)?;
        engine.mode.take_over(&mut engine.core);
        Ok(engine)
    }

    /// Continues a dynamic job under a new epoch, after another worker was replaced (ATP appendix A.3).
    /// Chunks without a result are sent again. `resume` is the lane's first chunk that is not summed, with
    /// which the new worker begins. A static job fails.
    pub fn renew(&mut self, now: Time, epoch: u16, resume: u32) {
        self.core.now = now;
        self.mode.renew(&mut self.core, epoch, resume);
    }

    /// Queues an operation. After the job has failed it completes at once, with the job's error.
    pub fn submit(&mut self, now: Time, operation: Operation) -> Result<OpId, (SubmitError, Operation)> {
        self.core.now = now;
        let id = self.core.submit(operation)?;
        self.mode.on_submit(&mut self.core, id.0);
        Ok(id)
    }

    /// Sets the number of slots of a static job, which the engine waits for after it has measured its path
    /// ([`JobParams::measure`]). All workers must set the same, before the first chunk is sent.
    pub fn set_slots(&mut self, slots: u32) -> Result<(), ParamError> {
        self.mode.set_slots(&mut self.core, slots)
    }

    /// The time at which [`Engine::on_timeout`] is to be called, or a packet can be sent that has to wait
    /// until then.
    pub fn poll_timeout(&self) -> Option<Time> {
        let core = &self.core;
        let checks = [core.path_check.deadline(), core.result_paths.deadline()].into_iter().flatten();
        let checks = checks.filter(|_| core.checks_path());
        self.mode.poll_timeout(core).into_iter().chain(core.paced_until).chain(checks).min()
    }

    /// Lets the timers expire that are due at `now`.
    pub fn on_timeout(&mut self, now: Time) {
        self.core.now = now;
        // The caller polls for the packet that waited until now. Where it has no room for one, room wakes it,
        // and no timer.
        self.core.paced_until = self.core.paced_until.filter(|at| *at > now);
        self.mode.on_timeout(&mut self.core);
        if let Some(why) = self.core.check_path() {
            self.fail(self.mode.path_lost(why));
        }
    }

    /// Parses and processes one UDP payload. One that is not a packet is counted by reason and changes
    /// nothing.
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

    /// Processes one packet. One that does not answer a packet in flight is counted by reason and changes
    /// nothing.
    pub fn on_packet(&mut self, now: Time, packet: &Packet<'_>) {
        self.core.now = now;
        self.core.stats.bytes_received += packet.payload_len() as u64;
        let reason = self.process(packet).err().unwrap_or(Reason::Steered);
        self.core.stats.frames.count(reason);
    }

    fn process(&mut self, packet: &Packet<'_>) -> Result<(), Reason> {
        self.core.identify(&packet.header)?;
        self.mode.on_packet(&mut self.core, packet)
    }

    /// Writes the next packet to `out`, which must have room for [`Engine::frame_len`] bytes; the job fails
    /// when it has not.
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        self.core.now = now;
        let (needed, given) = (self.core.frame_len(), out.len());
        if matches!(self.core.phase, Phase::Failed(_) | Phase::Measured(_)) {
            return None;
        }
        if given < needed {
            self.fail(JobError::FrameTooSmall { needed, given });
            return None;
        }
        if self.core.checks_path()
            && let Some((number, path, avoided)) = self.core.result_paths.poll(now)
        {
            let to = self.mode.checked_path().to;
            return Some(self.core.send_survey_probe(number, path, avoided, to, out));
        }
        if self.core.checks_path()
            && let Some((elements, number)) = self.core.path_check.poll(now, self.core.params.elements)
        {
            let CheckedPath { to, numbers, received } = self.mode.checked_path();
            return Some(self.core.send_probe(received, elements, number | numbers, to, out));
        }
        self.mode.poll_transmit(&mut self.core, out)
    }

    /// The next operation that has ended. Operations end when their last result arrives, in any order.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.core.poll_completion()
    }

    /// Records that another worker of a direct job has left, after it had ended all its operations.
    pub fn peer_left(&mut self, now: Time, peer: PeerId) {
        self.core.now = now;
        self.mode.peer_left(&mut self.core, peer);
    }

    /// The transfers with another worker of a direct job that this one has not posted yet.
    pub fn unposted(&self) -> Vec<OpId> {
        self.mode.unposted().into_iter().map(OpId).collect()
    }

    /// Ends the job: all operations in progress, and all submitted later, fail with `why`. The first error
    /// stays.
    pub fn fail(&mut self, why: JobError) {
        self.core.fail(why);
    }

    pub fn stats(&self) -> &EngineStats {
        &self.core.stats
    }

    /// Whether no operation is in progress or waits to be collected. The handshake may go on.
    pub fn is_idle(&self) -> bool {
        self.core.stream.is_empty()
    }

    pub fn state(&self) -> JobState<'_> {
        match &self.core.phase {
            Phase::Probing => JobState::Probing,
            Phase::Measured(measure) => JobState::Measured(*measure),
            Phase::Ready => JobState::Ready,
            Phase::Failed(why) => JobState::Failed(why),
        }
    }

    pub fn params(&self) -> &JobParams {
        &self.core.params
    }

    /// Bytes of UDP payload of the lane's longest packet.
    pub fn frame_len(&self) -> usize {
        self.core.frame_len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use sumac_job::{DType, Scale};
    use sumac_wire::{Header, Kind, header::HEADER_LEN};

    use super::*;
    use crate::{
        budget::{MaySend, SendingBudget},
        convert::Arithmetic,
        engine_core::Budget,
        rtt::RttSample,
    };

    const INTERVAL: u64 = 7_000;

    /// A budget of one packet per interval.
    struct Paced {
        next: Time,
        samples: Arc<Mutex<Vec<RttSample>>>,
    }

    impl SendingBudget for Paced {
        fn window(&self) -> u32 {
            u32::MAX
        }

        fn may_send(&self, now: Time, _: usize) -> MaySend {
            if now >= self.next { MaySend::Now } else { MaySend::At(self.next) }
        }

        fn on_sent(&mut self, now: Time, bytes: usize) {
            assert_eq!(bytes, HEADER_LEN + 16);
            self.next = now.plus(INTERVAL);
        }

        fn on_sample(&mut self, sample: RttSample) {
            if let Ok(mut samples) = self.samples.lock() {
                samples.push(sample);
            }
        }
    }

    /// A static job of one worker, and four slots.
    fn engine() -> Engine {
        let params = JobParams { scaling: Scale::Fixed(1.0), ..JobParams::new(1, 1, 4, 4) };
        let aggregator = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 1);
        let Ok(engine) = Engine::new(params, &PeerTable::of(Some(aggregator), [])) else { panic!("refused") };
        engine
    }

    /// Sends the next packet; returns its header and elements.
    fn send(engine: &mut Engine, now: Time) -> Option<(Header, Vec<u8>)> {
        let mut out = [0; 128];
        let sent = engine.poll_transmit(now, &mut out)?;
        let header = Header::read(&out[..], 0, sent.len).ok()?;
        Some((header, out[HEADER_LEN..sent.len].to_vec()))
    }

    /// Answers a packet: a probe with a report, a contribution with a result.
    fn answer(engine: &mut Engine, now: Time, (header, elements): &(Header, Vec<u8>), is_marked: bool) {
        let is_probe = header.kind == Kind::Probe as u8;
        let kind = if is_probe { Kind::Report } else { Kind::Result } as u8;
        let (token, next_seq) = (sumac_job::result_token(header.token), header.seq.wrapping_add(8));
        let header = Header { kind, token, contributors: 1, next_seq, ..*header };
        engine.on_packet(now, &Packet { header, elements, from: PeerId(0), is_marked });
    }

    #[test]
    fn a_paced_budget_sets_the_deadline_and_gets_every_sample() {
        let mut engine = engine();
        let Some(probe) = send(&mut engine, Time(0)) else { panic!("no probe") };
        answer(&mut engine, Time(1_000), &probe, false);
        let samples = Arc::new(Mutex::new(Vec::new()));
        engine.core.budget = Budget::Other(Box::new(Paced { next: Time(0), samples: samples.clone() }));
        let buffer = Box::new(vec![0; 64]);
        let operation = Operation::allreduce(9, DType::Int32, Arithmetic::Sum, 16, buffer);
        assert!(engine.submit(Time(2_000), operation).is_ok());

        let first = send(&mut engine, Time(2_000));
        assert!(first.is_some() && send(&mut engine, Time(2_001)).is_none(), "one per interval");
        assert_eq!(engine.poll_timeout(), Some(Time(9_000)));
        engine.on_timeout(Time(9_000));
        let second = send(&mut engine, Time(9_000));
        for (packet, is_marked) in first.iter().zip([false]).chain(second.iter().zip([true])) {
            answer(&mut engine, Time(12_000), packet, is_marked);
        }
        let sample = |sent, is_marked| RttSample { sent: Time(sent), acknowledged: Time(12_000), is_marked };
        let samples = samples.lock().map(|samples| samples.clone()).unwrap_or_default();
        assert_eq!(samples, [sample(2_000, false), sample(9_000, true)]);
    }
}

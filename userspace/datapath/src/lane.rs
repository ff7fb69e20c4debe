//! One lane of a job: its engine, and the state that was last reported.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sumac_host::{FragmentKey, JobId, OperationKey};
use sumac_transport::{
    Completion, CompletionQueue, Engine, JobParams, JobState, OpId, Operation, PeerTable, Time, Tuning,
    class_of,
};
use sumac_wire::header::{ELEMENT_LEN, HEADER_LEN};

use super::frame_io::{FrameIo, TurnEnd, take_turn};
use super::job::{Event, InstallError, JobPeers, Rejection};
use super::progress::Progress;
use super::schedule::LaneSchedule;
use super::stats::JobStats;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reported {
    Nothing,
    Measured,
    Ready,
    Failed,
}

/// An operation in the engine.
pub(super) struct Submitted {
    pub(super) key: FragmentKey,
    pub(super) sent: Time,
}

pub(super) struct Lane {
    pub(super) engine: Engine,
    /// The outstanding operations by the engine's numbers.
    pub(super) ids: BTreeMap<OpId, Submitted>,
    /// The operations that were submitted since the last transmission.
    unsent: Vec<OpId>,
    /// Puts the ends into the order of submission. In a direct job operations are reported as they end: other
    /// workers may wait for what this one does then.
    pub(super) ended: Option<CompletionQueue>,
    reported: Reported,
    pub(super) schedule: LaneSchedule,
}

/// Refuses a job whose longest packet, of `needed` bytes, cannot be sent.
pub(super) fn check_capacity(needed: usize, io: &dyn FrameIo) -> Result<(), InstallError> {
    let capacity = io.capacity();
    if needed > capacity {
        let elements = capacity.saturating_sub(HEADER_LEN) / ELEMENT_LEN;
        return Err(InstallError::PacketTooLong { needed, capacity, elements });
    }
    Ok(())
}

/// A fragment in an engine: its key, when its first packets have left, and whether the engine still needs its
/// memory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OperationState {
    pub(super) number: OpId,
    pub(super) key: FragmentKey,
    pub(super) sent: Time,
    pub(super) has_memory: bool,
}

impl Lane {
    /// `resume`: the first chunk of the stream, for a worker that replaces another one. `timeout`: of the
    /// handshake, in place of the default.
    pub(super) fn new(
        params: JobParams,
        peers: &PeerTable,
        resume: Option<u32>,
        timeout: Option<Duration>,
        io: &dyn FrameIo,
    ) -> Result<Lane, InstallError> {
        let default = Tuning { paths: io.paths(), ..Tuning::default() };
        let tuning = Tuning { probe_timeout: timeout.unwrap_or(default.probe_timeout), ..default };
        let is_direct = params.direct.is_some();
        let engine = match resume {
            None => Engine::starting_at(params, peers, &tuning, 0)?,
            Some(first) => Engine::taking_over(params, peers, &tuning, first)?,
        };
        check_capacity(engine.frame_len(), io)?;
        Ok(Lane {
            engine,
            ids: BTreeMap::new(),
            unsent: Vec::new(),
            ended: (!is_direct).then(CompletionQueue::default),
            reported: Reported::Nothing,
            schedule: LaneSchedule::default(),
        })
    }

    /// Continues a lane of another process.
    pub(super) fn resumed(
        engine: Engine,
        operations: Vec<OperationState>,
        ended: Option<CompletionQueue>,
    ) -> Lane {
        let submitted = |OperationState { number, key, sent, .. }| (number, Submitted { key, sent });
        let ids = operations.into_iter().map(submitted).collect();
        let schedule = LaneSchedule::default();
        Lane { engine, ids, unsent: Vec::new(), ended, reported: Reported::Ready, schedule }
    }

    pub(super) fn number(&self) -> u16 {
        self.engine.params().lane
    }

    /// Returns the lane's priority class; a higher one is more urgent.
    pub(super) fn class(&self) -> u16 {
        let JobParams { lane, shards, .. } = *self.engine.params();
        class_of(lane, shards)
    }

    pub(super) fn submit(
        &mut self,
        now: Time,
        id: FragmentKey,
        operation: Operation,
    ) -> Result<(), (Rejection, Operation)> {
        let number =
            self.engine.submit(now, operation).map_err(|(error, operation)| (error.into(), operation))?;
        self.ids.insert(number, Submitted { key: id, sent: now });
        self.unsent.push(number);
        Ok(())
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Records that the first packets of the operations submitted last have left.
    pub(super) fn sent(&mut self, now: Time) {
        for number in self.unsent.drain(..) {
            if let Some(submitted) = self.ids.get_mut(&number) {
                submitted.sent = now;
            }
        }
    }

    pub(super) fn on_time(&mut self, now: Time) {
        if self.engine.poll_timeout().is_some_and(|due| due <= now) {
            self.engine.on_timeout(now);
        }
    }

    /// Sends up to a turn of packets.
    pub(super) fn take_turn(
        &mut self,
        now: Time,
        peers: &JobPeers,
        io: &mut dyn FrameIo,
    ) -> io::Result<TurnEnd> {
        let engine = &mut self.engine;
        take_turn(io, &mut |bytes| {
            std::iter::from_fn(|| engine.poll_transmit(now, bytes)).find_map(|packet| peers.address(&packet))
        })
    }

    pub(super) fn report(&mut self, progress: &Progress) {
        if self.reported < Reported::Failed
            && let Some(error) = progress.failure()
        {
            self.engine.fail(error.clone());
        }
        match self.engine.state() {
            JobState::Measured(measure) if self.reported < Reported::Measured => {
                self.reported = Reported::Measured;
                progress.lane_measured(measure);
            }
            JobState::Ready if self.reported < Reported::Ready => {
                self.reported = Reported::Ready;
                progress.lane_ready();
            }
            JobState::Failed(error) if self.reported < Reported::Failed => {
                self.reported = Reported::Failed;
                progress.lane_failed(error);
            }
            _ => {}
        }
        while let Some(completion) = self.engine.poll_completion() {
            match &mut self.ended {
                Some(ended) => ended.push(completion),
                None => self.report_end(progress, completion),
            }
        }
        while let Some(completion) = self.ended.as_mut().and_then(CompletionQueue::pop) {
            self.report_end(progress, completion);
        }
    }

    fn report_end(&mut self, progress: &Progress, completion: Completion) {
        let (job, lane) = (progress.job, self.number());
        if let Some(Submitted { key: id, sent }) = self.ids.remove(&completion.id) {
            progress.report(Event::Completed { job, lane, id, completion, sent });
        }
    }

    /// Returns the transfers whose other end was not posted.
    fn unposted(&self) -> Vec<OperationKey> {
        let key = |number: OpId| self.ids.get(&number).map(|submitted| submitted.key.operation);
        self.engine.unposted().into_iter().filter_map(key).collect()
    }

    /// `id`: its job.
    pub(super) fn stats(&self, id: JobId) -> JobStats {
        let params = self.engine.params();
        let (state, error) = match self.engine.state() {
            JobState::Probing => ("probing", None),
            JobState::Measured(_) => ("measured", None),
            JobState::Ready => ("ready", None),
            JobState::Failed(error) => ("failed", Some(error.to_string())),
        };
        JobStats {
            id,
            job: params.job,
            epoch: params.epoch,
            rank: params.rank,
            world: params.world,
            lane: params.lane,
            slots: params.slots,
            state,
            error,
            engine: self.engine.stats().clone(),
            unposted: self.unposted(),
        }
    }
}

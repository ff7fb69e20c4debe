//! One lane of a job: its engine, whom its operations belong to, and what has been told of it.

use std::{collections::VecDeque, io};

use sumac_transport::{
    Engine, JobError, JobParams, JobState, OpId, Operation, Packet, ParamError, PeerTable, Time, Tuning,
    class_of,
};
use sumac_wire::header::{ELEMENT_LEN, HEADER_LEN};

use super::{
    command::{AddError, Event, Refusal},
    port::{Attempt, Port},
    progress::Progress,
    stats::JobStats,
    ways::Ways,
};

/// Packets of one lane before the next lane has its turn, and before a kick.
const TURN: usize = 64;

/// What has been told about a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Nothing,
    Measured,
    Ready,
    Failed,
}

pub(super) struct Lane {
    engine: Engine,
    tags: VecDeque<(OpId, u64)>,
    told: Told,
}

impl Lane {
    /// A lane whose packets must fit the port's. `resume`: of a worker that takes another's place, the chunk that its stream
    /// begins with.
    pub(super) fn new(
        params: JobParams,
        peers: &PeerTable,
        resume: Option<u32>,
        port: &dyn Port,
    ) -> Result<Lane, AddError> {
        let engine = match resume {
            None => Engine::new(params, peers)?,
            Some(first) => Engine::taking_over(params, peers, &Tuning::default(), first)?,
        };
        let (needed, capacity) = (engine.frame_len(), port.capacity());
        if needed > capacity {
            let elements = capacity.saturating_sub(HEADER_LEN) / ELEMENT_LEN;
            return Err(AddError::TooLong { needed, capacity, elements });
        }
        Ok(Lane { engine, tags: VecDeque::new(), told: Told::Nothing })
    }

    pub(super) fn number(&self) -> u16 {
        self.engine.params().lane
    }

    /// 0, or more when it is more urgent.
    pub(super) fn class(&self) -> u16 {
        let JobParams { lane, shards, .. } = *self.engine.params();
        class_of(lane, shards)
    }

    pub(super) fn start(&mut self, slots: u32) -> Result<(), ParamError> {
        self.engine.start(slots)
    }

    /// Goes on under another incarnation, in which `first` is the first chunk that is not summed.
    pub(super) fn renew(&mut self, now: Time, epoch: u16, first: u32) {
        self.engine.renew(now, epoch, first);
    }

    pub(super) fn submit(
        &mut self,
        now: Time,
        tag: u64,
        operation: Operation,
    ) -> Result<(), (Refusal, Operation)> {
        let id =
            self.engine.submit(now, operation).map_err(|(error, operation)| (error.into(), operation))?;
        self.tags.push_back((id, tag));
        Ok(())
    }

    pub(super) fn fail(&mut self, why: &JobError) {
        self.engine.fail(why.clone());
    }

    pub(super) fn on_packet(&mut self, now: Time, packet: &Packet<'_>) {
        self.engine.on_packet(now, packet);
    }

    pub(super) fn on_time(&mut self, now: Time) {
        if self.deadline().is_some_and(|due| due <= now) {
            self.engine.on_timeout(now);
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.engine.poll_timeout()
    }

    /// Sends up to a turn of packets; says whether there may be more.
    pub(super) fn take_turn(&mut self, now: Time, ways: &Ways, port: &mut dyn Port) -> io::Result<bool> {
        let engine = &mut self.engine;
        for _ in 0..TURN {
            // What has no way is lost, like what nobody answers.
            let mut build = |bytes: &mut [u8]| {
                std::iter::from_fn(|| engine.poll_transmit(now, bytes)).find_map(|packet| ways.send(&packet))
            };
            match port.transmit(&mut build)? {
                Attempt::Staged => {}
                Attempt::Nothing | Attempt::Full => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Tells what has changed since the last time.
    pub(super) fn tell(&mut self, progress: &Progress) {
        let (job, lane) = (self.engine.params().job, self.number());
        match self.engine.state() {
            JobState::Measured(measure) if self.told < Told::Measured => {
                self.told = Told::Measured;
                progress.measured(job, measure);
            }
            JobState::Ready if self.told < Told::Ready => {
                self.told = Told::Ready;
                progress.ready(job);
            }
            JobState::Failed(why) if self.told < Told::Failed => {
                self.told = Told::Failed;
                progress.failed(job, why.clone());
            }
            _ => {}
        }
        while let Some(completion) = self.engine.poll_completion() {
            // Completions come in the order of submission, so the search ends at the first.
            let Some(at) = self.tags.iter().position(|(id, _)| *id == completion.id) else { continue };
            if let Some((_, tag)) = self.tags.remove(at) {
                progress.tell(Event::Completed { job, lane, tag, completion });
            }
        }
    }

    pub(super) fn stats(&self) -> JobStats {
        let params = self.engine.params();
        let (state, error) = match self.engine.state() {
            JobState::Probing => ("probing", None),
            JobState::Measured(_) => ("measured", None),
            JobState::Ready => ("ready", None),
            JobState::Failed(why) => ("failed", Some(why.to_string())),
        };
        JobStats {
            job: params.job,
            epoch: params.epoch,
            rank: params.rank,
            world: params.world,
            lane: params.lane,
            slots: params.slots,
            state,
            error,
            engine: self.engine.stats().clone(),
        }
    }
}

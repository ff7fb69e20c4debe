//! The jobs on one thread: which payload is whose, whose turn it is to send, when the next timer expires.

use std::{collections::VecDeque, io, time::Instant};

use sumac_transport::{Engine, JobError, JobParams, JobState, OpId, Operation, Time};
use sumac_wire::{
    bytes::Bytes,
    header::{ELEMENT_LEN, HEADER_LEN, offset},
};

use super::{
    command::{AddError, Event, Refusal, Sink},
    port::{Attempt, Peer, Port, Received},
    stats::{JobStats, Strays},
};

/// Packets of one job before the next job has its turn, and before a kick.
const TURN: usize = 64;

/// Turns the monotonic clock into the engines' time and back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { start: Instant::now() }
    }

    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn instant(&self, time: Time) -> Instant {
        self.start + std::time::Duration::from_nanos(time.0)
    }
}

/// What has been told about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Ready,
    Failed,
}

struct Job {
    engine: Engine,
    peer: Peer,
    tags: VecDeque<(OpId, u64)>,
    told: Told,
}

/// All jobs of one thread. There are few, so a list is searched.
#[derive(Default)]
pub(super) struct Engines {
    jobs: Vec<Job>,
    strays: Strays,
}

impl Engines {
    fn find(&mut self, job: u16) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|entry| entry.engine.params().job == job)
    }

    pub(super) fn add(&mut self, params: JobParams, peer: Peer, port: &dyn Port) -> Result<(), AddError> {
        let job = params.job;
        if self.find(job).is_some() {
            return Err(AddError::Exists { job });
        }
        if params.shards > port.shards() {
            return Err(AddError::Shards { asked: params.shards, given: port.shards() });
        }
        let engine = Engine::new(params)?;
        let (needed, capacity) = (engine.frame_len(), port.capacity());
        if needed > capacity {
            let elements = capacity.saturating_sub(HEADER_LEN) / ELEMENT_LEN;
            return Err(AddError::TooLong { needed, capacity, elements });
        }
        self.jobs.push(Job { engine, peer, tags: VecDeque::new(), told: Told::Nothing });
        Ok(())
    }

    pub(super) fn submit(&mut self, now: Time, job: u16, tag: u64, operation: Operation, sink: &mut Sink) {
        let Some(entry) = self.find(job) else {
            return sink(Event::Refused { job, tag, error: Refusal::NoJob { job }, operation });
        };
        match entry.engine.submit(now, operation) {
            Ok(id) => entry.tags.push_back((id, tag)),
            Err((error, operation)) => {
                sink(Event::Refused { job, tag, error: error.into(), operation });
            }
        }
    }

    pub(super) fn fail(&mut self, job: u16, why: JobError) {
        if let Some(entry) = self.find(job) {
            entry.engine.fail(why);
        }
    }

    /// Ends and forgets a job; its operations complete with `why`.
    pub(super) fn remove(&mut self, job: u16, why: JobError, sink: &mut Sink) {
        let Some(at) = self.jobs.iter().position(|entry| entry.engine.params().job == job) else { return };
        let mut entry = self.jobs.remove(at);
        entry.engine.fail(why);
        entry.tell(sink);
    }

    /// Ends and forgets all jobs.
    pub(super) fn clear(&mut self, why: &JobError, sink: &mut Sink) {
        for mut entry in self.jobs.drain(..) {
            entry.engine.fail(why.clone());
            entry.tell(sink);
        }
    }

    /// Gives a payload to its job's engine.
    pub(super) fn on_payload(&mut self, now: Time, received: Received, payload: &[u8]) {
        let Some(job) = payload.be16(offset::JOB) else {
            self.strays.truncated += 1;
            return;
        };
        let Some(entry) = self.find(job) else {
            self.strays.unknown_job += 1;
            return;
        };
        if *received.from.ip() != entry.peer.ip {
            self.strays.wrong_source += 1;
            return;
        }
        entry.engine.on_frame(now, payload);
    }

    /// Does what is due at `now`.
    pub(super) fn on_time(&mut self, now: Time) {
        for entry in &mut self.jobs {
            if entry.engine.poll_timeout().is_some_and(|due| due <= now) {
                entry.engine.on_timeout(now);
            }
        }
    }

    /// Sends what the engines have, in turns with a kick after each. An error ends the round, not the jobs: what
    /// was not sent is sent again when its timer expires.
    pub(super) fn transmit(&mut self, now: Time, port: &mut dyn Port) -> io::Result<()> {
        loop {
            let mut is_more = false;
            for entry in &mut self.jobs {
                is_more |= entry.take_turn(now, port)?;
            }
            port.flush()?;
            if !is_more {
                return Ok(());
            }
        }
    }

    /// Tells what has changed since the last time.
    pub(super) fn tell(&mut self, sink: &mut Sink) {
        for entry in &mut self.jobs {
            entry.tell(sink);
        }
    }

    /// When the next timer expires.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.jobs.iter().filter_map(|entry| entry.engine.poll_timeout()).min()
    }

    pub(super) fn strays(&self) -> Strays {
        self.strays
    }

    pub(super) fn stats(&self) -> Vec<JobStats> {
        self.jobs.iter().map(Job::stats).collect()
    }
}

impl Job {
    /// Sends up to a turn of packets; says whether there may be more.
    fn take_turn(&mut self, now: Time, port: &mut dyn Port) -> io::Result<bool> {
        let Job { engine, peer, .. } = self;
        for _ in 0..TURN {
            match port.transmit(peer, &mut |bytes| engine.poll_transmit(now, bytes))? {
                Attempt::Staged => {}
                Attempt::Nothing | Attempt::Full => return Ok(false),
            }
        }
        Ok(true)
    }

    fn tell(&mut self, sink: &mut Sink) {
        let job = self.engine.params().job;
        match (self.engine.state(), self.told) {
            (JobState::Ready, Told::Nothing) => {
                self.told = Told::Ready;
                sink(Event::JobReady { job });
            }
            (JobState::Failed(why), Told::Nothing | Told::Ready) => {
                let error = why.clone();
                self.told = Told::Failed;
                sink(Event::JobFailed { job, error });
            }
            _ => {}
        }
        while let Some(completion) = self.engine.poll_completion() {
            // Completions come in the order of submission, so the search ends at the first.
            let Some(at) = self.tags.iter().position(|(id, _)| *id == completion.id) else { continue };
            if let Some((_, tag)) = self.tags.remove(at) {
                sink(Event::Completed { job, tag, completion });
            }
        }
    }

    fn stats(&self) -> JobStats {
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
            state,
            error,
            engine: self.engine.stats().clone(),
        }
    }
}

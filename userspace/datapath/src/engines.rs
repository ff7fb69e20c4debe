//! The lanes of one thread: demultiplexing of received packets, scheduling of transmission, timers.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sumac_host::{FragmentKey, JobId};
use sumac_job::PacketKey;
use sumac_transport::{JobError, LaneField, Operation, Packet, PeerId, Time};
use sumac_wire::{CLASSES, Kind};

use super::frame_io::{FrameIo, Received, TurnEnd};
use super::handoff::{HandoffQueue, thread_of};
use super::job::{Event, EventSink, InstallError, JobPeers, Rejection, WorkerJob};
use super::lane::{Lane, check_capacity};
use super::parameter::ThreadParameterHost;
use super::ports::Ports;
use super::progress::Progress;
use super::schedule::{LanePlace, Schedule};
use super::stats::{JobStats, Undelivered};

/// The timeout of the handshake over UDP, where AF_XDP has had an answer.
const TRIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// A job on one thread. A thread without a lane of the job has it too: its packets may arrive there.
struct Job {
    key: PacketKey,
    progress: Arc<Progress>,
    /// Whether its workers send to each other.
    is_direct: bool,
    /// Whether its packets are those of UDP sockets, also where the thread has AF_XDP.
    is_over_udp: bool,
    /// The header field that names a packet's lane.
    lane_field: LaneField,
    peers: JobPeers,
    /// The lanes on this thread, in descending order of their class.
    lanes: Vec<Lane>,
}

impl Job {
    fn id(&self) -> JobId {
        self.progress.job
    }

    /// Returns a lane and its index.
    fn lane(&mut self, lane: u16) -> Option<(usize, &mut Lane)> {
        self.lanes.iter_mut().enumerate().find(|(_, entry)| entry.number() == lane)
    }
}

fn lane_at(jobs: &mut BTreeMap<JobId, Job>, (job, index): LanePlace) -> Option<&mut Lane> {
    jobs.get_mut(&job)?.lanes.get_mut(index)
}

/// Returns the first chunk of a lane's stream; 0 unless `resume` has one.
fn first_chunk(resume: &[u32], lane: u16) -> u32 {
    resume.get(usize::from(lane)).copied().unwrap_or(0)
}

/// All jobs of one thread.
pub(super) struct Engines {
    thread: usize,
    /// The queues of all threads, by the thread's number.
    handoffs: Arc<[HandoffQueue]>,
    sink: EventSink,
    jobs: BTreeMap<JobId, Job>,
    /// Jobs by their numbers in packets: of several control planes some have the same.
    by_number: BTreeMap<u16, Vec<JobId>>,
    /// Jobs over UDP.
    over_udp: usize,
    schedule: Schedule,
    /// The number of failed jobs as of the last round.
    failures: u64,
    pub(super) parameter_host: ThreadParameterHost,
    pub(super) undelivered: Undelivered,
}

impl Engines {
    /// `base_port`: the UDP port of shard 0.
    pub(super) fn new(
        thread: usize,
        handoffs: Arc<[HandoffQueue]>,
        sink: EventSink,
        base_port: u16,
    ) -> Engines {
        let parameter_host = ThreadParameterHost::new(thread, handoffs.len(), base_port);
        let undelivered = Undelivered::default();
        Engines {
            thread,
            handoffs,
            sink,
            jobs: BTreeMap::new(),
            by_number: BTreeMap::new(),
            over_udp: 0,
            schedule: Schedule::default(),
            failures: 0,
            parameter_host,
            undelivered,
        }
    }

    /// Returns a job that is about to change: the next round looks at its lanes.
    fn change(&mut self, job: JobId) -> Result<&mut Job, InstallError> {
        let entry = self.jobs.get_mut(&job).ok_or(InstallError::UnknownJob { job })?;
        for (index, lane) in entry.lanes.iter_mut().enumerate() {
            self.schedule.activate((job, index), &mut lane.schedule);
        }
        Ok(entry)
    }

    /// Removes a job from all tables.
    fn take(&mut self, job: JobId) -> Option<Job> {
        let entry = self.jobs.remove(&job)?;
        if let Some(ids) = self.by_number.get_mut(&entry.key.number) {
            ids.retain(|id| *id != job);
            if ids.is_empty() {
                self.by_number.remove(&entry.key.number);
            }
        }
        self.over_udp -= usize::from(entry.is_over_udp);
        self.schedule.forget(job);
        Some(entry)
    }

    /// Returns the jobs with a number in packets.
    fn numbered(&self, number: u16) -> impl Iterator<Item = &Job> {
        self.by_number.get(&number).into_iter().flatten().filter_map(|id| self.jobs.get(id))
    }

    pub(super) fn add(
        &mut self,
        plan: &WorkerJob,
        progress: Arc<Progress>,
        io: &dyn FrameIo,
    ) -> Result<(), InstallError> {
        let WorkerJob { lanes, resume, .. } = plan;
        let job = self.without_lanes(plan, progress)?;
        let (shards, threads) = (job.progress.shards, self.handoffs.len());
        let is_here = |lane: u16| thread_of(lane, shards, threads) == self.thread;
        let lanes = lanes
            .iter()
            .filter(|params| is_here(params.lane))
            .map(|params| {
                let first = (!resume.is_empty()).then(|| first_chunk(resume, params.lane));
                let timeout = plan.is_trial().then_some(TRIAL_TIMEOUT);
                Lane::new(params.clone(), job.peers.table(), first, timeout, io)
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.push(job, lanes);
        Ok(())
    }

    /// Returns a new job without its lanes.
    fn without_lanes(&mut self, plan: &WorkerJob, progress: Arc<Progress>) -> Result<Job, InstallError> {
        let WorkerJob { lanes, peer, hosts, workers, .. } = plan;
        let Some(first) = lanes.first() else { return Err(InstallError::Lanes { job: 0, given: 0 }) };
        let key = PacketKey::new(first.job, first.token);
        if self.jobs.contains_key(&plan.id) || self.numbered(key.number).any(|entry| entry.key == key) {
            return Err(InstallError::InUse { job: plan.id });
        }
        let peers = JobPeers::new(*peer, hosts.clone(), workers.clone(), first)?;
        let is_direct = first.direct.is_some();
        let lane_field = match first.dynamic {
            _ if is_direct => LaneField::Lane,
            Some(_) => LaneField::Lane,
            None if lanes.iter().any(|lane| lane.measure) => LaneField::Unknown,
            None => LaneField::Slot(first.slots),
        };
        let is_over_udp = plan.over_udp;
        Ok(Job { key, progress, is_direct, is_over_udp, lane_field, peers, lanes: Vec::new() })
    }

    fn push(&mut self, mut job: Job, lanes: Vec<Lane>) {
        job.lanes = lanes;
        job.lanes.sort_by_key(|lane| std::cmp::Reverse(lane.class()));
        let id = job.id();
        self.over_udp += usize::from(job.is_over_udp);
        self.by_number.entry(job.key.number).or_default().push(id);
        self.jobs.insert(id, job);
        // It was inserted.
        let _ = self.change(id);
    }

    /// Continues lanes of another process.
    pub(super) fn resume(
        &mut self,
        plan: &WorkerJob,
        lanes: Vec<Lane>,
        progress: Arc<Progress>,
        io: &dyn FrameIo,
    ) -> Result<(), InstallError> {
        let mut job = self.without_lanes(plan, progress)?;
        for lane in &lanes {
            check_capacity(lane.engine.frame_len(), io)?;
            if let LaneField::Slot(slots) = &mut job.lane_field {
                // As it was measured.
                *slots = lane.engine.params().slots;
            }
        }
        self.push(job, lanes);
        Ok(())
    }

    /// Whether a job is over UDP.
    pub(super) fn are_over_udp(&self) -> bool {
        self.over_udp > 0
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = (JobId, &Lane)> {
        self.jobs.iter().flat_map(|(id, job)| job.lanes.iter().map(|lane| (*id, lane)))
    }

    /// Forgets a job, which is added anew, without a report.
    pub(super) fn forget_one(&mut self, job: JobId) {
        self.take(job);
    }

    /// Forgets all jobs, which go on in another process, without a report.
    pub(super) fn forget(&mut self) {
        while let Some(job) = self.jobs.keys().next().copied() {
            self.take(job);
        }
    }

    pub(super) fn start(&mut self, job: JobId, slots: u32) -> Result<(), InstallError> {
        let entry = self.change(job)?;
        entry.lane_field = LaneField::Slot(slots);
        entry.lanes.iter_mut().try_for_each(|lane| Ok(lane.engine.set_slots(slots)?))
    }

    pub(super) fn renew(
        &mut self,
        now: Time,
        job: JobId,
        epoch: u16,
        resume: &[u32],
    ) -> Result<(), InstallError> {
        for lane in &mut self.change(job)?.lanes {
            lane.engine.renew(now, epoch, first_chunk(resume, lane.number()));
        }
        Ok(())
    }

    pub(super) fn submit(&mut self, now: Time, job: JobId, lane: u16, id: FragmentKey, operation: Operation) {
        let rejected = match self.jobs.get_mut(&job).and_then(|job| job.lane(lane)) {
            None => Some((Rejection::UnknownJob { job }, operation)),
            Some((index, entry)) => {
                self.schedule.activate((job, index), &mut entry.schedule);
                entry.submit(now, id, operation).err()
            }
        };
        if let Some((error, operation)) = rejected {
            (self.sink)(Event::Rejected { job, lane, id, error, operation });
        }
    }

    pub(super) fn peer_left(&mut self, now: Time, job: JobId, rank: u16) {
        if let Ok(entry) = self.change(job) {
            entry.lanes.iter_mut().for_each(|lane| lane.engine.peer_left(now, PeerId(rank)));
        }
    }

    pub(super) fn fail(&mut self, job: JobId, error: &JobError) {
        if let Ok(entry) = self.change(job) {
            entry.lanes.iter_mut().for_each(|lane| lane.engine.fail(error.clone()));
        }
    }

    /// Ends and removes a job; its operations complete with `error`.
    pub(super) fn remove(&mut self, job: JobId, error: &JobError) {
        let Some(mut entry) = self.take(job) else { return };
        for lane in &mut entry.lanes {
            lane.engine.fail(error.clone());
            lane.report(&entry.progress);
        }
    }

    pub(super) fn clear(&mut self, error: &JobError) {
        while let Some(job) = self.jobs.keys().next_back().copied() {
            self.remove(job, error);
        }
    }

    /// Passes a packet to its lane's engine, to the parameter host, or to the thread of its lane.
    pub(super) fn on_received(&mut self, now: Time, received: Received<'_>) {
        let Received { from, header, elements, is_marked, .. } = received;
        let own = self.numbered(header.job).find(|entry| entry.key.is_of(&header));
        let is_direct = own.is_some_and(|own| own.is_direct);
        if !is_direct && matches!(Kind::from_number(header.kind), Some(Kind::Contribution | Kind::Probe)) {
            return self.on_request(now, received);
        }
        // A job with the number counts a packet that has neither of its tokens.
        let own = own.or_else(|| self.numbered(header.job).next()).map(Job::id);
        let Some((job, entry)) = own.and_then(|own| Some((own, self.jobs.get_mut(&own)?))) else {
            self.undelivered.unknown_job += 1;
            return;
        };
        let Some(from) = entry.peers.find(*from.ip()) else {
            self.undelivered.wrong_source += 1;
            return;
        };
        let Some(lane) = entry.lane_field.lane(&header) else {
            self.undelivered.no_lane += 1;
            return;
        };
        if let Some((index, lane)) = entry.lane(lane) {
            self.schedule.activate((job, index), &mut lane.schedule);
            return lane.engine.on_packet(now, &Packet { header, elements, from, is_marked });
        }
        let thread = thread_of(lane, entry.progress.shards, self.handoffs.len());
        self.hand_off(thread, received);
    }

    /// Passes a contribution or a probe to the parameter host.
    fn on_request(&mut self, now: Time, received: Received<'_>) {
        match self.parameter_host.shard(&received) {
            Some((shard, thread)) if thread == self.thread => {
                self.parameter_host.on_received(now, shard, received);
            }
            Some((_, thread)) => self.hand_off(thread, received),
            None => self.undelivered.unknown_job += 1,
        }
    }

    fn hand_off(&mut self, thread: usize, received: Received<'_>) {
        match self.handoffs.get(thread) {
            // A lane that the job does not have would be handed off without end.
            Some(queue) if thread != self.thread => {
                self.undelivered.crossed += 1;
                self.undelivered.crossed_lost += u64::from(!queue.push(received));
            }
            _ => self.undelivered.no_lane += 1,
        }
    }

    pub(super) fn on_time(&mut self, now: Time) {
        for place in self.schedule.expired(now) {
            if let Some(lane) = lane_at(&mut self.jobs, place) {
                self.schedule.activate(place, &mut lane.schedule);
            }
        }
        for place in self.schedule.active() {
            if let Some(lane) = lane_at(&mut self.jobs, *place) {
                lane.on_time(now);
            }
        }
        self.parameter_host.host.on_timeout(now);
    }

    /// Sends the engines' packets in turns with a flush after each. A lane of a lower class waits until those
    /// of higher classes have nothing to send. An error ends the round; unsent packets are retransmitted by
    /// timers.
    pub(super) fn transmit(&mut self, now: Time, ports: &mut Ports) -> io::Result<()> {
        loop {
            // First: other workers wait for these results, and answer them in the same batch.
            let mut is_more = self.parameter_host.take_turn(&mut *ports.io)?;
            for class in (0..CLASSES).rev() {
                for (job, index) in self.schedule.active() {
                    let Some(Job { peers, lanes, is_over_udp, .. }) = self.jobs.get_mut(job) else {
                        continue;
                    };
                    let Some(lane) = lanes.get_mut(*index).filter(|lane| lane.class() == class) else {
                        continue;
                    };
                    let end = lane.take_turn(now, peers, ports.of(*is_over_udp))?;
                    is_more |= end == TurnEnd::More;
                    lane.schedule.is_full = end == TurnEnd::Full;
                }
                if is_more {
                    break;
                }
            }
            ports.flush()?;
            if !is_more {
                return Ok(());
            }
        }
    }

    /// Records, by the clock, that the first packets of new operations have left.
    pub(super) fn note_sent(&mut self, clock: impl Fn() -> Time) {
        for place in self.schedule.active() {
            if let Some(lane) = lane_at(&mut self.jobs, *place).filter(|lane| lane.has_unsent()) {
                lane.sent(clock());
            }
        }
    }

    pub(super) fn report(&mut self) {
        let failures = self.handoffs.get(self.thread).map_or(0, HandoffQueue::failures);
        if failures != self.failures {
            self.failures = failures;
            for (job, Job { lanes, .. }) in &mut self.jobs {
                for (index, lane) in lanes.iter_mut().enumerate() {
                    self.schedule.activate((*job, index), &mut lane.schedule);
                }
            }
        }
        for (job, index) in self.schedule.active() {
            let Some(Job { progress, lanes, .. }) = self.jobs.get_mut(job) else { continue };
            if let Some(lane) = lanes.get_mut(*index) {
                lane.report(progress);
            }
        }
    }

    /// Ends a round. `is_done`: whether each lane that it looked at had its turn.
    pub(super) fn end_round(&mut self, is_done: bool) {
        let Engines { schedule, jobs, .. } = self;
        schedule.end_round(|place, timers| {
            lane_at(jobs, place).is_some_and(|lane| {
                let due = lane.engine.poll_timeout();
                lane.schedule.settle(place, due, is_done, timers)
            })
        });
    }

    /// Has all output reach the trainers' memory.
    pub(super) fn write_back(&mut self) {
        let lanes = self.jobs.values_mut().flat_map(|job| &mut job.lanes);
        lanes.for_each(|lane| lane.engine.write_back());
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let hosted = self.parameter_host.host.poll_timeout();
        self.schedule.deadline().into_iter().chain(hosted).min()
    }

    pub(super) fn stats(&self) -> Vec<JobStats> {
        self.lanes().map(|(id, lane)| lane.stats(id)).collect()
    }
}

#[cfg(test)]
mod tests;

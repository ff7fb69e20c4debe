//! The aggregator without sockets: a packet goes in, is turned into its answer in place, and comes out with
//! its destination.

use std::net::{Ipv4Addr, SocketAddrV4};

mod dynamic;
mod static_mode;

use sumac_agg_job::{JobError, NewJob, check_range, endpoint, seen::WorkerSeen};
use sumac_agg_layout::State;
use sumac_wire::{
    Header, Kind, MAX_ELEMENTS, MAX_LANES, PAGE_ELEMENTS, Reason, admit,
    budget::Budget,
    header::{HEADER_LEN, flag},
    reason::COUNTERS,
    result_paths,
    slot::SlotMeta,
    tables::{JobEntry, WorkerEntry, job_flag},
};

use crate::{
    pool::{NoMemory, Pool},
    shared::SharedPool,
    watch::Watch,
};

/// The destination of the packet, which has become its own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No answer: it was added, or refused.
    None(Reason),
    /// A worker or a rack, with its rank; without one the parent.
    One(Reason, SocketAddrV4, Option<u16>),
    /// All workers of this job: [`HostAggregator::workers`].
    All(Reason, u16),
}

impl Answer {
    pub fn reason(self) -> Reason {
        match self {
            Answer::None(reason) | Answer::One(reason, ..) | Answer::All(reason, _) => reason,
        }
    }
}

/// A job, with the addresses for this shard.
#[derive(Clone, Debug, Default)]
struct Job {
    entry: JobEntry,
    workers: Vec<SocketAddrV4>,
    /// The paths of each worker's results.
    paths: Vec<WorkerPaths>,
    /// The ranks below each worker, as in its entry.
    ranks: Vec<u32>,
    parents: Vec<SocketAddrV4>,
}

impl Job {
    /// Returns the job's ranks of the workers with these bits.
    fn ranks_of(&self, workers: u32) -> u32 {
        let ranks = self.ranks.iter().enumerate();
        ranks.filter(|(rank, _)| workers >> rank & 1 == 1).fold(0, |all, (_, ranks)| all | ranks)
    }
}

/// The paths of the results for one worker.
#[derive(Clone, Debug)]
struct WorkerPaths {
    /// As in its entry; up to 1: the shard's own port alone.
    count: u16,
    /// The record of each lane's last survey.
    surveys: [u32; MAX_LANES],
}

impl WorkerPaths {
    fn avoided(&self, lane: u16) -> u16 {
        self.surveys.get(usize::from(lane)).map_or(0, |record| result_paths::of_record(*record))
    }
}

/// The slots, the jobs, and the counters of one shard. Shards have nothing in common: each has a port, a
/// thread and an aggregator of its own, which knows all jobs and takes only the packets of its lanes.
pub struct HostAggregator {
    shard: u16,
    shards: u16,
    pool: Pool<SlotMeta>,
    shared: SharedPool,
    jobs: Vec<Job>,
    /// The chunk that each lane's next completed slot takes, by
    /// [`lane_index`](sumac_wire::tables::lane_index).
    lanes: Vec<u32>,
    /// The use that flushes have made of their budgets, by `lane_index`.
    budgets: Vec<Budget>,
    counters: [u64; COUNTERS],
    pub watch: Watch,
    answers_to_former: FormerMemberLimit,
}

/// Limits the answers to workers of removed jobs: the second, and the answers in it.
#[derive(Clone, Copy, Debug, Default)]
struct FormerMemberLimit {
    second: u32,
    answers: u32,
}

impl FormerMemberLimit {
    /// Most answers in a second: a worker has its first within that time in any case, since it goes on
    /// sending.
    const MOST: u32 = 64;

    /// Counts an answer at `now` (milliseconds), and returns whether it is within the limit.
    fn is_admitted(&mut self, now: u32) -> bool {
        let second = now / 1000;
        if self.second != second {
            *self = FormerMemberLimit { second, answers: 0 };
        }
        self.answers += 1;
        self.answers <= FormerMemberLimit::MOST
    }
}

impl HostAggregator {
    /// Makes the only shard, of `slots` slots for chunks of at most `max_elements` (limited to what a packet
    /// can carry).
    ///
    /// # Errors
    /// When the slots do not fit half of the memory that this host has.
    pub fn new(slots: u32, max_elements: u16) -> Result<HostAggregator, NoMemory> {
        HostAggregator::of_shard(0, 1, slots, max_elements)
    }

    /// As [`HostAggregator::new`], for one of several shards.
    pub fn of_shard(
        shard: u16,
        shards: u16,
        slots: u32,
        max_elements: u16,
    ) -> Result<HostAggregator, NoMemory> {
        Ok(HostAggregator {
            shard,
            shards,
            pool: Pool::new(slots, max_elements.min(MAX_ELEMENTS as u16), 2, shards)?,
            shared: SharedPool::new(0, max_elements.min(PAGE_ELEMENTS as u16), shards)?,
            jobs: Vec::new(),
            lanes: Vec::new(),
            budgets: Vec::new(),
            counters: [0; COUNTERS],
            watch: Watch::new(slots),
            answers_to_former: FormerMemberLimit::default(),
        })
    }

    /// With `slots` slots that dynamic jobs share, each for chunks as long as its own, up to
    /// [`PAGE_ELEMENTS`].
    ///
    /// # Errors
    /// When the slots do not fit half of the memory that this host has.
    pub fn with_dynamic(mut self, slots: u32) -> Result<HostAggregator, NoMemory> {
        self.share(slots)?;
        Ok(self)
    }

    /// The same of one that dynamic jobs have not been installed in yet.
    pub(crate) fn share(&mut self, slots: u32) -> Result<(), NoMemory> {
        self.shared = SharedPool::new(slots, self.shared.pool.max_elements(), self.shards)?;
        self.watch.share(self.pool.slots(), slots);
        Ok(())
    }

    pub fn sizes(&self) -> State {
        State {
            slots: self.pool.slots(),
            elements: self.pool.max_elements(),
            shards: self.shards,
            dynamic_slots: self.shared.slots(),
            slot_timeout: self.shared.timeout,
            ..State::default()
        }
    }

    pub fn install(&mut self, new: &NewJob) -> Result<(), JobError> {
        self.check(new)?;
        let here =
            |entry: &WorkerEntry| SocketAddrV4::new(entry.ip.into(), entry.port.wrapping_add(self.shard));
        let job = Job {
            entry: new.active_entry(),
            workers: new.workers.iter().map(here).collect(),
            paths: new
                .workers
                .iter()
                .map(|worker| WorkerPaths { count: worker.paths, surveys: [0; MAX_LANES] })
                .collect(),
            ranks: new.workers.iter().map(|worker| worker.ranks).collect(),
            parents: new.parents.iter().map(here).collect(),
        };
        self.make_room(new.job.into());
        self.watch.forget(new.job);
        self.reset_lanes(new.job, job.entry.lane_slots().wrapping_mul(2));
        self.jobs[usize::from(new.job)] = job;
        Ok(())
    }

    /// Makes the tables long enough for a job: memory is that of the highest number used.
    fn make_room(&mut self, job: usize) {
        let jobs = self.jobs.len().max(job + 1);
        self.jobs.resize_with(jobs, Job::default);
        self.lanes.resize(jobs * MAX_LANES, 0);
        self.budgets.resize(jobs * MAX_LANES, Budget::default());
        self.watch.make_room(jobs);
    }

    /// Checks whether [`HostAggregator::install`] would take a job.
    pub fn check(&self, new: &NewJob) -> Result<(), JobError> {
        let before = self.jobs.get(usize::from(new.job)).map(|job| job.entry).unwrap_or_default();
        new.check(&self.sizes(), &before)?;
        if new.is_dynamic() {
            return Ok(());
        }
        check_range(new.entry.slot_base, new.entry.slots, self.pool.slots(), self.entries())
    }

    /// Stops to aggregate for a job; returns whether it was there. The entry stays, inactive: slots remember
    /// its epoch, and workers that still send are answered.
    pub fn remove(&mut self, number: u16) -> bool {
        let Some(job) = self.jobs.get_mut(usize::from(number)) else { return false };
        let before = job.entry.flags;
        job.entry.flags &= !job_flag::ACTIVE;
        before & job_flag::ACTIVE != 0
    }

    pub fn entries(&self) -> impl Iterator<Item = (u16, &JobEntry)> {
        let entries = (0..).zip(&self.jobs).map(|(number, job)| (number, &job.entry));
        entries.filter(|(_, entry)| **entry != JobEntry::default())
    }

    pub fn workers(&self, number: u16) -> &[SocketAddrV4] {
        self.jobs.get(usize::from(number)).map_or(&[], |job| &job.workers)
    }

    /// Returns the path of a result to one worker; 0 is the shard's own port.
    pub fn path_of_result(&self, result: &Header, rank: usize) -> u16 {
        let Some(paths) = self.paths(result.job, rank) else { return 0 };
        result_paths::of_result(paths.avoided(result.lane), paths.count, result.seq)
    }

    /// Returns the path of an answer for one worker alone. `key`: another one each time.
    pub fn path_of_answer(&self, answer: &Header, rank: u16, key: u32) -> u16 {
        let Some(paths) = self.paths(answer.job, rank.into()) else { return 0 };
        if answer.kind == Kind::Report as u8 {
            return result_paths::of_report(answer, paths.count);
        }
        result_paths::of_reply(paths.avoided(answer.lane), paths.count, key)
    }

    fn paths(&self, job: u16, rank: usize) -> Option<&WorkerPaths> {
        self.jobs.get(usize::from(job))?.paths.get(rank)
    }

    /// Keeps the paths that a worker's probe names.
    fn avoid(&mut self, probe: &Header, rank: u16) {
        let job = self.jobs.get_mut(usize::from(probe.job));
        if let Some(paths) = job.and_then(|job| job.paths.get_mut(usize::from(rank)))
            && let Some(record) = paths.surveys.get_mut(usize::from(probe.lane))
        {
            *record = result_paths::recorded(*record, probe, paths.count);
        }
    }

    pub(crate) fn worker_seen(&self, job: u16, rank: u16) -> WorkerSeen {
        let lanes = self.paths(job, rank.into()).into_iter().flat_map(|paths| paths.surveys);
        let avoided = lanes.map(|record| result_paths::of_record(record).count_ones());
        let avoided_paths = avoided.max().unwrap_or_default() as u16;
        WorkerSeen { avoided_paths, ..self.watch.worker(job, rank) }
    }

    pub fn counter(&self, reason: Reason) -> u64 {
        self.counters[reason as usize]
    }

    pub fn job(&self, number: u16) -> Option<&JobEntry> {
        let entry = self.jobs.get(usize::from(number)).map(|job| &job.entry);
        entry.filter(|entry| entry.flags & job_flag::ACTIVE != 0)
    }

    /// Returns the destinations of a job's sums: the parent; of a dynamic job its parameter hosts, by shard
    /// in turn.
    pub fn parents(&self, number: u16) -> &[SocketAddrV4] {
        self.jobs.get(usize::from(number)).map_or(&[], |job| &job.parents)
    }

    /// The destination of this shard's sums of a job.
    fn parent(&self, number: u16) -> Option<SocketAddrV4> {
        let job = self.jobs.get(usize::from(number))?;
        job.parents.get(usize::from(self.shard) % job.parents.len().max(1)).copied()
    }

    /// Whether the next copy of a job's result is to be sent, and not lost on purpose.
    pub fn keeps_copy(&mut self, job: u16) -> bool {
        let is_lost = self.watch.loses_leaving(job);
        if is_lost {
            self.count(Some(job), Reason::Injected);
        }
        !is_lost
    }

    pub fn count_sent(&mut self, job: u16) {
        self.count(Some(job), Reason::Sent);
    }

    fn count(&mut self, job: Option<u16>, reason: Reason) {
        self.counters[reason as usize] += 1;
        if let Some(job) = job {
            self.watch.count(job, reason);
        }
    }

    /// Takes a packet (UDP payload) that came from `source`.
    pub fn on_packet(&mut self, source: Ipv4Addr, packet: &mut [u8]) -> Answer {
        self.process(source, packet, false)
    }

    /// The same of a packet that the network has marked on its way (ECN: congestion experienced).
    pub fn on_marked_packet(&mut self, source: Ipv4Addr, packet: &mut [u8]) -> Answer {
        self.process(source, packet, true)
    }

    fn process(&mut self, source: Ipv4Addr, packet: &mut [u8], is_marked: bool) -> Answer {
        // A datagram that ends in its header has a wrong length.
        let header = Header::read(&*packet, 0, packet.len()).map_err(|reason| match reason {
            Reason::Truncated => Reason::BadLength,
            reason => reason,
        });
        let job = header.ok().map(|header| header.job).filter(|job| self.job(*job).is_some());
        let taken = header.and_then(|header| match self.take(&header, source, packet, is_marked) {
            Err(Reason::UnknownJob) => self.answer_former_member(&header, source, packet),
            taken => taken,
        });
        let answer = taken.unwrap_or_else(Answer::None);
        // Copies for all are drawn for one by one, as they leave.
        let answer = match (answer, job) {
            (Answer::One(..), Some(job)) if self.watch.loses_leaving(job) => Answer::None(Reason::Injected),
            (answer, _) => answer,
        };
        self.count(job, answer.reason());
        answer
    }

    fn take(
        &mut self,
        header: &Header,
        source: Ipv4Addr,
        packet: &mut [u8],
        is_marked: bool,
    ) -> Result<Answer, Reason> {
        let entry = self.jobs.get(usize::from(header.job)).ok_or(Reason::UnknownJob)?.entry;
        let parent = self.parent(header.job);
        // The mark of a packet is kept: contribution, probe and result carry it to whoever reacts to
        // congestion.
        let mark = if is_marked { flag::ECN_ECHO } else { 0 };
        let header = &Header { flags: header.flags | mark, ..*header };
        if entry.flags & job_flag::DYNAMIC != 0 {
            let parent = parent.ok_or(Reason::Internal)?;
            return self.take_dynamic(&entry, header, source, parent, packet);
        }
        if let Some(parent) = parent.filter(|_| admit::is_from_parent(header, &entry)) {
            return self.take_result(&entry, header, source, parent, packet);
        }
        self.take_static(&entry, header, source, parent, packet)
    }

    /// Answers a worker of a removed job.
    fn answer_former_member(
        &mut self,
        header: &Header,
        source: Ipv4Addr,
        packet: &mut [u8],
    ) -> Result<Answer, Reason> {
        let job = self.jobs.get(usize::from(header.job)).ok_or(Reason::UnknownJob)?;
        let rank = admit::former_sender(header, &job.entry).ok_or(Reason::UnknownJob)?;
        let worker = *job.workers.get(usize::from(rank)).ok_or(Reason::UnknownJob)?;
        if *worker.ip() != source || !self.answers_to_former.is_admitted(self.shared.now) {
            return Err(Reason::UnknownJob);
        }
        packet[..HEADER_LEN].copy_from_slice(&admit::unknown_job(header, &job.entry).to_bytes());
        Ok(Answer::One(Reason::UnknownJob, worker, Some(rank)))
    }

    /// Returns the rank and the address of a packet's sender, a worker below this aggregator.
    fn sender(
        &self,
        job: &JobEntry,
        header: &Header,
        source: Ipv4Addr,
    ) -> Result<(u16, SocketAddrV4), Reason> {
        let rank = admit::sender(header, job)?;
        let worker = *self.workers(header.job).get(usize::from(rank)).ok_or(Reason::Internal)?;
        admit::source(source.to_bits(), &endpoint(worker))?;
        Ok((rank, worker))
    }
}

//! The aggregator without sockets: a packet goes in, is turned into its answer in place, and comes out
//! with whom it is for.

use std::net::{Ipv4Addr, SocketAddrV4};

mod dynamic;
mod static_mode;

use sumac_agg_layout::Drops;
use sumac_wire::{
    Header, MAX_ELEMENTS, MAX_HOSTS, MAX_JOBS, MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS, Reason, admit,
    header::flag,
    reason::COUNTERS,
    tables::{JobEntry, WorkerEntry, job_flag, worker_index},
};

use crate::{
    pool::Pool,
    shared::SharedPool,
    watch::{JobSeen, Watch, WorkerSeen},
};

pub use crate::{
    job::{JobError, NewJob},
    pool::NoMemory,
};

/// The destination of the packet, which has become its own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No answer: it was added, or refused.
    None(Reason),
    /// Send it there: to a worker, a rack, or the parent.
    One(Reason, SocketAddrV4),
    /// Send it to all workers of this job: [`HostAggregator::workers`].
    All(Reason, u16),
}

impl Answer {
    /// The reason under which the packet is counted.
    pub fn reason(self) -> Reason {
        match self {
            Answer::None(reason) | Answer::One(reason, _) | Answer::All(reason, _) => reason,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Job {
    entry: JobEntry,
    addresses: Vec<SocketAddrV4>,
    parents: Vec<SocketAddrV4>,
}

impl Job {
    fn is_dynamic(&self) -> bool {
        self.entry.flags & job_flag::DYNAMIC != 0
    }
}

/// The slots, the jobs, and the counters of one shard. Shards have nothing in common: each has a port, a thread and an
/// aggregator of its own, which knows all jobs and takes only the packets of its lanes.
pub struct HostAggregator {
    shard: u16,
    shards: u16,
    pool: Pool,
    /// The slots that dynamic jobs share.
    shared: SharedPool,
    jobs: Vec<Job>,
    workers: Vec<WorkerEntry>,
    /// The chunk that each lane's next completed slot takes, by [`lane_index`].
    lanes: Vec<u32>,
    counters: [u64; COUNTERS],
    watch: Watch,
}

impl HostAggregator {
    /// `slots` slots, each for chunks of at most `max_elements` (limited to what a packet can carry), in the only shard.
    ///
    /// # Errors
    /// When the slots do not fit half of the memory that this host has.
    pub fn new(slots: u32, max_elements: u16) -> Result<HostAggregator, NoMemory> {
        HostAggregator::of_shard(0, 1, slots, max_elements)
    }

    /// The same for one of several shards.
    pub fn of_shard(
        shard: u16,
        shards: u16,
        slots: u32,
        max_elements: u16,
    ) -> Result<HostAggregator, NoMemory> {
        Ok(HostAggregator {
            shard,
            shards,
            pool: Pool::new(slots, max_elements.min(MAX_ELEMENTS as u16), shards)?,
            shared: SharedPool::new(0, max_elements.min(PAGE_ELEMENTS as u16), shards)?,
            jobs: vec![Job::default(); MAX_JOBS],
            workers: vec![WorkerEntry::default(); MAX_JOBS * MAX_WORKERS],
            lanes: vec![0; MAX_JOBS * MAX_LANES],
            counters: [0; COUNTERS],
            watch: Watch::new(slots),
        })
    }

    /// With `slots` slots that dynamic jobs share, each for chunks as long as its own, up to [`PAGE_ELEMENTS`].
    ///
    /// # Errors
    /// When the slots do not fit half of the memory that this host has.
    pub fn with_dynamic(mut self, slots: u32) -> Result<HostAggregator, NoMemory> {
        self.share(slots)?;
        Ok(self)
    }

    /// The same of one that dynamic jobs have not been installed in yet.
    pub(crate) fn share(&mut self, slots: u32) -> Result<(), NoMemory> {
        self.shared = SharedPool::new(slots, self.shared.max_elements(), self.shards)?;
        self.watch.share(self.pool.slots(), slots);
        Ok(())
    }

    /// Slots in the pool.
    pub fn slots(&self) -> u32 {
        self.pool.slots()
    }

    /// Most elements in a chunk.
    pub fn max_elements(&self) -> u16 {
        self.pool.max_elements()
    }

    /// Starts to aggregate for job `number`.
    pub fn install(&mut self, number: u16, new: NewJob) -> Result<(), JobError> {
        self.check(number, &new)?;
        let world = new.workers.len() as u16;
        let shard = self.shard;
        let here =
            |address: SocketAddrV4| SocketAddrV4::new(*address.ip(), address.port().wrapping_add(shard));
        for (rank, address) in new.workers.iter().enumerate() {
            let index = worker_index(number, rank as u16) as usize;
            self.workers[index] = WorkerEntry {
                ip: address.ip().to_bits(),
                port: here(*address).port(),
                ..WorkerEntry::default()
            };
        }
        self.watch.forget(number);
        let flags = new.entry.flags | job_flag::ACTIVE;
        let entry = JobEntry { world, flags, hosts: new.parents.len() as u16, ..new.entry };
        self.reset_lanes(number, entry.lane_slots().wrapping_mul(2));
        let addresses = new.workers.into_iter().map(here).collect();
        let parents = new.parents.into_iter().map(here).collect();
        self.jobs[usize::from(number)] = Job { entry, addresses, parents };
        Ok(())
    }

    /// Whether [`HostAggregator::install`] would take a job.
    pub fn check(&self, number: u16, new: &NewJob) -> Result<(), JobError> {
        let NewJob { entry, workers, parents } = new;
        let is_dynamic = entry.flags & job_flag::DYNAMIC != 0;
        if number == 0 || usize::from(number) >= MAX_JOBS {
            return Err(JobError::Number(number));
        }
        if let Some(Job { entry: before, .. }) = self.jobs.get(usize::from(number)) {
            let epoch = before.epoch;
            if before.flags & job_flag::ACTIVE != 0 {
                return Err(JobError::Taken { job: number, epoch });
            }
            // A dynamic job may come back after its aggregator was lost for a while: what shared slots still hold of it is
            // nothing that could not be in a packet on its way.
            if !is_dynamic && *before != JobEntry::default() && epoch == entry.epoch {
                return Err(JobError::EpochUsed { job: number, epoch });
            }
        }
        if workers.is_empty() || workers.len() > MAX_WORKERS {
            return Err(JobError::World(workers.len()));
        }
        let is_dynamic = entry.flags & job_flag::DYNAMIC != 0;
        if is_dynamic {
            self.check_shared(entry)?
        } else {
            self.check_range(entry)?
        }
        let fits = match entry.flags & (job_flag::CHILD | job_flag::DYNAMIC) {
            0 => parents.is_empty(),
            job_flag::DYNAMIC => (1..=MAX_HOSTS).contains(&parents.len()),
            _ => parents.len() == 1,
        };
        if fits { Ok(()) } else { Err(JobError::Parents(parents.len())) }
    }

    /// Stops to aggregate for a job. Says whether there was one.
    pub fn remove(&mut self, number: u16) -> bool {
        match self.jobs.get_mut(usize::from(number)) {
            Some(job) => {
                let was_active = job.entry.flags & job_flag::ACTIVE != 0;
                // The epoch stays: slots remember it.
                let entry = JobEntry { epoch: job.entry.epoch, ..JobEntry::default() };
                *job = Job { entry, ..Job::default() };
                was_active
            }
            None => false,
        }
    }

    /// Every job number that was used with its last epoch, and whether it is in use.
    pub fn epochs(&self) -> impl Iterator<Item = (u16, u16, bool)> {
        let jobs = (0..).zip(&self.jobs).filter(|(_, job)| job.entry != JobEntry::default());
        jobs.map(|(number, job)| (number, job.entry.epoch, job.entry.flags & job_flag::ACTIVE != 0))
    }

    /// The addresses of a job's workers, by rank.
    pub fn workers(&self, number: u16) -> &[SocketAddrV4] {
        self.jobs.get(usize::from(number)).map_or(&[], |job| &job.addresses)
    }

    /// Packets by what became of them.
    pub fn counter(&self, reason: Reason) -> u64 {
        self.counters[reason as usize]
    }

    /// The entry of a job that is there.
    pub fn job(&self, number: u16) -> Option<&JobEntry> {
        let entry = self.jobs.get(usize::from(number)).map(|job| &job.entry);
        entry.filter(|entry| entry.flags & job_flag::ACTIVE != 0)
    }

    /// The destinations of a job's sums: the parent; of a dynamic job its parameter hosts, by shard in turn.
    pub fn parents(&self, number: u16) -> &[SocketAddrV4] {
        self.jobs.get(usize::from(number)).map_or(&[], |job| &job.parents)
    }

    /// The destination of this shard's sums of a job.
    fn parent(&self, number: u16) -> Option<SocketAddrV4> {
        let job = self.jobs.get(usize::from(number))?;
        job.parents.get(usize::from(self.shard) % job.parents.len().max(1)).copied()
    }

    /// The statistics of a job.
    pub fn job_seen(&self, number: u16) -> JobSeen {
        self.watch.job(number)
    }

    /// The statistics of a worker; empty for an unknown one.
    pub fn worker_seen(&self, job: u16, rank: u16) -> WorkerSeen {
        self.watch.worker(job, rank)
    }

    /// The loss injection of a job.
    pub fn drops(&self, job: u16) -> Drops {
        self.watch.drops(job)
    }

    /// Loses parts of a job's packets on purpose from now on, also of a job that is yet to come.
    pub fn set_drops(&mut self, job: u16, drops: Drops) {
        self.watch.set_drops(job, drops);
    }

    /// Whether the next copy of a job's result is to be sent, and not lost on purpose.
    pub fn keeps_copy(&mut self, job: u16) -> bool {
        let is_lost = self.watch.loses_leaving(job);
        if is_lost {
            self.count(Some(job), Reason::Injected);
        }
        !is_lost
    }

    /// Counts copies of results of a job that have left.
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
        self.on(source, packet, false)
    }

    /// The same of a packet that the network has marked on its way (ECN: congestion experienced).
    pub fn on_marked_packet(&mut self, source: Ipv4Addr, packet: &mut [u8]) -> Answer {
        self.on(source, packet, true)
    }

    fn on(&mut self, source: Ipv4Addr, packet: &mut [u8], is_marked: bool) -> Answer {
        // A datagram that ends in its header has a wrong length.
        let header = Header::read(&*packet, 0, packet.len()).map_err(|reason| match reason {
            Reason::Truncated => Reason::BadLength,
            reason => reason,
        });
        let job = header.ok().map(|header| header.job).filter(|job| self.job(*job).is_some());
        let taken = header.and_then(|header| self.take(&header, source, packet, is_marked));
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
        let job = self.jobs.get(usize::from(header.job)).ok_or(Reason::UnknownJob)?;
        let (entry, is_dynamic) = (job.entry, job.is_dynamic());
        let parent = self.parent(header.job);
        if is_dynamic {
            let parent = parent.ok_or(Reason::Internal)?;
            // Whatever a packet brings on tells that the network marked it.
            let mark = if is_marked { flag::ECN_ECHO } else { 0 };
            let header = Header { flags: header.flags | mark, ..*header };
            return self.take_dynamic(&entry, &header, source, parent, packet);
        }
        if let Some(parent) = parent.filter(|_| header.has(flag::LEVEL)) {
            return self.take_result(&entry, header, source, parent, packet);
        }
        self.take_static(&entry, header, source, parent, packet)
    }

    /// Checks who below this aggregator speaks: gives its rank, and where answers go.
    fn sender(
        &self,
        job: &JobEntry,
        header: &Header,
        source: Ipv4Addr,
    ) -> Result<(u16, SocketAddrV4), Reason> {
        let rank = admit::sender(header, job)?;
        let index = worker_index(header.job, rank) as usize;
        let worker = self.workers.get(index).ok_or(Reason::Internal)?;
        admit::source(source.to_bits(), worker)?;
        Ok((rank, SocketAddrV4::new(worker.ip.into(), worker.port)))
    }
}

/// A parent as the checks know one.
fn as_entry(parent: SocketAddrV4) -> WorkerEntry {
    WorkerEntry { ip: parent.ip().to_bits(), ..WorkerEntry::default() }
}

//! The aggregator without sockets: a packet goes in, is turned into its answer in place, and comes out
//! with whom it is for.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_agg_layout::Drops;
use sumac_values as values;
use sumac_wire::{
    Header, Kind, MAX_ELEMENTS, MAX_JOBS, MAX_LANES, MAX_WORKERS, Reason, admit,
    header::{HEADER_LEN, VERSION, flag, offset},
    reason::COUNTERS,
    slot::{Action, Conclusion, Contribution, Then, Version, answer, conclude, decide, owner},
    tables::{JobEntry, WorkerEntry, job_flag, lane_index, worker_index},
};

use crate::{
    pool::Pool,
    watch::{JobSeen, Watch, WorkerSeen},
};

pub use crate::{
    job::{JobError, NewJob},
    pool::NoMemory,
};

/// What is to be done with the packet, which is its own answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing: it was taken in, or refused.
    None(Reason),
    /// Send it there: to a worker, a rack, or the parent.
    One(Reason, SocketAddrV4),
    /// Send it to all workers of this job: [`HostAggregator::workers`].
    All(Reason, u16),
}

impl Answer {
    /// What became of the packet.
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
    parent: Option<SocketAddrV4>,
}

/// The slots, the jobs, and the counters of one shard. Shards have nothing in common: each has a port, a thread and an
/// aggregator of its own, which knows all jobs and takes only the packets of its lanes.
pub struct HostAggregator {
    shard: u16,
    shards: u16,
    pool: Pool,
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
            jobs: vec![Job::default(); MAX_JOBS],
            workers: vec![WorkerEntry::default(); MAX_JOBS * MAX_WORKERS],
            lanes: vec![0; MAX_JOBS * MAX_LANES],
            counters: [0; COUNTERS],
            watch: Watch::new(slots),
        })
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
        let entry = JobEntry { world, flags: new.entry.flags | job_flag::ACTIVE, ..new.entry };
        self.reset_lanes(number, entry.lane_slots());
        let addresses = new.workers.into_iter().map(here).collect();
        self.jobs[usize::from(number)] = Job { entry, addresses, parent: new.parent.map(here) };
        Ok(())
    }

    /// Whether [`HostAggregator::install`] would take a job.
    pub fn check(&self, number: u16, new: &NewJob) -> Result<(), JobError> {
        let NewJob { entry, workers, parent } = new;
        if number == 0 || usize::from(number) >= MAX_JOBS {
            return Err(JobError::Number(number));
        }
        if let Some(Job { entry: before, .. }) = self.jobs.get(usize::from(number)) {
            let epoch = before.epoch;
            if before.flags & job_flag::ACTIVE != 0 {
                return Err(JobError::Taken { job: number, epoch });
            }
            if *before != JobEntry::default() && epoch == entry.epoch {
                return Err(JobError::EpochUsed { job: number, epoch });
            }
        }
        if workers.is_empty() || workers.len() > MAX_WORKERS {
            return Err(JobError::World(workers.len()));
        }
        if entry.elements == 0 || entry.elements > self.max_elements() {
            return Err(JobError::Elements { wanted: entry.elements, max: self.max_elements() });
        }
        let (first, slots, total, lane_slots) =
            (entry.slot_base, entry.slots, self.slots(), entry.lane_slots());
        let lanes = slots / lane_slots;
        let in_pool = first.checked_add(slots).is_some_and(|end| end <= total);
        if lanes == 0 || lanes as usize > MAX_LANES || !slots.is_multiple_of(lane_slots) || !in_pool {
            return Err(JobError::Slots { first, slots, lane_slots, total });
        }
        let overlaps = |other: &JobEntry| {
            other.flags & job_flag::ACTIVE != 0
                && first < other.slot_base.saturating_add(other.slots)
                && other.slot_base < first.saturating_add(slots)
        };
        if let Some((other, _)) = (0..).zip(&self.jobs).find(|(_, other)| overlaps(&other.entry)) {
            return Err(JobError::Overlap { first, slots, other });
        }
        let (wanted, ports) = (entry.shards, self.shards);
        if wanted == 0 || wanted > ports || !lanes.is_multiple_of(u32::from(wanted)) {
            return Err(JobError::Shards { wanted, lanes, ports });
        }
        if parent.is_some() != (entry.flags & job_flag::CHILD != 0) {
            return Err(JobError::Parent);
        }
        Ok(())
    }

    /// Whether [`HostAggregator::resize`] would leave a job only so many slots in each lane.
    pub fn check_resize(&self, number: u16, lane_slots: u32) -> Result<(), JobError> {
        let job = self.job(number);
        let before = job.map_or(0, JobEntry::lane_slots);
        let Some(job) = job.filter(|_| lane_slots.is_power_of_two() && lane_slots <= before) else {
            return Err(JobError::Resize { job: number, lane_slots, before });
        };
        if self.pool.is_held(job.slot_base, job.slots, owner(number, job.epoch)) {
            return Err(JobError::Held { job: number });
        }
        Ok(())
    }

    /// Leaves a job only so many slots in each lane; none of its workers may have contributed yet.
    pub fn resize(&mut self, number: u16, lane_slots: u32) -> Result<(), JobError> {
        self.check_resize(number, lane_slots)?;
        if let Some(Job { entry, .. }) = self.jobs.get_mut(usize::from(number)) {
            entry.slots = entry.slots / entry.lane_slots() * lane_slots;
            entry.lane_slots_log2 = lane_slots.ilog2() as u16;
        }
        self.reset_lanes(number, lane_slots);
        Ok(())
    }

    /// A lane's slots take their first two chunks by their number; what is drawn comes after those.
    fn reset_lanes(&mut self, number: u16, lane_slots: u32) {
        let first = lane_index(number, 0) as usize;
        if let Some(lanes) = self.lanes.get_mut(first..first + MAX_LANES) {
            lanes.fill(lane_slots.wrapping_mul(2));
        }
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

    /// The address of a job's parent.
    pub fn parent(&self, number: u16) -> Option<SocketAddrV4> {
        self.jobs.get(usize::from(number)).and_then(|job| job.parent)
    }

    /// What was seen of a job.
    pub fn job_seen(&self, number: u16) -> JobSeen {
        self.watch.job(number)
    }

    /// What was seen of a worker; nothing of one that is not there.
    pub fn worker_seen(&self, job: u16, rank: u16) -> WorkerSeen {
        self.watch.worker(job, rank)
    }

    /// What is lost of a job on purpose.
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
        let header = if packet.len() < HEADER_LEN {
            Err(Reason::BadLength)
        } else {
            Header::read(&*packet, 0, packet.len())
        };
        let job = header.ok().map(|header| header.job).filter(|job| self.job(*job).is_some());
        let taken = header.and_then(|header| self.take(&header, source, packet));
        let answer = taken.unwrap_or_else(Answer::None);
        // Copies for all are drawn for one by one, as they leave.
        let answer = match (answer, job) {
            (Answer::One(..), Some(job)) if self.watch.loses_leaving(job) => Answer::None(Reason::Injected),
            (answer, _) => answer,
        };
        self.count(job, answer.reason());
        answer
    }

    fn take(&mut self, header: &Header, source: Ipv4Addr, packet: &mut [u8]) -> Result<Answer, Reason> {
        let job = self.jobs.get(usize::from(header.job)).ok_or(Reason::UnknownJob)?;
        let (entry, parent) = (job.entry, job.parent);
        if let Some(parent) = parent.filter(|_| header.has(flag::LEVEL)) {
            return self.take_result(&entry, header, source, parent, packet);
        }
        let rank = admit::sender(header, &entry)?;
        let index = worker_index(header.job, rank) as usize;
        let worker = self.workers.get(index).ok_or(Reason::Internal)?;
        admit::source(source.to_bits(), worker)?;
        let back = SocketAddrV4::new(worker.ip.into(), worker.port);
        let request = admit::request(header, &entry, self.shard)?;
        if self.watch.loses_arriving(header.job) {
            return Err(Reason::Injected);
        }
        let Some(contribution) = request else {
            set_kind(packet, Kind::Report);
            return Ok(Answer::One(Reason::Probed, back));
        };
        let applied = self.contribute(&entry, header, &contribution, packet);
        self.count_worker(index, applied);
        if let (Ok(Applied::Added | Applied::Completed | Applied::Up), false) =
            (applied, header.has(flag::EXPONENT))
        {
            let is_last = !matches!(applied, Ok(Applied::Added));
            self.watch.look(header.job, index, entry.slot_base + header.slot, &contribution, is_last);
        }
        Ok(match applied? {
            Applied::Added => Answer::None(Reason::Added),
            Applied::Completed => Answer::All(Reason::Completed, header.job),
            Applied::Replied => Answer::One(Reason::Replied, back),
            Applied::Refused => Answer::One(Reason::Mismatch, back),
            Applied::Wanted => Answer::One(Reason::Wanted, back),
            Applied::Up | Applied::UpAgain => Answer::One(Reason::Forwarded, parent.ok_or(Reason::Internal)?),
        })
    }

    /// Does to the slot what the decision says; what the packet is answered with replaces it.
    fn contribute(
        &mut self,
        job: &JobEntry,
        header: &Header,
        contribution: &Contribution,
        packet: &mut [u8],
    ) -> Result<Applied, Reason> {
        let (meta, values) =
            self.pool.get(job.slot_base + header.slot, contribution.version).ok_or(Reason::Internal)?;
        let (mut after, action) = decide(meta, contribution);
        let (_, payload) = packet.split_at_mut(HEADER_LEN);
        match action {
            Action::Ignore(reason) => return Err(reason),
            Action::Store(_) => values::store(values, payload),
            Action::Add(_) if header.has(flag::MAXIMUM) => values::maximum(values, payload),
            Action::Add(_) => values::add(values, payload),
            _ => {}
        }
        if let Action::Store(Then::Complete) | Action::Add(Then::Complete) = action {
            let lane = lane_index(header.job, contribution.lane) as usize;
            let lane = self.lanes.get_mut(lane).ok_or(Reason::Internal)?;
            after.set_next(contribution.version, draw(job, contribution, lane));
        }
        *meta = after;
        let held = after.version(contribution.version);
        let Some((header, applied)) = answer_to(action, header, &held, job) else {
            return Ok(Applied::Added);
        };
        if matches!(action, Action::Add(_) | Action::Reply | Action::Forward) {
            values::write(payload, values);
        }
        packet[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        Ok(applied)
    }

    /// Takes a packet of a job's parent: a result ends the chunk for all workers, the answer to a question is for the
    /// one that asked.
    fn take_result(
        &mut self,
        job: &JobEntry,
        header: &Header,
        source: Ipv4Addr,
        parent: SocketAddrV4,
        packet: &mut [u8],
    ) -> Result<Answer, Reason> {
        let parent = WorkerEntry { ip: parent.ip().to_bits(), ..WorkerEntry::default() };
        let conclusion = admit::conclusion(header, source.to_bits(), job, &parent, self.shard)?;
        // The answer to a probe: nobody here sends one.
        let conclusion: Conclusion = conclusion.ok_or(Reason::BadType)?;
        if self.watch.loses_arriving(header.job) {
            return Err(Reason::Injected);
        }
        let (meta, values) =
            self.pool.get(job.slot_base + header.slot, conclusion.version).ok_or(Reason::Internal)?;
        let (after, action) = conclude(meta, &conclusion);
        if let Action::Store(_) = action {
            values::store(values, &packet[HEADER_LEN..]);
        }
        *meta = after;
        let held = after.version(conclusion.version);
        let answer = match action {
            Action::Ignore(reason) => return Err(reason),
            Action::Store(_) => answer::result(header, &held, job),
            Action::Ask(_) => answer::agreed(header, &held, job),
            // What the parent holds, not what is held here.
            Action::Refuse => answer::refusal(header, &Version { tensor: header.tensor, ..held }, job),
            Action::Want => answer::wanted(header, job),
            _ => return Err(Reason::Internal),
        };
        packet[..HEADER_LEN].copy_from_slice(&answer.to_bytes());
        if let Action::Want = action {
            let asked_by = admit::rank(header.bitmap_0, job.world).ok_or(Reason::WrongWorker)?;
            let asked_by = self.workers(header.job).get(usize::from(asked_by));
            return Ok(Answer::One(Reason::Wanted, *asked_by.ok_or(Reason::Internal)?));
        }
        Ok(Answer::All(Reason::Concluded, header.job))
    }

    fn count_worker(&mut self, index: usize, applied: Result<Applied, Reason>) {
        let Some(WorkerSeen { counters, .. }) = self.watch.worker_mut(index) else { return };
        match applied {
            Ok(Applied::Added) => counters.added += 1,
            Ok(Applied::Completed | Applied::Up) => {
                counters.added += 1;
                counters.last += 1;
            }
            Ok(Applied::Replied) => counters.replies += 1,
            Ok(Applied::Refused | Applied::UpAgain | Applied::Wanted) => {}
            Err(Reason::Duplicate) => counters.duplicates += 1,
            Err(_) => {}
        }
    }
}

/// The chunk that takes a version next, after the one that completed it.
fn draw(job: &JobEntry, completed: &Contribution, lane: &mut u32) -> u32 {
    if job.flags & job_flag::STEALING == 0 {
        return completed.seq.wrapping_add(2 * completed.slots);
    }
    let drawn = *lane;
    *lane = lane.wrapping_add(1);
    drawn
}

/// The header of what a contribution is answered with, and what that means; `None` when it only waits.
fn answer_to(action: Action, header: &Header, held: &Version, job: &JobEntry) -> Option<(Header, Applied)> {
    Some(match action {
        Action::Store(Then::Complete) | Action::Add(Then::Complete) => {
            (answer::result(header, held, job), Applied::Completed)
        }
        Action::Ask(Then::Complete) => (answer::agreed(header, held, job), Applied::Completed),
        Action::Store(Then::Up) | Action::Add(Then::Up) => (answer::part(header, held, job), Applied::Up),
        Action::Ask(Then::Up) => (answer::part_of_round(header, held, job), Applied::Up),
        Action::Reply => (answer::result(header, held, job), Applied::Replied),
        Action::ReplyExponent => (answer::agreed(header, held, job), Applied::Replied),
        Action::Forward => (answer::part(header, held, job), Applied::UpAgain),
        Action::ForwardExponent => (answer::part_of_round(header, held, job), Applied::UpAgain),
        Action::Refuse => (answer::refusal(header, held, job), Applied::Refused),
        Action::Want => (answer::wanted(header, job), Applied::Wanted),
        Action::Pass => (answer::question(header, job), Applied::UpAgain),
        Action::Store(Then::Wait) | Action::Add(Then::Wait) | Action::Ask(Then::Wait) | Action::Ignore(_) => {
            return None;
        }
    })
}

/// What became of a contribution.
#[derive(Clone, Copy)]
enum Applied {
    Added,
    Completed,
    Replied,
    Refused,
    Up,
    UpAgain,
    Wanted,
}

fn set_kind(packet: &mut [u8], kind: Kind) {
    packet[offset::VERSION_KIND] = VERSION << 4 | kind as u8;
}

//! The aggregator without sockets: a packet goes in, is turned into its answer in place, and comes out
//! with whom it is for.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_wire::{
    Header, Kind, MAX_ELEMENTS, MAX_JOBS, MAX_WORKERS, Reason, admit,
    header::{HEADER_LEN, VERSION, offset},
    reason::COUNTERS,
    slot::{Action, Contribution, SlotMeta, Then, answer, decide},
    tables::{JobEntry, WorkerCounters, WorkerEntry, job_flag, worker_index},
};
use thiserror::Error;

use crate::values;

/// What is to be done with the packet, which is its own answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing: it was taken in, or refused.
    None(Reason),
    /// Send it to this worker.
    One(Reason, SocketAddrV4),
    /// Send it to all workers of this job: [`HostAggregator::workers`].
    All(u16),
}

impl Answer {
    /// What became of the packet.
    pub fn reason(self) -> Reason {
        match self {
            Answer::None(reason) | Answer::One(reason, _) => reason,
            Answer::All(_) => Reason::Completed,
        }
    }
}

/// Why a job cannot be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// The number is outside the table.
    #[error("job number {0}: give 1 to {max}", max = MAX_JOBS - 1)]
    Number(u16),
    /// No worker, or too many.
    #[error("{0} workers: give 1 to {MAX_WORKERS}")]
    World(usize),
    /// The chunk does not fit the slots.
    #[error("chunks of {wanted} elements: give 1 to {max}, or start the aggregator with a larger chunk")]
    Elements {
        /// Elements asked for.
        wanted: u16,
        /// The slots' size.
        max: u16,
    },
    /// The slots are no power of two, or not in the pool.
    #[error("slots {first} to {first} + {slots} of {total}: give a power of two within the pool")]
    Slots {
        /// The first slot.
        first: u32,
        /// How many.
        slots: u32,
        /// The pool.
        total: u32,
    },
}

/// The pool does not fit this host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{slots} slots of {elements} elements take {bytes} bytes, more than half of this host's memory; give fewer --slots or --elements"
)]
pub struct NoMemory {
    /// Slots asked for.
    pub slots: u32,
    /// Elements of each.
    pub elements: u16,
    /// What that takes.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct Job {
    entry: JobEntry,
    addresses: Vec<SocketAddrV4>,
}

/// The slots, the jobs, and the counters.
pub struct HostAggregator {
    max_elements: u16,
    jobs: Vec<Job>,
    workers: Vec<WorkerEntry>,
    slots: Vec<SlotMeta>,
    /// Both versions of each slot, `max_elements` values each.
    values: Vec<i32>,
    counters: [u64; COUNTERS],
    worker_counters: Vec<WorkerCounters>,
}

impl HostAggregator {
    /// `slots` slots, each for chunks of at most `max_elements` (limited to what a packet can carry).
    ///
    /// # Errors
    /// When the slots do not fit half of the memory that this host has.
    pub fn new(slots: u32, max_elements: u16) -> Result<HostAggregator, NoMemory> {
        let max_elements = max_elements.min(MAX_ELEMENTS as u16);
        // Cannot overflow: 2^32 slots of two times 832 values of 4 bytes are less than 2^45.
        let values = u64::from(slots) * 2 * u64::from(max_elements);
        let bytes = values * size_of::<i32>() as u64 + u64::from(slots) * size_of::<SlotMeta>() as u64;
        let refused = NoMemory { slots, elements: max_elements, bytes };
        // The kernel promises more than it has, and kills who takes the promise at its word.
        if bytes > host_memory() / 2 {
            return Err(refused);
        }
        Ok(HostAggregator {
            max_elements,
            jobs: vec![Job::default(); MAX_JOBS],
            workers: vec![WorkerEntry::default(); MAX_JOBS * MAX_WORKERS],
            slots: filled(u64::from(slots), SlotMeta::default()).ok_or(refused)?,
            values: filled(values, 0).ok_or(refused)?,
            counters: [0; COUNTERS],
            worker_counters: vec![WorkerCounters::default(); MAX_JOBS * MAX_WORKERS],
        })
    }

    /// Slots in the pool.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Most elements in a chunk.
    pub fn max_elements(&self) -> u16 {
        self.max_elements
    }

    /// Starts to aggregate for job `number`. `addresses` are the workers', by rank.
    ///
    /// `entry.world` and the active flag are set here; `entry.epoch` must be new for this number, since
    /// slots are not cleared.
    pub fn install(
        &mut self,
        number: u16,
        entry: JobEntry,
        addresses: Vec<SocketAddrV4>,
    ) -> Result<(), JobError> {
        if number == 0 || usize::from(number) >= MAX_JOBS {
            return Err(JobError::Number(number));
        }
        if addresses.is_empty() || addresses.len() > MAX_WORKERS {
            return Err(JobError::World(addresses.len()));
        }
        if entry.elements == 0 || entry.elements > self.max_elements {
            return Err(JobError::Elements { wanted: entry.elements, max: self.max_elements });
        }
        let (first, slots, total) = (entry.slot_base, entry.slots, self.slots());
        if !slots.is_power_of_two() || first.checked_add(slots).is_none_or(|end| end > total) {
            return Err(JobError::Slots { first, slots, total });
        }
        let world = addresses.len() as u16;
        for (rank, address) in addresses.iter().enumerate() {
            let index = worker_index(number, rank as u16) as usize;
            self.workers[index] =
                WorkerEntry { ip: address.ip().to_bits(), port: address.port(), ..WorkerEntry::default() };
            self.worker_counters[index] = WorkerCounters::default();
        }
        let entry = JobEntry { world, contributors: world, flags: entry.flags | job_flag::ACTIVE, ..entry };
        self.jobs[usize::from(number)] = Job { entry, addresses };
        Ok(())
    }

    /// Stops to aggregate for a job. Says whether there was one.
    pub fn remove(&mut self, number: u16) -> bool {
        match self.jobs.get_mut(usize::from(number)) {
            Some(job) => {
                let was_active = job.entry.flags & job_flag::ACTIVE != 0;
                job.entry.flags = 0;
                job.addresses.clear();
                was_active
            }
            None => false,
        }
    }

    /// The addresses of a job's workers, by rank.
    pub fn workers(&self, number: u16) -> &[SocketAddrV4] {
        self.jobs.get(usize::from(number)).map_or(&[], |job| &job.addresses)
    }

    /// Packets by what became of them.
    pub fn counter(&self, reason: Reason) -> u64 {
        self.counters[reason as usize]
    }

    /// What a worker did; zeros for a worker that is not there.
    pub fn worker_counters(&self, job: u16, rank: u16) -> WorkerCounters {
        let index = worker_index(job, rank) as usize;
        self.worker_counters.get(index).copied().unwrap_or_default()
    }

    /// Counts copies of results that have left.
    pub fn count_sent(&mut self, copies: u64) {
        self.counters[Reason::Sent as usize] += copies;
    }

    /// Takes a packet (UDP payload) that came from `source`.
    pub fn on_packet(&mut self, source: Ipv4Addr, packet: &mut [u8]) -> Answer {
        let answer = self.take(source, packet).unwrap_or_else(Answer::None);
        self.counters[answer.reason() as usize] += 1;
        answer
    }

    fn take(&mut self, source: Ipv4Addr, packet: &mut [u8]) -> Result<Answer, Reason> {
        if packet.len() < HEADER_LEN {
            return Err(Reason::BadLength);
        }
        let header = Header::read(&*packet, 0, packet.len())?;
        let job = self.jobs.get(usize::from(header.job)).ok_or(Reason::UnknownJob)?.entry;
        let rank = admit::sender(&header, &job)?;
        let index = worker_index(header.job, rank) as usize;
        let worker = self.workers.get(index).ok_or(Reason::Internal)?;
        admit::source(source.to_bits(), worker)?;
        let back = SocketAddrV4::new(worker.ip.into(), worker.port);
        match admit::request(&header, &job, 0)? {
            None => {
                set_kind(packet, Kind::Report);
                Ok(Answer::One(Reason::Probed, back))
            }
            Some(contribution) => {
                let applied = self.apply(&job, &header, &contribution, packet);
                self.count_worker(index, applied);
                Ok(match applied? {
                    Applied::Added => Answer::None(Reason::Added),
                    Applied::Completed => Answer::All(header.job),
                    Applied::Replied => Answer::One(Reason::Replied, back),
                })
            }
        }
    }

    /// Does to the slot what the decision says; a complete slot's sum replaces the packet's elements.
    fn apply(
        &mut self,
        job: &JobEntry,
        header: &Header,
        contribution: &Contribution,
        packet: &mut [u8],
    ) -> Result<Applied, Reason> {
        let index = (job.slot_base + header.slot) as usize;
        let meta = self.slots.get_mut(index).ok_or(Reason::Internal)?;
        let version = usize::from(contribution.version & 1);
        let stride = usize::from(self.max_elements);
        let values = self.values.chunks_exact_mut(stride).nth(index * 2 + version).ok_or(Reason::Internal)?;
        let (mut after, action) = decide(meta, contribution);
        let (_, payload) = packet.split_at_mut(HEADER_LEN);
        match action {
            Action::Ignore(reason) => return Err(reason),
            Action::Store(_) => values::store(values, payload),
            Action::Add(_) => values::add(values, payload),
            _ => {}
        }
        if let Action::Store(Then::Complete) | Action::Add(Then::Complete) = action {
            after.set_next(contribution.version, contribution.seq.wrapping_add(2 * contribution.slots));
        }
        *meta = after;
        let held = after.version(contribution.version);
        let (header, applied) = match action {
            Action::Store(Then::Complete) | Action::Add(Then::Complete) => {
                (answer::result(header, &held, job), Applied::Completed)
            }
            Action::Reply => (answer::result(header, &held, job), Applied::Replied),
            Action::Ask(Then::Complete) => (answer::agreed(header, &held, job), Applied::Completed),
            Action::ReplyExponent => (answer::agreed(header, &held, job), Applied::Replied),
            Action::Refuse => (answer::refusal(header, &held, job), Applied::Replied),
            _ => return Ok(Applied::Added),
        };
        if !matches!(action, Action::Refuse) && header.elements > 0 {
            values::write(payload, values);
        }
        packet[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        Ok(applied)
    }

    fn count_worker(&mut self, index: usize, applied: Result<Applied, Reason>) {
        let Some(counters) = self.worker_counters.get_mut(index) else { return };
        match applied {
            Ok(Applied::Added) => counters.added += 1,
            Ok(Applied::Completed) => {
                counters.added += 1;
                counters.last += 1;
            }
            Ok(Applied::Replied) => counters.replies += 1,
            Err(Reason::Duplicate) => counters.duplicates += 1,
            Err(_) => {}
        }
    }
}

/// This many copies of a value; `None` without the memory for them.
fn filled<T: Clone>(count: u64, value: T) -> Option<Vec<T>> {
    let count = usize::try_from(count).ok()?;
    let mut values = Vec::new();
    values.try_reserve_exact(count).ok()?;
    values.resize(count, value);
    Some(values)
}

/// Bytes of memory in this host; without bound when it does not say.
fn host_memory() -> u64 {
    use nix::unistd::{SysconfVar, sysconf};

    let number = |variable| sysconf(variable).ok().flatten().and_then(|number| u64::try_from(number).ok());
    match (number(SysconfVar::_PHYS_PAGES), number(SysconfVar::PAGE_SIZE)) {
        (Some(pages), Some(size)) => pages.saturating_mul(size),
        _ => u64::MAX,
    }
}

/// What became of a contribution.
#[derive(Clone, Copy)]
enum Applied {
    Added,
    Completed,
    Replied,
}

fn set_kind(packet: &mut [u8], kind: Kind) {
    packet[offset::VERSION_KIND] = VERSION << 4 | kind as u8;
}

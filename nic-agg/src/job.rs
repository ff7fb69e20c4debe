//! Adds jobs to the tables of the programs, and removes them.

mod error;
mod fan_out;

use std::{
    collections::{BTreeMap, HashSet},
    net::Ipv4Addr,
    thread,
    time::Duration,
};

use sumac_agg_layout::State;
use sumac_wire::{
    MAX_HOSTS, MAX_JOBS, MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS,
    tables::{JobEntry, WorkerEntry, job_flag},
};

pub use self::error::JobError;
use self::fan_out::{group, group_entry, ranks_by_port};
use crate::tables::{TableError, Tables};

/// How long a program that has read a job's entry may still be busy with it. Programs run for
/// microseconds, on a CPU that nothing but an interrupt takes from them.
const GRACE: Duration = Duration::from_millis(10);

/// One worker of a job that is to be added, and the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewWorker {
    /// The worker's address: contributions must come from it.
    pub ip: Ipv4Addr,
    /// The worker's UDP port for results of shard 0.
    pub port: u16,
    /// The worker's MAC address, or its router's.
    pub mac: [u8; 6],
    /// The aggregator's interface towards it.
    pub ifindex: u32,
    /// The aggregator's address on that interface, which the worker sends to.
    pub aggregator_ip: Ipv4Addr,
    /// That interface's MAC address.
    pub aggregator_mac: [u8; 6],
}

impl NewWorker {
    fn entry(&self) -> WorkerEntry {
        WorkerEntry {
            ip: self.ip.to_bits(),
            aggregator_ip: self.aggregator_ip.to_bits(),
            ifindex: self.ifindex,
            port: self.port,
            mac: self.mac,
            aggregator_mac: self.aggregator_mac,
            ..WorkerEntry::default()
        }
    }
}

/// Where this aggregator stands in the job (SwitchML section 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// It is the only one.
    #[default]
    Only,
    /// Its workers are the aggregators of racks.
    Root {
        /// Workers of all racks.
        contributors: u16,
    },
    /// Its sums go up to a root, whose results go down to its workers.
    Rack {
        /// Its number among the root's racks.
        rack: u16,
        /// How many racks the root has.
        racks: u16,
        /// Workers of all racks.
        contributors: u16,
        /// The way to the root; `port` is where the root takes contributions of shard 0.
        parent: NewWorker,
    },
}

/// What a dynamic job has in place of slots of its own (ATP).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDynamic {
    /// Slots of each shard that its chunks may take, counted from the first that is shared.
    pub slots: u32,
    /// The ways to its parameter hosts, where shard s goes to the one with the number s modulo theirs; `port` is where a
    /// host takes contributions of shard 0. Below a root nothing goes to them.
    pub hosts: Vec<NewWorker>,
}

/// A job that is to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Its number: 1 to `MAX_JOBS - 1`.
    pub job: u16,
    /// Its incarnation: never used before with this number, unless by the same dynamic job.
    pub epoch: u16,
    /// The secret number in all of its packets.
    pub token: u64,
    /// That it is dynamic, and then the next four say nothing. None: it is static.
    pub dynamic: Option<NewDynamic>,
    /// Its first slot in the pool; none: the first place that is free.
    pub first_slot: Option<u32>,
    /// Its slots, all lanes together.
    pub slots: u32,
    /// The slots of one lane, a power of two.
    pub lane_slots: u32,
    /// Whether a completed slot takes whatever chunk of its lane comes next.
    pub stealing: bool,
    /// Its shards: lane l belongs to shard l mod this, and each shard has a port of its own.
    pub shards: u16,
    /// Where this aggregator stands in the job.
    pub level: Level,
    /// Most elements in a chunk.
    pub elements: u16,
    /// Whether packets carry UDP checksums that are to be verified.
    pub checksum: bool,
    /// The multicast group for results to workers that share a port. None: one is chosen when there are such. Through
    /// the others' ports each gets a copy of its own.
    pub group: Option<Ipv4Addr>,
    /// The workers, by rank.
    pub workers: Vec<NewWorker>,
}

/// Where a job was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its first slot in the pool.
    pub first_slot: u32,
    /// The multicast group that its results are sent to where several workers share a port.
    pub group: Option<Ipv4Addr>,
    /// Whether a copy of each result leaves through each of several ports.
    pub is_copied: bool,
}

impl Placed {
    /// Where results go, for people.
    #[must_use]
    pub fn whereto(group: Option<Ipv4Addr>, is_copied: bool) -> String {
        match (group, is_copied) {
            (None, _) => "each worker's port".into(),
            (Some(group), false) => group.to_string(),
            (Some(group), true) => format!("each worker's port, to {group} where several share one"),
        }
    }
}

/// Adds a job: from now on its contributions are taken.
///
/// # Errors
/// See [`JobError`]; nothing is added then.
pub fn add(tables: &mut Tables, new: &NewJob) -> Result<Placed, JobError> {
    let state = tables.state()?;
    check(new, &state)?;
    let before = tables.job(new.job)?;
    if before.flags & job_flag::ACTIVE != 0 {
        return Err(JobError::Taken { job: new.job, epoch: before.epoch });
    }
    // What a dynamic job left in slots it may well go on with: its parameter hosts know whose values are in what they get.
    let is_static = new.dynamic.is_none();
    if is_static && before != JobEntry::default() && before.epoch == new.epoch {
        return Err(JobError::EpochUsed { job: new.job, epoch: new.epoch });
    }
    let ports = ranks_by_port(new);
    let group = group(new, &ports)?;
    let is_long = usize::from(new.elements) > PAGE_ELEMENTS;
    if is_long && ports.len() > 1 {
        return Err(JobError::Copies { elements: new.elements });
    }
    let first_slot = match new.dynamic {
        Some(_) => 0,
        None => {
            let taken = ranges(&tables.jobs()?);
            let full = JobError::PoolFull { slots: new.slots, pool: state.slots };
            place(new, taken, state.slots).ok_or(full)?
        }
    };
    let placed = Placed { first_slot, group, is_copied: ports.len() > 1 };
    write(tables, new, placed, &ports)?;
    Ok(placed)
}

/// Removes a job: its packets are refused from now on, and its slots are free. `false`: it was not there.
///
/// # Errors
/// As the kernel answers.
pub fn remove(tables: &mut Tables, job: u16) -> Result<bool, TableError> {
    let entry = if usize::from(job) < MAX_JOBS { tables.job(job)? } else { JobEntry::default() };
    if entry.flags & job_flag::ACTIVE == 0 {
        return Ok(false);
    }
    // The epoch stays, so that nobody uses it again while slots remember it.
    tables.set_job(job, JobEntry { epoch: entry.epoch, ..JobEntry::default() })?;
    thread::sleep(GRACE);
    tables.clear_egress(job)?;
    tables.set_parents(job, &[])?;
    for rank in 0..MAX_WORKERS as u16 {
        tables.set_worker(job, rank, WorkerEntry::default())?;
    }
    Ok(true)
}

/// Leaves a job only the first of its slots, `lane_slots` in each lane, before any of its workers has contributed.
///
/// # Errors
/// When it is not there or has not as many, when one has contributed, and as the kernel answers.
pub fn resize(tables: &mut Tables, job: u16, lane_slots: u32) -> Result<(), JobError> {
    let entry = if usize::from(job) < MAX_JOBS { tables.job(job)? } else { JobEntry::default() };
    let before = entry.lane_slots();
    let has_slots = entry.flags & (job_flag::ACTIVE | job_flag::DYNAMIC) == job_flag::ACTIVE;
    if !has_slots || !lane_slots.is_power_of_two() || lane_slots > before {
        return Err(JobError::Resize { job, lane_slots });
    }
    // As in `write`: nobody reads half of an entry. Probes that come meanwhile are refused, and sent again.
    tables.set_job(job, JobEntry { flags: entry.flags & !job_flag::ACTIVE, ..entry })?;
    if let Some(rank) = contributor(tables, job, entry.world)? {
        tables.set_job(job, entry)?;
        return Err(JobError::Held { job, rank });
    }
    reset_lanes(tables, job, lane_slots)?;
    let slots = entry.slots / before * lane_slots;
    let lane_slots_log2 = lane_slots.ilog2() as u16;
    let resized = JobEntry { slots, lane_slots_log2, flags: entry.flags & !job_flag::ACTIVE, ..entry };
    tables.set_job(job, resized)?;
    Ok(tables.set_job(job, JobEntry { flags: entry.flags, ..resized })?)
}

/// A worker whose contributions were taken: slots hold them.
fn contributor(tables: &Tables, job: u16, world: u16) -> Result<Option<u16>, TableError> {
    for rank in 0..world {
        if tables.worker_counters(job, rank)?.added > 0 {
            return Ok(Some(rank));
        }
    }
    Ok(None)
}

/// A lane's slots take their first two chunks by their number; what is drawn comes after those.
fn reset_lanes(tables: &mut Tables, job: u16, lane_slots: u32) -> Result<(), TableError> {
    (0..MAX_LANES as u16).try_for_each(|lane| tables.set_lane(job, lane, lane_slots.wrapping_mul(2)))
}

fn check(new: &NewJob, state: &State) -> Result<(), JobError> {
    if new.job == 0 || usize::from(new.job) >= MAX_JOBS {
        return Err(JobError::Number { job: new.job });
    }
    if new.workers.is_empty() || new.workers.len() > MAX_WORKERS {
        return Err(JobError::World { world: new.workers.len() });
    }
    let mut addresses = HashSet::new();
    if let Some(worker) = new.workers.iter().find(|worker| !addresses.insert(worker.ip)) {
        return Err(JobError::SameAddress { ip: worker.ip });
    }
    match &new.dynamic {
        Some(dynamic) => check_dynamic(new, dynamic, state)?,
        None => check_slots(new, state.shards)?,
    }
    if let Level::Rack { rack, racks, .. } = new.level
        && (rack >= racks || usize::from(racks) > MAX_WORKERS)
    {
        return Err(JobError::Rack { rack, racks });
    }
    let page = if new.dynamic.is_some() { PAGE_ELEMENTS as u16 } else { u16::MAX };
    let max = state.elements.min(page);
    if new.elements == 0 || new.elements > max {
        return Err(JobError::Elements { elements: new.elements, max });
    }
    Ok(())
}

fn check_slots(new: &NewJob, ports: u16) -> Result<(), JobError> {
    let NewJob { slots, lane_slots, shards, .. } = *new;
    if !lane_slots.is_power_of_two() {
        return Err(JobError::Slots { lane_slots });
    }
    let lanes = slots / lane_slots;
    let shared = shards > 0 && shards <= ports && lanes.is_multiple_of(u32::from(shards));
    if !slots.is_multiple_of(lane_slots) || lanes == 0 || lanes as usize > MAX_LANES || !shared {
        return Err(JobError::Lanes { slots, lane_slots, shards, ports });
    }
    Ok(())
}

fn check_dynamic(new: &NewJob, dynamic: &NewDynamic, state: &State) -> Result<(), JobError> {
    if dynamic.slots == 0 || dynamic.slots > state.dynamic_slots {
        return Err(JobError::DynamicSlots { slots: dynamic.slots, pool: state.dynamic_slots });
    }
    if new.shards == 0 || new.shards > state.shards {
        return Err(JobError::Shards { shards: new.shards, ports: state.shards });
    }
    let is_rack = matches!(new.level, Level::Rack { .. });
    if !is_rack && !(1..=MAX_HOSTS).contains(&dynamic.hosts.len()) {
        return Err(JobError::Hosts { hosts: dynamic.hosts.len() });
    }
    Ok(())
}

/// The slots of static jobs, as first slot and number.
fn ranges(jobs: &[(u16, JobEntry)]) -> Vec<(u32, u32)> {
    let has_slots = job_flag::ACTIVE | job_flag::DYNAMIC;
    let jobs = jobs.iter().filter(|(_, job)| job.flags & has_slots == job_flag::ACTIVE);
    jobs.map(|(_, job)| (job.slot_base, job.slots)).collect()
}

/// Where the job's sums go.
fn parents(new: &NewJob) -> Vec<WorkerEntry> {
    match (&new.level, &new.dynamic) {
        (Level::Rack { parent, .. }, _) => vec![parent.entry()],
        (_, Some(dynamic)) => dynamic.hosts.iter().map(NewWorker::entry).collect(),
        _ => Vec::new(),
    }
}

/// The job's first slot among those of others, given as first slot and number.
fn place(new: &NewJob, mut taken: Vec<(u32, u32)>, pool: u32) -> Option<u32> {
    let fits = |first: u32| first.checked_add(new.slots).is_some_and(|end| end <= pool);
    if let Some(first) = new.first_slot {
        let free = |(base, slots)| first + new.slots <= base || base + slots <= first;
        return (fits(first) && taken.into_iter().all(free)).then_some(first);
    }
    taken.sort_unstable();
    let mut first = 0u32;
    for (base, slots) in taken {
        if first.saturating_add(new.slots) <= base {
            break;
        }
        first = base + slots;
    }
    fits(first).then_some(first)
}

fn write(
    tables: &mut Tables,
    new: &NewJob,
    placed: Placed,
    ports: &BTreeMap<u32, Vec<usize>>,
) -> Result<(), TableError> {
    tables.clear_egress(new.job)?;
    tables.clear_counters(new.job)?;
    for (rank, worker) in (0..).zip(&new.workers) {
        tables.set_worker(new.job, rank, worker.entry())?;
    }
    // Behind the workers' own entries; no contribution can be of these ranks.
    let mut shared = new.workers.len() as u16;
    for (ifindex, ranks) in ports {
        match (&ranks[..], placed.group) {
            ([rank, _, ..], Some(group)) if placed.is_copied => {
                tables.set_worker(new.job, shared, group_entry(group, &new.workers[*rank]))?;
                tables.set_egress(new.job, *ifindex, shared)?;
                shared += 1;
            }
            // One frame for all of them, without the egress program.
            ([_, _, ..], _) => {}
            (ranks, _) => {
                ranks.iter().try_for_each(|rank| tables.set_egress(new.job, *ifindex, *rank as u16))?;
            }
        }
    }
    tables.set_parents(new.job, &parents(new))?;
    if new.dynamic.is_none() {
        reset_lanes(tables, new.job, new.lane_slots)?;
    }
    let entry = entry(new, placed);
    // In two steps: the kernel copies an entry word by word, and a program that reads half of it must
    // find it inactive.
    tables.set_job(new.job, entry)?;
    tables.set_job(new.job, JobEntry { flags: entry.flags | job_flag::ACTIVE, ..entry })
}

/// The job's entry, not active yet.
fn entry(new: &NewJob, placed: Placed) -> JobEntry {
    let world = new.workers.len() as u16;
    let (level, contributors, rack, racks) = match new.level {
        Level::Only => (0, world, 0, 0),
        Level::Root { contributors } => (job_flag::ROOT, contributors, 0, 0),
        Level::Rack { rack, racks, contributors, .. } => (job_flag::CHILD, contributors, rack, racks),
    };
    let given = [
        (job_flag::CHECKSUM, new.checksum),
        (job_flag::MULTICAST, placed.group.is_some() && !placed.is_copied),
        (job_flag::STEALING, new.stealing && new.dynamic.is_none()),
        (job_flag::DYNAMIC, new.dynamic.is_some()),
    ];
    let (slots, lane_slots) = match &new.dynamic {
        Some(dynamic) => (dynamic.slots, 1),
        None => (new.slots, new.lane_slots),
    };
    JobEntry {
        token: new.token,
        slot_base: placed.first_slot,
        slots,
        group_ip: placed.group.map_or(0, Ipv4Addr::to_bits),
        epoch: new.epoch,
        world,
        elements: new.elements,
        flags: given.iter().filter(|(_, given)| *given).fold(level, |flags, (flag, _)| flags | flag),
        contributors,
        shards: new.shards,
        lane_slots_log2: lane_slots.ilog2() as u16,
        rack,
        racks,
        hosts: parents(new).len() as u16,
    }
}

#[cfg(test)]
mod tests;

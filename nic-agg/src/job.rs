//! Adds jobs to the tables of the programs, and removes them.

use std::{collections::HashSet, net::Ipv4Addr, thread, time::Duration};

use sumac_wire::{
    MAX_JOBS, MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS,
    tables::{JobEntry, WorkerEntry, job_flag},
};
use thiserror::Error;

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

/// A job that is to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Its number: 1 to `MAX_JOBS - 1`.
    pub job: u16,
    /// Its incarnation: never used before with this number.
    pub epoch: u16,
    /// The secret number in all of its packets.
    pub token: u64,
    /// Its first slot in the pool; none: the first place that is free.
    pub first_slot: Option<u32>,
    /// Its slots, all lanes together.
    pub slots: u32,
    /// The slots of one lane, a power of two.
    pub lane_slots: u32,
    /// Its shards: lane l belongs to shard l mod this, and each shard has a port of its own.
    pub shards: u16,
    /// Whether a completed slot takes whatever chunk of its lane comes next.
    pub stealing: bool,
    /// Where this aggregator stands in the job.
    pub level: Level,
    /// Most elements in a chunk.
    pub elements: u16,
    /// Whether packets carry UDP checksums that are to be verified.
    pub checksum: bool,
    /// The multicast group for its results. None: one is chosen when all workers are behind one
    /// port, and each gets a copy of its own when each has a port of its own.
    pub group: Option<Ipv4Addr>,
    /// The workers, by rank.
    pub workers: Vec<NewWorker>,
}

/// Where a job was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its first slot in the pool.
    pub first_slot: u32,
    /// The multicast group that its results are sent to, if not to each worker.
    pub group: Option<Ipv4Addr>,
}

/// Why a job was not added.
#[derive(Debug, Error)]
pub enum JobError {
    /// A number outside of the table.
    #[error("job number {job}: must be 1 to {}", MAX_JOBS - 1)]
    Number {
        /// The number asked for.
        job: u16,
    },
    /// The number is in use.
    #[error("job {job} is there already (epoch {epoch}); remove it first")]
    Taken {
        /// The number.
        job: u16,
        /// The epoch of the job that is there.
        epoch: u16,
    },
    /// Its slots may remember that epoch's chunks.
    #[error("job {job} had epoch {epoch} before, and slots remember it; take a later one")]
    EpochUsed {
        /// The number.
        job: u16,
        /// The epoch asked for.
        epoch: u16,
    },
    /// Too few or too many workers.
    #[error("a job of {world} workers: must be 1 to {MAX_WORKERS}")]
    World {
        /// How many were given.
        world: usize,
    },
    /// One address, two workers.
    #[error("two workers have the address {ip}: contributions tell workers apart by it")]
    SameAddress {
        /// The address.
        ip: Ipv4Addr,
    },
    /// Not a power of two.
    #[error("{lane_slots} slots in a lane: must be a power of two")]
    Slots {
        /// How many were asked for.
        lane_slots: u32,
    },
    /// Slots, lanes and shards that do not go together.
    #[error(
        "{slots} slots in lanes of {lane_slots} over {shards} shards: must be 1 to {MAX_LANES} lanes, as many in each \
         shard, and this aggregator has {ports} shards (see attach --shards)"
    )]
    Lanes {
        /// Slots of all lanes.
        slots: u32,
        /// Slots of one.
        lane_slots: u32,
        /// Shards asked for.
        shards: u16,
        /// Shards that there are.
        ports: u16,
    },
    /// A rack that its root does not have.
    #[error("rack {rack} of {racks}: a root has 1 to {MAX_WORKERS} racks, counted from 0")]
    Rack {
        /// Its number.
        rack: u16,
        /// How many there are.
        racks: u16,
    },
    /// No place in the pool.
    #[error("no {slots} free slots in a row in the pool of {pool}: remove jobs, or attach with more --slots")]
    PoolFull {
        /// How many were asked for.
        slots: u32,
        /// How many there are.
        pool: u32,
    },
    /// Chunks that do not fit.
    #[error("chunks of {elements} elements: this aggregator takes 1 to {max} (see attach --elements)")]
    Elements {
        /// How many were asked for.
        elements: u16,
        /// How many are possible.
        max: u16,
    },
    /// Results that the kernel cannot copy.
    #[error(
        "chunks of {elements} elements: the kernel does not copy results of more than {PAGE_ELEMENTS} to several \
         ports; ask for shorter chunks, or put all workers behind one port"
    )]
    Copies {
        /// How many were asked for.
        elements: u16,
    },
    /// Frames that do not fit through a port.
    #[error("chunks of {elements} elements need an MTU of {needed}, but {interface} has {mtu}")]
    Mtu {
        /// How many were asked for.
        elements: u16,
        /// Bytes of an IPv4 packet with them.
        needed: u32,
        /// The port.
        interface: String,
        /// Its MTU.
        mtu: u32,
    },
    /// The worker is not behind a port of the aggregator.
    #[error(
        "rank {rank} ({ip}) is behind interface {ifindex}, where the aggregator is not attached; \
         attach it there: sumac-agg attach IFACE"
    )]
    NoPort {
        /// The worker.
        rank: usize,
        /// Its address.
        ip: Ipv4Addr,
        /// The interface.
        ifindex: u32,
    },
    /// The way to the root leads past the aggregator.
    #[error(
        "the root ({ip}) is behind interface {ifindex}, where the aggregator is not attached and would not see its \
         results; attach it there too: sumac-agg attach IFACE... UPLINK"
    )]
    NoUplink {
        /// The root.
        ip: Ipv4Addr,
        /// The interface.
        ifindex: u32,
    },
    /// A job that is not there, or has not as many slots.
    #[error("job {job} cannot be left {lane_slots} slots in each lane: it is not there, or has not as many")]
    Resize {
        /// Its number.
        job: u16,
        /// How many it was to have.
        lane_slots: u32,
    },
    /// Slots that hold something.
    #[error("job {job} keeps its slots: rank {rank} has contributed already")]
    Held {
        /// Its number.
        job: u16,
        /// The worker.
        rank: u16,
    },
    /// Neither one port for all nor one for each.
    #[error(
        "some of the workers share a port and some do not: results go either through a port for each \
         worker, or to a multicast group behind one port for all"
    )]
    Mixed,
    /// Multicast to different ports.
    #[error("workers that share a multicast group must share their UDP port too")]
    GroupPorts,
    /// Not a group.
    #[error("{group} is no multicast address (224.0.0.0 to 239.255.255.255)")]
    Group {
        /// The address given.
        group: Ipv4Addr,
    },
    /// The maps.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Adds a job: from now on its contributions are taken.
///
/// # Errors
/// See [`JobError`]; nothing is added then.
pub fn add(tables: &mut Tables, new: &NewJob) -> Result<Placed, JobError> {
    let state = tables.state()?;
    check(new, state.elements, state.shards)?;
    let before = tables.job(new.job)?;
    if before.flags & job_flag::ACTIVE != 0 {
        return Err(JobError::Taken { job: new.job, epoch: before.epoch });
    }
    if before != JobEntry::default() && before.epoch == new.epoch {
        return Err(JobError::EpochUsed { job: new.job, epoch: new.epoch });
    }
    let group = group(new)?;
    let is_long = usize::from(new.elements) > PAGE_ELEMENTS;
    if group.is_none() && is_long && new.workers.len() > 1 {
        return Err(JobError::Copies { elements: new.elements });
    }
    let taken = tables.jobs()?.into_iter().filter(|(_, job)| job.flags & job_flag::ACTIVE != 0);
    let taken = taken.map(|(_, job)| (job.slot_base, job.slots)).collect();
    let first_slot =
        place(new, taken, state.slots).ok_or(JobError::PoolFull { slots: new.slots, pool: state.slots })?;
    write(tables, new, Placed { first_slot, group })?;
    Ok(Placed { first_slot, group })
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
    tables.set_parent(job, WorkerEntry::default())?;
    for rank in 0..entry.world {
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
    if entry.flags & job_flag::ACTIVE == 0 || !lane_slots.is_power_of_two() || lane_slots > before {
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

fn check(new: &NewJob, max_elements: u16, ports: u16) -> Result<(), JobError> {
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
    let NewJob { slots, lane_slots, shards, .. } = *new;
    if !lane_slots.is_power_of_two() {
        return Err(JobError::Slots { lane_slots });
    }
    let lanes = slots / lane_slots;
    let shared = shards > 0 && shards <= ports && lanes.is_multiple_of(u32::from(shards));
    if !slots.is_multiple_of(lane_slots) || lanes == 0 || lanes as usize > MAX_LANES || !shared {
        return Err(JobError::Lanes { slots, lane_slots, shards, ports });
    }
    if let Level::Rack { rack, racks, .. } = new.level
        && (rack >= racks || usize::from(racks) > MAX_WORKERS)
    {
        return Err(JobError::Rack { rack, racks });
    }
    if new.elements == 0 || new.elements > max_elements {
        return Err(JobError::Elements { elements: new.elements, max: max_elements });
    }
    Ok(())
}

/// The multicast group of the job's results, or none when each worker has a port of its own.
fn group(new: &NewJob) -> Result<Option<Ipv4Addr>, JobError> {
    let ports: HashSet<u32> = new.workers.iter().map(|worker| worker.ifindex).collect();
    let group = match (new.group, ports.len()) {
        (Some(group), _) if !group.is_multicast() => return Err(JobError::Group { group }),
        (Some(group), 1) => group,
        (None, n) if n == new.workers.len() => return Ok(None),
        // Of the block for one administration's own use (RFC 2365).
        (None, 1) => Ipv4Addr::new(239, 77, (new.job >> 8) as u8, new.job as u8),
        _ => return Err(JobError::Mixed),
    };
    if new.workers.iter().any(|worker| worker.port != new.workers[0].port) {
        return Err(JobError::GroupPorts);
    }
    Ok(Some(group))
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

fn write(tables: &mut Tables, new: &NewJob, placed: Placed) -> Result<(), TableError> {
    tables.clear_egress(new.job)?;
    tables.clear_counters(new.job)?;
    for (rank, worker) in (0..).zip(&new.workers) {
        tables.set_worker(new.job, rank, worker.entry())?;
        if placed.group.is_none() {
            tables.set_egress(new.job, worker.ifindex, rank)?;
        }
    }
    if let Level::Rack { parent, .. } = new.level {
        tables.set_parent(new.job, parent.entry())?;
    }
    reset_lanes(tables, new.job, new.lane_slots)?;
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
        (job_flag::MULTICAST, placed.group.is_some()),
        (job_flag::STEALING, new.stealing),
    ];
    JobEntry {
        token: new.token,
        slot_base: placed.first_slot,
        slots: new.slots,
        group_ip: placed.group.map_or(0, Ipv4Addr::to_bits),
        epoch: new.epoch,
        world,
        elements: new.elements,
        flags: given.iter().filter(|(_, given)| *given).fold(level, |flags, (flag, _)| flags | flag),
        contributors,
        shards: new.shards,
        lane_slots_log2: new.lane_slots.ilog2() as u16,
        rack,
        racks,
        reserved: 0,
    }
}

#[cfg(test)]
mod tests;

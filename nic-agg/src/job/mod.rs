//! Adds jobs to the tables of the programs, resizes and removes them.

mod check;
mod error;
mod fan_out;
pub mod request;

use std::{collections::BTreeMap, net::Ipv4Addr, thread, time::Duration};

use sumac_wire::{
    MAX_JOBS, MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS,
    tables::{JobEntry, WorkerEntry, job_flag},
};

use self::{
    check::{check, place, ranges},
    fan_out::{group, group_entry, ranks_by_interface},
};
pub use self::{
    error::JobError,
    request::{Level, NewDynamic, NewJob, NewWorker},
};
use crate::tables::{TableError, Tables};

/// The time for which a program that has read a job's entry may still use it. Programs run for microseconds, and only
/// interrupts preempt them.
const PROGRAM_TIMEOUT: Duration = Duration::from_millis(10);

/// The placement of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub first_slot: u32,
    /// The multicast group of its results where several workers share an interface.
    pub group: Option<Ipv4Addr>,
    /// Whether a copy of each result leaves through each of several interfaces.
    pub is_copied: bool,
}

impl Placed {
    /// Formats the destinations of results.
    #[must_use]
    pub fn destinations(group: Option<Ipv4Addr>, is_copied: bool) -> String {
        match (group, is_copied) {
            (None, _) => "each worker's interface".into(),
            (Some(group), false) => group.to_string(),
            (Some(group), true) => format!("each worker's interface, to {group} where several share one"),
        }
    }
}

/// Adds a job: from now on its contributions are accepted.
///
/// # Errors
/// See [`JobError`]; then nothing is added.
pub fn add(tables: &mut Tables, new: &NewJob) -> Result<Placed, JobError> {
    let state = tables.state.get(0)?;
    check(new, &state)?;
    let before = tables.job(new.job)?;
    if before.flags & job_flag::ACTIVE != 0 {
        return Err(JobError::Taken { job: new.job, epoch: before.epoch });
    }
    // A dynamic job may continue with the content of its slots: bitmaps tell its parameter hosts whose values these have.
    let is_static = new.dynamic.is_none();
    if is_static && before != JobEntry::default() && before.epoch == new.epoch {
        return Err(JobError::EpochUsed { job: new.job, epoch: new.epoch });
    }
    let interfaces = ranks_by_interface(new);
    let group = group(new, &interfaces)?;
    let is_long = usize::from(new.elements) > PAGE_ELEMENTS;
    if is_long && interfaces.len() > 1 {
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
    let placed = Placed { first_slot, group, is_copied: interfaces.len() > 1 };
    write(tables, new, placed, &interfaces)?;
    Ok(placed)
}

/// Removes a job, whose packets are refused from now on and whose slots are free. Returns whether it was there.
pub fn remove(tables: &mut Tables, job: u16) -> Result<bool, TableError> {
    let entry = if usize::from(job) < MAX_JOBS { tables.job(job)? } else { JobEntry::default() };
    if entry.flags & job_flag::ACTIVE == 0 {
        return Ok(false);
    }
    // The epoch stays: it may not be used again while slots hold it.
    tables.set_job(job, JobEntry { epoch: entry.epoch, ..JobEntry::default() })?;
    thread::sleep(PROGRAM_TIMEOUT);
    tables.clear_egress(job)?;
    tables.set_parents(job, &[])?;
    for rank in 0..MAX_WORKERS as u16 {
        tables.set_worker(job, rank, WorkerEntry::default())?;
    }
    Ok(true)
}

/// Reduces a job to the first of its slots, `lane_slots` in each lane, before any of its workers has contributed.
pub fn resize(tables: &mut Tables, job: u16, lane_slots: u32) -> Result<(), JobError> {
    let entry = if usize::from(job) < MAX_JOBS { tables.job(job)? } else { JobEntry::default() };
    let before = entry.lane_slots();
    let has_slots = entry.flags & (job_flag::ACTIVE | job_flag::DYNAMIC) == job_flag::ACTIVE;
    if !has_slots || !lane_slots.is_power_of_two() || lane_slots > before {
        return Err(JobError::Resize { job, lane_slots });
    }
    // Inactive meanwhile, as in `write`. Probes that arrive then are refused, and sent again.
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

/// Returns a worker whose contributions were accepted, and are in slots.
fn contributor(tables: &Tables, job: u16, world: u16) -> Result<Option<u16>, TableError> {
    for rank in 0..world {
        if tables.worker_counters(job, rank)?.added > 0 {
            return Ok(Some(rank));
        }
    }
    Ok(None)
}

/// Sets each lane's next chunk: its slots take their first two chunks by number, and the next ones by order of completion.
fn reset_lanes(tables: &mut Tables, job: u16, lane_slots: u32) -> Result<(), TableError> {
    (0..MAX_LANES as u16).try_for_each(|lane| tables.set_lane(job, lane, lane_slots.wrapping_mul(2)))
}

/// Returns the destinations of the job's sums.
fn parents(new: &NewJob) -> Vec<WorkerEntry> {
    match (&new.level, &new.dynamic) {
        (Level::Rack { parent, .. }, _) => vec![parent.entry()],
        (_, Some(dynamic)) => dynamic.hosts.iter().map(NewWorker::entry).collect(),
        _ => Vec::new(),
    }
}

fn write(
    tables: &mut Tables,
    new: &NewJob,
    placed: Placed,
    interfaces: &BTreeMap<u32, Vec<usize>>,
) -> Result<(), TableError> {
    tables.clear_egress(new.job)?;
    tables.clear_counters(new.job)?;
    for (rank, worker) in (0..).zip(&new.workers) {
        tables.set_worker(new.job, rank, worker.entry())?;
    }
    // After the workers' own entries; no contribution is of these ranks.
    let mut shared = new.workers.len() as u16;
    for (ifindex, ranks) in interfaces {
        match (&ranks[..], placed.group) {
            ([rank, _, ..], Some(group)) if placed.is_copied => {
                tables.set_worker(new.job, shared, group_entry(group, &new.workers[*rank]))?;
                tables.set_egress(new.job, *ifindex, shared)?;
                shared += 1;
            }
            // One frame for all, without the egress program.
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
    // In two steps: the kernel copies an entry word by word, and a program that reads half of it must find it inactive.
    tables.set_job(new.job, entry)?;
    tables.set_job(new.job, JobEntry { flags: entry.flags | job_flag::ACTIVE, ..entry })
}

/// Returns the job's entry, not active yet.
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

//! Adds jobs to the tables of the programs, resizes and removes them.

mod error;
mod fan_out;

use std::{
    collections::{BTreeMap, HashSet},
    iter,
    net::{Ipv4Addr, SocketAddrV4},
    thread,
    time::Duration,
};

use sumac_agg_job::{NewJob, check_range, endpoint, resized};
use sumac_agg_layout::State;
use sumac_netutil::neighbour::Neighbour;
use sumac_wire::{
    MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS,
    tables::{JobEntry, WorkerEntry, job_flag, lane_index, worker_index},
};

pub use self::error::AddJobError;
use self::fan_out::{group, group_entry, ranks_by_interface};
use crate::tables::{OpenError, TableError, Tables};

/// The time for which a program that has read a job's entry may still use it. Programs run for microseconds,
/// and only interrupts preempt them.
const PROGRAM_TIMEOUT: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub first_slot: u32,
    /// The multicast group of its results where several workers share an interface.
    pub group: Option<Ipv4Addr>,
    /// Whether a copy of each result leaves through each of several interfaces.
    pub is_copied: bool,
}

impl Placed {
    pub fn destinations(group: Option<Ipv4Addr>, is_copied: bool) -> String {
        match (group, is_copied) {
            (None, _) => "each worker's interface".into(),
            (Some(group), false) => group.to_string(),
            (Some(group), true) => format!("each worker's interface, to {group} where several share one"),
        }
    }
}

/// Returns the entry of a worker, root or parameter host, with the link-layer addresses of the next hop
/// towards it.
pub fn worker_entry(to: SocketAddrV4, neighbour: &Neighbour) -> WorkerEntry {
    WorkerEntry {
        aggregator_ip: neighbour.src_ip.to_bits(),
        ifindex: neighbour.ifindex,
        mac: neighbour.mac,
        aggregator_mac: neighbour.own_mac,
        ..endpoint(to)
    }
}

/// Adds a job: from now on its contributions are accepted. A static job gets the slots that its entry names.
///
/// # Errors
/// See [`AddJobError`]; then nothing is added.
pub fn add(tables: &mut Tables, new: &NewJob) -> Result<Placed, AddJobError> {
    let state = check(tables, new)?;
    let interfaces = ranks_by_interface(new);
    let (group, is_copied) = (group(new, &interfaces)?, interfaces.len() > 1);
    if usize::from(new.entry.elements) > PAGE_ELEMENTS && is_copied {
        return Err(AddJobError::Copies { elements: new.entry.elements });
    }
    let JobEntry { slot_base, slots, .. } = new.entry;
    if !new.is_dynamic() {
        check_range(slot_base, slots, state.slots, tables.jobs()?.iter().map(|(job, entry)| (*job, entry)))?;
    }
    let placed = Placed { first_slot: slot_base, group, is_copied };
    write(tables, new, placed, &interfaces)?;
    Ok(placed)
}

/// Checks a job against the tables; returns the aggregator's sizes.
fn check(tables: &Tables, new: &NewJob) -> Result<State, AddJobError> {
    let state = tables.state.get(0)?;
    new.check(&state, &entry(tables, new.job)?)?;
    if new.job >= tables.numbers() {
        return Err(OpenError::NoNumber { job: new.job, most: tables.numbers() - 1 }.into());
    }
    check_addresses(new)?;
    Ok(state)
}

fn entry(tables: &Tables, job: u16) -> Result<JobEntry, TableError> {
    if job < tables.numbers() { tables.entries.get(job.into()) } else { Ok(JobEntry::default()) }
}

fn check_addresses(new: &NewJob) -> Result<(), AddJobError> {
    let mut addresses = HashSet::new();
    match new.workers.iter().find(|worker| !addresses.insert(worker.ip)) {
        Some(worker) => Err(AddJobError::SameAddress { ip: worker.ip.into() }),
        None => Ok(()),
    }
}

/// Places a static job in the first gap of the pool that is large enough.
pub fn place(tables: &Tables, new: &mut NewJob) -> Result<(), AddJobError> {
    let state = check(tables, new)?;
    if !new.is_dynamic() {
        let (slots, pool) = (new.entry.slots, state.slots);
        let gap = first_gap(slots, pool, &tables.jobs()?);
        new.entry.slot_base = gap.ok_or(AddJobError::PoolFull { slots, pool })?;
    }
    Ok(())
}

fn first_gap(slots: u32, pool: u32, jobs: &[(u16, JobEntry)]) -> Option<u32> {
    // A dynamic job's end is a candidate like any other.
    let ends = jobs.iter().map(|(_, job)| job.slot_base.saturating_add(job.slots));
    let is_free = |first: &u32| {
        check_range(*first, slots, pool, jobs.iter().map(|(number, job)| (*number, job))).is_ok()
    };
    iter::once(0).chain(ends).filter(is_free).min()
}

/// Removes a job, whose slots are free from now on. Returns whether it was there. Its entry and its workers'
/// stay, inactive: the epoch may not be used again while slots hold it, and workers that still send are
/// answered.
pub fn remove(tables: &mut Tables, job: u16) -> Result<bool, TableError> {
    let entry = entry(tables, job)?;
    if entry.flags & job_flag::ACTIVE == 0 {
        return Ok(false);
    }
    tables.entries.set(job.into(), &inactive(entry))?;
    thread::sleep(PROGRAM_TIMEOUT);
    tables.clear_egress(job)?;
    Ok(true)
}

/// Reduces a job to the first of its slots, `lane_slots` in each lane, before any of its workers has
/// contributed.
pub fn resize(tables: &mut Tables, job: u16, lane_slots: u32) -> Result<(), AddJobError> {
    let entry = entry(tables, job)?;
    let resized = resized(job, &entry, lane_slots)?;
    // Inactive meanwhile, as in `write`. Probes that arrive then are refused, and sent again.
    tables.entries.set(job.into(), &inactive(entry))?;
    resize_inactive(tables, job, lane_slots, resized).inspect_err(|_| {
        if let Err(error) = tables.entries.set(job.into(), &entry) {
            tracing::error!(job, "the job stays inactive: {error}");
        }
    })
}

fn resize_inactive(
    tables: &mut Tables,
    job: u16,
    lane_slots: u32,
    resized: JobEntry,
) -> Result<(), AddJobError> {
    if let Some(rank) = contributor(tables, job, resized.world)? {
        return Err(AddJobError::Held { job, rank });
    }
    reset_lanes(tables, job, lane_slots)?;
    Ok(activate(tables, job, resized)?)
}

/// Writes an entry in two steps: the kernel copies it word by word, and a program that reads half of it must
/// find it inactive.
fn activate(tables: &mut Tables, job: u16, entry: JobEntry) -> Result<(), TableError> {
    tables.entries.set(job.into(), &inactive(entry))?;
    tables.entries.set(job.into(), &entry)
}

fn inactive(entry: JobEntry) -> JobEntry {
    JobEntry { flags: entry.flags & !job_flag::ACTIVE, ..entry }
}

/// Returns a worker whose contributions were accepted, and are in slots.
fn contributor(tables: &Tables, job: u16, world: u16) -> Result<Option<u16>, TableError> {
    for rank in 0..world {
        if tables.worker_seen(job, rank)?.counters.added > 0 {
            return Ok(Some(rank));
        }
    }
    Ok(None)
}

/// Sets each lane's next chunk: its slots take their first two chunks by number, and the next ones by order
/// of completion.
fn reset_lanes(tables: &mut Tables, job: u16, lane_slots: u32) -> Result<(), TableError> {
    let first = lane_slots.wrapping_mul(2);
    (0..MAX_LANES as u16).try_for_each(|lane| tables.lanes.set(lane_index(job, lane), &first))
}

fn write(
    tables: &mut Tables,
    new: &NewJob,
    placed: Placed,
    interfaces: &BTreeMap<u32, Vec<usize>>,
) -> Result<(), TableError> {
    tables.clear_egress(new.job)?;
    tables.clear_counters(new.job)?;
    for rank in 0..MAX_WORKERS as u16 {
        let worker = new.workers.get(usize::from(rank)).copied().unwrap_or_default();
        tables.workers.set(worker_index(new.job, rank), &worker)?;
    }
    let own = new.workers.iter().chain(&new.parents).map(|peer| peer.aggregator_ip);
    own.into_iter().try_for_each(|ip| tables.add_address(ip))?;
    // After the workers' own entries; no contribution is of these ranks.
    let mut shared = new.workers.len() as u16;
    for (ifindex, ranks) in interfaces {
        match (&ranks[..], placed.group) {
            ([rank, _, ..], Some(group)) if placed.is_copied => {
                let to_group = group_entry(group, &new.workers[*rank]);
                tables.workers.set(worker_index(new.job, shared), &to_group)?;
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
    tables.set_parents(new.job, &new.parents)?;
    let entry = new.active_entry();
    if !new.is_dynamic() {
        reset_lanes(tables, new.job, entry.lane_slots())?;
    }
    let is_multicast = placed.group.is_some() && !placed.is_copied;
    let flags = if is_multicast { entry.flags | job_flag::MULTICAST } else { entry.flags };
    let group_ip = placed.group.map_or(0, Ipv4Addr::to_bits);
    activate(tables, new.job, JobEntry { flags, group_ip, ..entry })
}

#[cfg(test)]
mod tests;

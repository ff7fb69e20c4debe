//! The checks of a job that is to be added, and its range of slots.

use std::collections::HashSet;

use sumac_agg_layout::State;
use sumac_wire::{
    MAX_HOSTS, MAX_JOBS, MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS,
    tables::{JobEntry, job_flag},
};

use super::{
    error::JobError,
    request::{Level, NewDynamic, NewJob},
};

/// Checks a job against the sizes of an aggregator.
pub fn check(new: &NewJob, state: &State) -> Result<(), JobError> {
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

/// Returns the slots of static jobs, as first slot and number.
pub fn ranges(jobs: &[(u16, JobEntry)]) -> Vec<(u32, u32)> {
    let has_slots = job_flag::ACTIVE | job_flag::DYNAMIC;
    let jobs = jobs.iter().filter(|(_, job)| job.flags & has_slots == job_flag::ACTIVE);
    jobs.map(|(_, job)| (job.slot_base, job.slots)).collect()
}

/// Returns the job's first slot among those of others, which are given as first slot and number.
pub fn place(new: &NewJob, mut taken: Vec<(u32, u32)>, pool: u32) -> Option<u32> {
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

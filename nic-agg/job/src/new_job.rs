//! A job to aggregate for, as the maps of the programs hold it, and the checks that all planes make of it.

use std::{net::SocketAddrV4, slice};

use sumac_agg_layout::State;
use sumac_control::plane::{JobInstall, Level};
use sumac_job::result_token;
use sumac_wire::{
    MAX_HOSTS, MAX_JOBS, MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS,
    result_paths::RESULT_PATHS,
    tables::{JobEntry, WorkerEntry, job_flag},
};

use crate::error::JobError;

/// A job to aggregate for, at any plane. Ports are those of shard 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewJob {
    /// Its number: 1 to `MAX_JOBS - 1`.
    pub job: u16,
    /// [`NewJob::active_entry`] adds what follows from the other fields. The epoch must be later than the
    /// last one of the number, since slots are not cleared.
    pub entry: JobEntry,
    /// The workers by rank; racks at a root.
    pub workers: Vec<WorkerEntry>,
    /// The destinations of sums: the root of a [`job_flag::CHILD`], else a dynamic job's parameter hosts, of
    /// which each shard has one in turn.
    pub parents: Vec<WorkerEntry>,
}

impl NewJob {
    /// Returns a job of workers and parents whose link-layer addresses are the kernel's business.
    pub fn at(
        job: u16,
        entry: JobEntry,
        workers: impl IntoIterator<Item = SocketAddrV4>,
        parents: impl IntoIterator<Item = SocketAddrV4>,
    ) -> NewJob {
        let (workers, parents) = (workers.into_iter().map(endpoint), parents.into_iter().map(endpoint));
        NewJob { job, entry, workers: workers.collect(), parents: parents.collect() }
    }

    /// Converts the control plane's record, with the workers' entries and those of its [`parents`].
    pub fn of(
        job: &JobInstall,
        workers: Vec<WorkerEntry>,
        parents: Vec<WorkerEntry>,
    ) -> Result<NewJob, JobError> {
        let (terms, is_dynamic) = (&job.terms, job.terms.is_dynamic());
        // A dynamic job's worker sends again what others lost, too: that tells nothing about its results.
        let paths = if is_dynamic { 1 } else { RESULT_PATHS as u16 };
        let paths = job.workers.iter().map(|worker| worker.paths.min(paths));
        let workers = workers.into_iter().zip(paths);
        let ranks = job.ranks.iter().copied().chain(std::iter::repeat(0));
        let workers = workers.zip(ranks);
        let workers = workers.map(|((entry, paths), ranks)| WorkerEntry { paths, ranks, ..entry }).collect();
        let (level, contributors, rack, racks) = match job.level {
            Level::Only => (0, 0, 0, 0),
            Level::Root { contributors } => (job_flag::ROOT, contributors, 0, 0),
            Level::Rack { rack, racks, contributors, has_racks, .. } => {
                let middle = if has_racks { job_flag::ROOT } else { 0 };
                (job_flag::CHILD | middle, contributors, rack, racks)
            }
        };
        let given = [
            (job_flag::CHECKSUM, terms.checksum),
            (job_flag::STEALING, job.stealing && !is_dynamic),
            (job_flag::DYNAMIC, is_dynamic),
        ];
        let entry = JobEntry {
            token: terms.token,
            slot_base: job.first_slot,
            slots: if is_dynamic { terms.slots } else { job.pool_slots() },
            epoch: terms.epoch,
            elements: terms.elements,
            flags: given.iter().filter(|(_, given)| *given).fold(level, |flags, (flag, _)| flags | flag),
            contributors,
            shards: terms.shards,
            lane_slots_log2: if is_dynamic { 0 } else { log2(terms.slots)? },
            rack,
            racks,
            ..JobEntry::default()
        };
        Ok(NewJob { job: terms.job, entry, workers, parents })
    }

    pub fn is_dynamic(&self) -> bool {
        self.entry.flags & job_flag::DYNAMIC != 0
    }

    /// Whether it has a parent, and racks for workers.
    pub fn is_middle(&self) -> bool {
        let both = job_flag::CHILD | job_flag::ROOT;
        self.entry.flags & both == both
    }

    pub fn active_entry(&self) -> JobEntry {
        let world = self.workers.len() as u16;
        let is_only = self.entry.flags & (job_flag::ROOT | job_flag::CHILD) == 0;
        JobEntry {
            world,
            result_token: result_token(self.entry.token),
            contributors: if is_only { world } else { self.entry.contributors },
            hosts: self.parents.len() as u16,
            flags: self.entry.flags | job_flag::ACTIVE,
            ..self.entry
        }
    }

    /// Whether the epoch is later than that of the job which had the number before: slots and packets of that
    /// one remain. A dynamic job may also come again as it was. Bitmaps tell its parameter hosts whose values
    /// its slots have.
    fn may_follow(&self, before: &JobEntry) -> bool {
        let JobEntry { epoch, token, .. } = self.entry;
        let is_same = self.is_dynamic() && (epoch, token) == (before.epoch, before.token);
        is_same || epoch > before.epoch
    }

    /// Checks a job against the sizes of an aggregator, and against what the table has at its number.
    pub fn check(&self, state: &State, before: &JobEntry) -> Result<(), JobError> {
        let (job, JobEntry { slots, shards, elements, rack, racks, epoch, .. }) = (self.job, self.entry);
        if job == 0 || usize::from(job) >= MAX_JOBS {
            return Err(JobError::Number(job));
        }
        if before.flags & job_flag::ACTIVE != 0 {
            return Err(JobError::Taken { job, epoch: before.epoch });
        }
        if *before != JobEntry::default() && !self.may_follow(before) {
            return Err(JobError::EpochUsed { job, epoch, last: before.epoch });
        }
        if self.workers.is_empty() || self.workers.len() > MAX_WORKERS {
            return Err(JobError::World(self.workers.len()));
        }
        let ports = state.shards;
        let has_shards = (1..=ports).contains(&shards);
        let max = if self.is_dynamic() { state.elements.min(PAGE_ELEMENTS as u16) } else { state.elements };
        if elements == 0 || elements > max {
            return Err(JobError::Elements { elements, max });
        }
        if self.is_dynamic() {
            if slots == 0 || slots > state.dynamic_slots {
                return Err(JobError::DynamicSlots { slots, pool: state.dynamic_slots });
            }
            if !has_shards {
                return Err(JobError::Shards { shards, ports });
            }
        } else {
            let lane_slots = self.entry.lane_slots();
            let lanes = slots / lane_slots;
            let is_whole = slots.is_multiple_of(lane_slots) && (1..=MAX_LANES as u32).contains(&lanes);
            if !is_whole || !has_shards || !lanes.is_multiple_of(u32::from(shards)) {
                return Err(JobError::Lanes { slots, lane_slots, shards, ports });
            }
        }
        let is_rack = self.entry.flags & job_flag::CHILD != 0;
        if self.is_dynamic() && self.is_middle() {
            return Err(JobError::Middle);
        }
        match self.parents.len() {
            hosts if self.is_dynamic() && !is_rack && !(1..=MAX_HOSTS).contains(&hosts) => {
                return Err(JobError::Hosts(hosts));
            }
            parents if (is_rack || !self.is_dynamic()) && parents != usize::from(is_rack) => {
                return Err(JobError::Parents(parents));
            }
            _ => {}
        }
        if is_rack && (rack >= racks || usize::from(racks) > MAX_WORKERS) {
            return Err(JobError::Rack { rack, racks });
        }
        Ok(())
    }
}

/// Checks that slots are in the pool, and no static job's among `others`.
pub fn check_range<'a>(
    first: u32,
    slots: u32,
    pool: u32,
    others: impl IntoIterator<Item = (u16, &'a JobEntry)>,
) -> Result<(), JobError> {
    if first.checked_add(slots).is_none_or(|end| end > pool) {
        return Err(JobError::Range { first, slots, pool });
    }
    let overlaps = |other: &JobEntry| {
        other.flags & (job_flag::ACTIVE | job_flag::DYNAMIC) == job_flag::ACTIVE
            && first < other.slot_base.saturating_add(other.slots)
            && other.slot_base < first + slots
    };
    match others.into_iter().find(|(_, other)| overlaps(other)) {
        Some((other, _)) => Err(JobError::Overlap { first, slots, other }),
        None => Ok(()),
    }
}

/// Returns the entry that an active static job has with `lane_slots` in each lane.
pub fn resized(job: u16, entry: &JobEntry, lane_slots: u32) -> Result<JobEntry, JobError> {
    let has_slots = entry.flags & (job_flag::ACTIVE | job_flag::DYNAMIC) == job_flag::ACTIVE;
    let before = if has_slots { entry.lane_slots() } else { 0 };
    if !lane_slots.is_power_of_two() || lane_slots > before {
        return Err(JobError::Resize { job, lane_slots, before });
    }
    Ok(JobEntry { slots: entry.slots / before * lane_slots, lane_slots_log2: log2(lane_slots)?, ..*entry })
}

pub fn log2(lane_slots: u32) -> Result<u16, JobError> {
    if !lane_slots.is_power_of_two() {
        return Err(JobError::LaneSlots(lane_slots));
    }
    Ok(lane_slots.ilog2() as u16)
}

/// Returns the addresses that a plane sends a job's sums to.
pub fn parents(job: &JobInstall) -> &[SocketAddrV4] {
    match &job.level {
        Level::Rack { parent, .. } => slice::from_ref(parent),
        Level::Only | Level::Root { .. } => &job.terms.parameter_hosts,
    }
}

/// Returns the entry of a worker or parent without link-layer addresses.
pub fn endpoint(address: SocketAddrV4) -> WorkerEntry {
    WorkerEntry { ip: address.ip().to_bits(), port: address.port(), ..WorkerEntry::default() }
}

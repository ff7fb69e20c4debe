//! The program's counters: packets by job and reason, and the events of workers.

use std::ops::Range;

use sumac_agg_job::seen::{JobSeen, WorkerSeen};
use sumac_agg_layout::Injected;
use sumac_wire::{
    MAX_WORKERS, Reason,
    reason::COUNTERS,
    tables::{WorkerCounters, worker_index},
};

use crate::{
    sizes,
    target::{SwitchError, Target},
};

/// By job and [`Reason`].
const REASONS: &str = "reasons";
/// The same where a program decides in another pipeline than it admits packets, as that for Tofino; others
/// have none.
const DECIDED_REASONS: &str = "decided_reasons";
/// The same of copies of results, and of all that leaves.
const EGRESS_REASONS: &str = "egress_reasons";
/// By worker and event: added, last, duplicates, replies.
const WORKER_EVENTS: &str = "worker_events";
const REASONS_OF_JOB: u32 = 64;
const EVENTS: u32 = 4;
/// The largest count, so that sums of counts fit: more is no switch's.
const LARGEST: u64 = u64::MAX >> 16;

/// Returns what is counted of each job; job 0: of none.
pub fn all(switch: &impl Target) -> Result<Vec<JobSeen>, SwitchError> {
    let cells = 0..sizes::JOBS as u32 * REASONS_OF_JOB;
    let [arrived, left] = [arrived(switch, cells.clone())?, counts(switch, EGRESS_REASONS, cells)?];
    let by_job =
        |counts: &[u64]| counts.chunks(REASONS_OF_JOB as usize).map(<[u64]>::to_vec).collect::<Vec<_>>();
    Ok(by_job(&arrived).iter().zip(by_job(&left)).map(|(arrived, left)| seen(arrived, &left)).collect())
}

/// Returns what is counted of a job's workers, by rank.
pub fn of_workers(switch: &impl Target, job: u16) -> Result<Vec<WorkerSeen>, SwitchError> {
    let counts = counts(switch, WORKER_EVENTS, events(job))?;
    let worker = |counts: &[u64]| {
        let of = |event: usize| counts.get(event).copied().unwrap_or(0);
        let counters = WorkerCounters { added: of(0), last: of(1), duplicates: of(2), replies: of(3) };
        WorkerSeen { counters, ..WorkerSeen::default() }
    };
    Ok(counts.chunks(EVENTS as usize).map(worker).collect())
}

/// Sets a job's counters to zero.
pub fn clear(switch: &impl Target, job: u16) -> Result<(), SwitchError> {
    switch.clear_counters(REASONS, reasons(job))?;
    if_there(switch.clear_counters(DECIDED_REASONS, reasons(job)))?;
    switch.clear_counters(EGRESS_REASONS, reasons(job))?;
    switch.clear_counters(WORKER_EVENTS, events(job))
}

/// Returns what is counted of arriving packets.
fn arrived(switch: &impl Target, cells: Range<u32>) -> Result<Vec<u64>, SwitchError> {
    let mut arrived = counts(switch, REASONS, cells.clone())?;
    let decided = if_there(counts(switch, DECIDED_REASONS, cells))?.unwrap_or_default();
    arrived.iter_mut().zip(decided).for_each(|(count, decided)| *count += decided);
    Ok(arrived)
}

fn counts(switch: &impl Target, counter: &'static str, cells: Range<u32>) -> Result<Vec<u64>, SwitchError> {
    Ok(switch.counters(counter, cells)?.into_iter().map(|count| count.min(LARGEST)).collect())
}

/// Returns none where the program has no such counter.
fn if_there<T>(outcome: Result<T, SwitchError>) -> Result<Option<T>, SwitchError> {
    match outcome {
        Err(SwitchError::Unknown { .. }) => Ok(None),
        other => other.map(Some),
    }
}

fn reasons(job: u16) -> Range<u32> {
    let first = u32::from(job) * REASONS_OF_JOB;
    first..first + REASONS_OF_JOB
}

fn events(job: u16) -> Range<u32> {
    let first = worker_index(job, 0) * EVENTS;
    first..first + MAX_WORKERS as u32 * EVENTS
}

fn seen(arrived: &[u64], left: &[u64]) -> JobSeen {
    let injected = Reason::Injected as usize;
    let of = |counts: &[u64], index: usize| counts.get(index).copied().unwrap_or(0);
    let mut seen = JobSeen {
        injected: Injected { up: of(arrived, injected), down: of(left, injected) },
        ..JobSeen::default()
    };
    for index in 0..COUNTERS {
        seen.counters[index] = of(arrived, index) + of(left, index);
    }
    seen
}

//! The status of a host aggregator in the eBPF one's form, and its intentional drops.

use std::net::SocketAddrV4;

use sumac_agg_host::{
    HostDataPlane,
    watch::{JobSeen, WorkerSeen},
};
use sumac_agg_layout::Drops;
use sumac_control::{DataPlane as _, plane::PlaneError};
use sumac_wire::{MAX_JOBS, PAGE_ELEMENTS, Reason, dynamic, slot::SlotMeta, tables::JobEntry};

use super::{
    ChunkLimit, DynamicPool, Plane, Status,
    job::{JobStatus, Observed, job_status, slots_used, worker_status},
};
use crate::drops::{self, DropRule, NoSuchJob};

/// Reads the status.
///
/// # Errors
/// When one of its threads has ended.
pub fn status(plane: &HostDataPlane) -> Result<Status, PlaneError> {
    let (info, instance) = (plane.info()?, plane.instance()?);
    let running = plane.running();
    let jobs: Vec<JobStatus> = running
        .jobs()
        .into_iter()
        .map(|(number, entry, workers, parents)| job(plane, number, &entry, &workers, parents))
        .collect();
    let of_slot = size_of::<SlotMeta>() as u64 + 2 * 4 * u64::from(info.max_elements);
    let shared =
        DynamicPool { slots: info.dynamic_slots, held: running.held(), timeout_ms: running.slot_timeout() };
    let of_dynamic = size_of::<dynamic::SlotMeta>() as u64 + 4 * PAGE_ELEMENTS as u64;
    let of_pool = u64::from(info.dynamic_slots) * of_dynamic;
    let counters = Reason::ALL.iter().map(|reason| (reason.name(), running.counter(*reason)));
    Ok(Status {
        plane: Plane::Host,
        instance,
        slots: info.slots,
        slots_used: slots_used(&jobs),
        dynamic: (shared.slots > 0).then_some(shared),
        pool_bytes: (u64::from(info.slots) * of_slot + of_pool) * u64::from(info.shards),
        elements: info.max_elements,
        chunk_limit: ChunkLimit { elements: info.max_elements, port: None },
        jumbo: false,
        base_port: info.base_port,
        shards: info.shards,
        own_ip: None,
        ports: Vec::new(),
        drops: DropRule::of((1..MAX_JOBS as u16).map(|job| (job, running.drops(job)))),
        counters: counters.filter(|(_, count)| *count > 0).collect(),
        jobs,
    })
}

fn job(
    plane: &HostDataPlane,
    number: u16,
    entry: &JobEntry,
    addresses: &[SocketAddrV4],
    parents: Vec<SocketAddrV4>,
) -> JobStatus {
    let running = plane.running();
    let workers = (0..).zip(addresses).map(|(rank, address)| {
        let WorkerSeen { counters, late } = running.worker_seen(number, rank);
        worker_status(rank, *address, None, counters, late)
    });
    let JobSeen { counters, times, injected } = running.job_seen(number);
    let counters = Reason::ALL.iter().map(|reason| (*reason, counters[*reason as usize]));
    let observed = Observed {
        parents,
        counters: counters.filter(|(_, count)| *count > 0).collect(),
        drops: running.drops(number),
        injected,
        times,
        workers: workers.collect(),
    };
    let slots_reason = Some(plane.slots_reason(number)).filter(|reason| !reason.is_empty());
    JobStatus { slots_reason, ..job_status(number, entry, observed) }
}

/// Sets the drops of one job, or of all, present and future.
pub fn set_drops(plane: &HostDataPlane, job: Option<u16>, drops: Drops) -> Result<(), NoSuchJob> {
    drops::numbers(job)?.for_each(|job| plane.running().set_drops(job, drops));
    Ok(())
}

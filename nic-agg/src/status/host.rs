//! The status of a host aggregator in the eBPF one's form, and its intentional drops.

use std::net::SocketAddrV4;

use sumac_agg_host::HostDataPlane;
use sumac_agg_job::JobError;
use sumac_agg_layout::Drops;
use sumac_control::{DataPlane as _, plane::PlaneError};
use sumac_wire::{MAX_JOBS, PAGE_ELEMENTS, dynamic, slot::SlotMeta, tables::JobEntry};

use super::{
    ChunkLimit, DynamicPool, Plane, Status,
    job::{JobStatus, Observed, by_reason, ended, job_status, slots_used, worker_status},
};
use crate::drops::{self, DropRule};

pub fn status(plane: &HostDataPlane) -> Result<Status, PlaneError> {
    let (instance, sizes) = (plane.instance()?, plane.sizes());
    let jobs = plane.jobs().into_iter();
    let jobs: Vec<JobStatus> =
        jobs.map(|(number, entry, workers, parents)| job(plane, number, &entry, &workers, parents)).collect();
    let of_slot = size_of::<SlotMeta>() as u64 + 2 * 4 * u64::from(sizes.elements);
    let (held, timeout_ms) = (Some(plane.held()), Some(sizes.slot_timeout));
    let shared = DynamicPool { slots: sizes.dynamic_slots, held, timeout_ms };
    let of_dynamic = size_of::<dynamic::SlotMeta>() as u64 + 4 * PAGE_ELEMENTS as u64;
    let of_pool = u64::from(sizes.dynamic_slots) * of_dynamic;
    Ok(Status {
        plane: Plane::Host,
        instance,
        slots: sizes.slots,
        slots_used: slots_used(&jobs),
        dynamic: (shared.slots > 0).then_some(shared),
        pool_bytes: (u64::from(sizes.slots) * of_slot + of_pool) * u64::from(sizes.shards),
        elements: sizes.elements,
        chunk_limit: ChunkLimit { elements: sizes.elements, port: None },
        jumbo: false,
        base_port: sizes.base_port,
        shards: sizes.shards,
        own_ip: None,
        ports: Vec::new(),
        sockets: plane.socket_counts(),
        drops: DropRule::of((1..MAX_JOBS as u16).map(|job| (job, plane.drops(job)))),
        counters: by_reason(|reason| plane.counter(reason)),
        jobs,
        ended: ended(plane.entries(), |job| Ok::<_, PlaneError>(plane.job_seen(job)))?,
    })
}

fn job(
    plane: &HostDataPlane,
    number: u16,
    entry: &JobEntry,
    addresses: &[SocketAddrV4],
    parents: Vec<SocketAddrV4>,
) -> JobStatus {
    let workers = (0..)
        .zip(addresses)
        .map(|(rank, address)| worker_status(rank, *address, None, plane.worker_seen(number, rank)));
    let observed = Observed {
        parents,
        seen: plane.job_seen(number),
        drops: plane.drops(number),
        workers: workers.collect(),
    };
    let slots_reason = plane.reasons.all().remove(&number).filter(|reason| !reason.is_empty());
    JobStatus { slots_reason, ..job_status(number, entry, observed) }
}

/// Sets the drops of one job, or of all, present and future.
pub fn set_drops(plane: &HostDataPlane, job: Option<u16>, drops: Drops) -> Result<(), JobError> {
    drops::numbers(job)?.for_each(|job| plane.set_drops(job, drops));
    Ok(())
}

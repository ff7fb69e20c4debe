//! The status of a P4 switch in the eBPF aggregator's form.

use std::net::SocketAddrV4;

use sumac_agg_job::{NewJob, seen::JobSeen};
use sumac_agg_p4::{plane::is_active, tables::HeldJob};
use sumac_control::{DataPlane as _, plane::PlaneError};
use sumac_wire::{BLOCK_ELEMENTS, MAX_JOBS, header::ELEMENT_LEN, tables::WorkerEntry};

use super::{
    ChunkLimit, DynamicPool, Plane, Status,
    job::{JobStatus, Observed, WorkerStatus, by_reason, ended, job_status, slots_used, worker_status},
};
use crate::{SwitchPlane, drops::DropRule};

pub fn status(plane: &SwitchPlane) -> Result<Status, PlaneError> {
    let (instance, sizes) = (plane.instance()?, plane.sizes());
    let failed =
        |error| PlaneError::Failed { doing: "reading the switch's counters", what: format!("{error}") };
    let seen = plane.counters().map_err(failed)?;
    let of = |job: u16| seen.get(usize::from(job)).copied().unwrap_or_default();
    let held = plane.jobs();
    let entries = || held.iter().map(|(job, held)| (*job, held.entry()));
    let active = held.iter().filter_map(|(number, held)| match held {
        HeldJob::Active(new) => Some((*number, new)),
        HeldJob::Former(_) => None,
    });
    let jobs = active.map(|(number, new)| job(plane, number, new, of(number)));
    let jobs: Vec<JobStatus> = jobs.collect::<Result<_, _>>().map_err(failed)?;
    let dynamic = DynamicPool { slots: sizes.dynamic_slots, held: None, timeout_ms: None };
    Ok(Status {
        plane: Plane::P4,
        instance,
        slots: sizes.static_slots,
        slots_used: slots_used(&jobs),
        dynamic: (dynamic.slots > 0).then_some(dynamic),
        pool_bytes: u64::from(sizes.cells()) * (BLOCK_ELEMENTS * ELEMENT_LEN) as u64,
        elements: sizes.elements,
        chunk_limit: ChunkLimit { elements: sizes.elements, port: None },
        jumbo: false,
        base_port: sizes.base_port,
        shards: sizes.shards,
        own_ip: None,
        ports: Vec::new(),
        sockets: Vec::new(),
        drops: DropRule::of((1..MAX_JOBS as u16).map(|job| (job, plane.drops(job)))),
        counters: by_reason(|reason| seen.iter().map(|seen| seen.counters[reason as usize]).sum()),
        jobs,
        ended: ended(entries().filter(|(_, entry)| !is_active(entry)), |job| Ok::<_, PlaneError>(of(job)))?,
    })
}

fn job(
    plane: &SwitchPlane,
    number: u16,
    new: &NewJob,
    seen: JobSeen,
) -> Result<JobStatus, sumac_agg_p4::target::SwitchError> {
    let address = |hop: &WorkerEntry| SocketAddrV4::new(hop.ip.into(), hop.port);
    let counts = plane.workers_seen(number)?;
    let workers = (0..).zip(&new.workers).zip(counts);
    let workers = workers
        .map(|((rank, hop), seen)| worker_status(rank, address(hop), Some((hop.mac, hop.ifindex)), seen))
        .map(unmeasured);
    let observed = Observed {
        parents: new.parents.iter().map(address).collect(),
        seen,
        drops: plane.drops(number),
        workers: workers.collect(),
    };
    let slots_reason = plane.reasons.all().remove(&number).filter(|reason| !reason.is_empty());
    Ok(JobStatus { slots_reason, aggregation: None, ..job_status(number, &new.active_entry(), observed) })
}

/// Returns a worker's status without the times that a switch does not measure.
pub(super) fn unmeasured(worker: WorkerStatus) -> WorkerStatus {
    WorkerStatus { late: None, ..worker }
}

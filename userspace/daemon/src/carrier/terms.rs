//! What the control plane says of a job, for the data path and for the host's program.

use std::net::SocketAddrV4;

use sumac_control::plane::JobInstall;
use sumac_control::{Assignment, DynamicTerms, JoinSpec, PlaneKind};
use sumac_parameter::{HostJob, Worker};
use sumac_transport::{DynamicParams, JobParams};
use sumac_wire::MAX_HOSTS;
use sumac_wire::tables::{HostJobEntry, job_flag};

/// A lane of a job. The first measures the path, for all of them.
pub(super) fn params(assigned: &Assignment, spec: &JoinSpec, lane: u16) -> JobParams {
    JobParams {
        job: assigned.job,
        epoch: assigned.epoch,
        token: assigned.token,
        rank: spec.rank,
        world: spec.world,
        rack_rank: assigned.rack_rank,
        rack_world: assigned.rack_world,
        lane,
        shards: assigned.shards,
        slots: assigned.lane_slots,
        elements: assigned.elements,
        wire: spec.wire,
        scaling: spec.scaling,
        not_finite: spec.not_finite,
        measure: assigned.tune && lane == 0,
        dynamic: assigned.dynamic.as_ref().map(|terms| dynamic(terms, assigned.plane)),
    }
}

fn dynamic(terms: &DynamicTerms, plane: PlaneKind) -> DynamicParams {
    let DynamicTerms { slots, window, linear, congestion, fan_in_1, bitmap_1, beside_root, .. } = *terms;
    let slots = if plane == PlaneKind::None { 0 } else { slots };
    let usual = DynamicParams::new(slots).with_window(window);
    let usual = if congestion { usual } else { usual.without_congestion_control() };
    DynamicParams { linear, fan_in_1, bitmap_1, beside_root, ..usual }
}

/// What the host's program lets in for a worker of a job.
pub(super) fn worker_entry(assigned: &Assignment, spec: &JoinSpec) -> HostJobEntry {
    let mut host_ips = [0; MAX_HOSTS];
    let hosts = assigned.dynamic.iter().flat_map(|terms| &terms.hosts);
    for (place, host) in host_ips.iter_mut().zip(hosts) {
        *place = host.ip().to_bits();
    }
    HostJobEntry {
        token: assigned.token,
        aggregator_ip: assigned.aggregator_ip.to_bits(),
        host_ips,
        epoch: assigned.epoch,
        elements: assigned.elements,
        world: spec.world,
        flags: checksum_flag(spec.checksum),
        reserved: 0,
    }
}

/// What it lets in for a parameter host of a job.
pub(super) fn host_entry(job: &HostJob) -> HostJobEntry {
    HostJobEntry {
        token: job.token,
        epoch: job.epoch,
        elements: job.elements,
        world: u16::try_from(job.workers.len()).unwrap_or(u16::MAX),
        flags: checksum_flag(job.checksum) | job_flag::PARAMETER,
        ..HostJobEntry::default()
    }
}

fn checksum_flag(checksum: bool) -> u16 {
    if checksum { job_flag::CHECKSUM } else { 0 }
}

/// A job as its parameter host must know it, or what is missing in the order to sum for it.
pub(crate) fn host_job(job: &JobInstall) -> Result<HostJob, &'static str> {
    let dynamic = job.dynamic.as_ref().ok_or("a static job needs no parameter host")?;
    if dynamic.places.len() != job.workers.len() {
        return Err(
            "the job has other places than workers; are daemon and control plane of the same release?",
        );
    }
    let workers = job.workers.iter().zip(&dynamic.places);
    let workers = workers.map(|(worker, place)| Worker {
        address: SocketAddrV4::new(worker.ip, worker.port),
        rack: place.rack,
        bit: place.bit,
    });
    Ok(HostJob {
        job: job.job,
        epoch: job.epoch,
        token: job.token,
        elements: job.elements,
        window: dynamic.window,
        slots: dynamic.slots,
        linear: dynamic.linear,
        lanes: job.lanes,
        shards: job.shards,
        checksum: job.checksum,
        workers: workers.collect(),
        upstream: dynamic.upstream.clone(),
    })
}

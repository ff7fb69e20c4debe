//! A job's terms in the forms of the data path and of the host's program.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_control::Grant;
use sumac_control::plane::JobInstall;
use sumac_job::result_token;
use sumac_parameter::{HostJob, Worker};
use sumac_wire::MAX_HOSTS;
use sumac_wire::tables::{HostJobEntry, job_flag};

pub(super) fn worker_entry(
    Grant { terms, placement }: &Grant,
    local: Ipv4Addr,
    over_udp: bool,
) -> HostJobEntry {
    let mut host_ips = [0; MAX_HOSTS];
    for (place, host) in host_ips.iter_mut().zip(&terms.parameter_hosts) {
        *place = host.ip().to_bits();
    }
    HostJobEntry {
        token: terms.token,
        result_token: result_token(terms.token),
        ip: local.to_bits(),
        group_ip: placement.result_group.map_or(0, Ipv4Addr::to_bits),
        aggregator_ip: placement.aggregator_ip.to_bits(),
        host_ips,
        epoch: terms.epoch,
        elements: terms.elements,
        world: terms.world,
        flags: checksum_flag(terms.checksum)
            | if terms.is_direct() { job_flag::DIRECT } else { 0 }
            | if over_udp { job_flag::OVER_UDP } else { 0 },
        ..HostJobEntry::default()
    }
}

pub(super) fn host_entry(job: &HostJob, local: Ipv4Addr) -> HostJobEntry {
    HostJobEntry {
        token: job.token,
        result_token: result_token(job.token),
        ip: local.to_bits(),
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

/// Returns a parameter host's job, or the part of the command that is missing.
pub(crate) fn host_job(job: &JobInstall) -> Result<HostJob, &'static str> {
    let terms = &job.terms;
    if !terms.is_dynamic() {
        return Err("a static job needs no parameter host");
    }
    if job.contributors.len() != job.workers.len() {
        return Err("the job has bits for other workers; are daemon and control plane of the same release?");
    }
    let workers = job.workers.iter().zip(&job.contributors);
    let workers = workers.map(|(worker, bits)| Worker {
        address: SocketAddrV4::new(worker.ip, worker.port),
        rack: bits.rack,
        bit: bits.bit,
    });
    Ok(HostJob {
        job: terms.job,
        epoch: terms.epoch,
        token: terms.token,
        elements: terms.elements,
        window: terms.window,
        slots: terms.slots,
        lanes: terms.lanes(),
        shards: terms.shards,
        checksum: terms.checksum,
        congestion_control: terms.congestion_control,
        workers: workers.collect(),
        upstream: job.upstream.clone(),
    })
}

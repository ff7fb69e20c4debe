//! The status of the eBPF aggregator.

pub mod text;

use std::net::SocketAddrV4;

use sumac_agg_job::{
    drops::DropRule,
    status::{
        ChunkLimit, InterfaceStatus, Status,
        job::{JobStatus, Observed, WorkerStatus, ended, job_status, worker_status},
    },
};
use sumac_control::plane::PlaneKind;
use sumac_loader::Interface;
use sumac_wire::{
    admit::payload_len,
    frame::{IPV4_LEN, UDP_LEN},
    header::ELEMENT_LEN,
    tables::{JobEntry, WorkerEntry, job_flag, worker_index},
};

use crate::{
    aggregator::Aggregator,
    pool::{Pools, variant_of},
    tables::{OpenError, TableError, Tables},
};

impl Aggregator {
    pub fn status(&self) -> Result<Status, OpenError> {
        let tables = self.tables()?;
        let state = tables.state.get(0)?;
        let pools = Pools::of(&state);
        let jobs = self.jobs()?;
        let counters = tables.counters()?.into_iter().filter(|(_, count)| *count > 0);
        let drops = (1..tables.numbers()).map(|job| Ok((job, tables.drops.get(job.into())?)));
        let drops = drops.collect::<Result<Vec<_>, TableError>>()?;
        Ok(Status {
            pool_bytes: pools.memory(variant_of(&state)),
            chunk_limit: chunk_limit(state.elements, &tables.ports()?),
            ports: self.interfaces()?.into_iter().map(interface).collect(),
            drops: DropRule::of(drops),
            counters: counters.map(|(reason, count)| (reason.name(), count)).collect(),
            ended: ended(tables.jobs()?, |job| tables.job_seen(job))?,
            ..Status::of(PlaneKind::Ebpf, &state, Some(held(&tables, &pools)?), jobs)
        })
    }
}

/// Returns the number of dynamic jobs' slots that hold a chunk.
fn held(tables: &Tables, pools: &Pools) -> Result<u32, TableError> {
    let is_held = |index| Ok(u32::from(tables.dynamic_slots.get(index)?.meta.owner != 0));
    (0..pools.all_dynamic_slots()).map(is_held).sum()
}

fn interface(interface: String) -> InterfaceStatus {
    match Interface::by_name(&interface) {
        Ok(found) => {
            let mode = found.xdp.first().map(|program| program.mode.name());
            InterfaceStatus { interface, mode, ifindex: found.index, mtu: found.mtu }
        }
        Err(_) => InterfaceStatus { interface, mode: None, ifindex: 0, mtu: 0 },
    }
}

/// Returns the largest chunk that slots of `elements` and these interfaces, given by index, can take.
pub(crate) fn chunk_limit(elements: u16, interfaces: &[u32]) -> ChunkLimit {
    // An interface that is gone limits nothing.
    let interfaces = interfaces.iter().filter_map(|ifindex| Interface::by_index(*ifindex).ok());
    let narrowest = interfaces.min_by_key(|interface| interface.mtu);
    let limit = narrowest.map(|interface| (elements_in(interface.mtu), interface));
    match limit.filter(|(limit, _)| *limit < elements) {
        Some((elements, interface)) => {
            ChunkLimit { elements, port: Some(format!("{} (MTU {})", interface.name, interface.mtu)) }
        }
        None => ChunkLimit { elements, port: None },
    }
}

/// Returns the most elements in a frame that fits an MTU.
fn elements_in(mtu: u32) -> u16 {
    let headers = (IPV4_LEN + UDP_LEN + payload_len(0)) as u32;
    u16::try_from(mtu.saturating_sub(headers) / ELEMENT_LEN as u32).unwrap_or(u16::MAX)
}

impl Aggregator {
    pub fn jobs(&self) -> Result<Vec<JobStatus>, OpenError> {
        let tables = self.tables()?;
        let jobs = tables.jobs()?.into_iter().filter(|(_, entry)| entry.flags & job_flag::ACTIVE != 0);
        Ok(jobs.map(|(number, entry)| job(&tables, number, &entry)).collect::<Result<_, _>>()?)
    }
}

fn job(tables: &Tables, number: u16, entry: &JobEntry) -> Result<JobStatus, TableError> {
    let parents = tables.parents(number, entry.hosts)?;
    let observed = Observed {
        parents: parents.iter().map(|parent| SocketAddrV4::new(parent.ip.into(), parent.port)).collect(),
        seen: tables.job_seen(number)?,
        drops: tables.drops.get(number.into())?,
        workers: (0..entry.world).map(|rank| worker(tables, number, rank)).collect::<Result<_, _>>()?,
    };
    Ok(job_status(number, entry, observed))
}

fn worker(tables: &Tables, job: u16, rank: u16) -> Result<WorkerStatus, TableError> {
    let WorkerEntry { ip, port, mac, ifindex, .. } = tables.workers.get(worker_index(job, rank))?;
    let address = SocketAddrV4::new(ip.into(), port);
    Ok(worker_status(rank, address, Some((mac, ifindex)), tables.worker_seen(job, rank)?))
}

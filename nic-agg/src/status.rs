//! What is bound, counted and installed, as the kernel tells it.

use std::{collections::BTreeMap, net::Ipv4Addr};

use serde::Serialize;
use sumac_hostprog::{interface::Interface, mode::BoundMode};
use sumac_wire::tables::{JobEntry, job_flag};

use crate::{
    aggregator::{Aggregator, OpenError},
    attach::variant_of,
    preflight::pool_memory,
    program::Variant,
    tables::{TableError, Tables},
};

/// The whole state of an aggregator but the slots' contents. Tokens are not shown.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Changes when the slots' contents were lost.
    pub instance: u64,
    /// Slots in the pool.
    pub slots: u32,
    /// Of these, how many belong to jobs.
    pub slots_used: u32,
    /// Bytes of kernel memory that the pool takes.
    pub pool_bytes: u64,
    /// Largest chunk that a job may ask for.
    pub elements: u16,
    /// Whether the programs are those for frames of several buffers.
    pub jumbo: bool,
    /// UDP destination port of shard 0.
    pub base_port: u16,
    /// Shards.
    pub shards: u16,
    /// The ports.
    pub ports: Vec<PortStatus>,
    /// Frames by reason, those never seen left out.
    pub counters: BTreeMap<&'static str, u64>,
    /// The jobs.
    pub jobs: Vec<JobStatus>,
}

/// One port.
#[derive(Clone, Debug, Serialize)]
pub struct PortStatus {
    /// Its interface.
    pub interface: String,
    /// Where the program really runs; none: the interface or the program is gone.
    pub mode: Option<BoundMode>,
    /// The interface's index; 0 when it is gone.
    pub ifindex: u32,
    /// Largest IP packet in bytes; 0 when it is gone.
    pub mtu: u32,
}

/// One job.
#[derive(Clone, Debug, Serialize)]
pub struct JobStatus {
    /// Its number.
    pub job: u16,
    /// Its incarnation.
    pub epoch: u16,
    /// Its first slot in the pool.
    pub first_slot: u32,
    /// Its slots.
    pub slots: u32,
    /// Most elements in a chunk.
    pub elements: u16,
    /// Whether UDP checksums are verified.
    pub checksum: bool,
    /// The multicast group of its results; none: each worker gets a copy through its own port.
    pub group: Option<Ipv4Addr>,
    /// Its workers, by rank.
    pub workers: Vec<WorkerStatus>,
}

/// One worker of a job.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerStatus {
    /// Its rank.
    pub rank: u16,
    /// Its address.
    pub ip: Ipv4Addr,
    /// Its UDP port.
    pub port: u16,
    /// Its MAC address, or its router's.
    pub mac: String,
    /// The interface that it is behind.
    pub ifindex: u32,
    /// Contributions that were added.
    pub added: u64,
    /// Of these, how many were the last of their slot.
    pub last: u64,
    /// Contributions that had been added before.
    pub duplicates: u64,
    /// Results that it was sent again.
    pub replies: u64,
}

impl Aggregator {
    /// What is bound, counted and installed.
    ///
    /// # Errors
    /// When it is not attached any more.
    pub fn status(&self) -> Result<Status, OpenError> {
        let tables = self.tables()?;
        let state = tables.state()?;
        let jobs = self.jobs()?;
        let interfaces = self
            .pins()
            .interfaces()
            .map_err(|source| OpenError::Pins { path: self.pins().path().display().to_string(), source })?;
        let counters = tables.counters()?.into_iter().filter(|(_, count)| *count > 0);
        Ok(Status {
            instance: state.instance,
            slots: state.slots,
            slots_used: jobs.iter().map(|job| job.slots).sum(),
            pool_bytes: pool_memory(state.slots, variant_of(&state)),
            elements: state.elements,
            jumbo: variant_of(&state) == Variant::Jumbo,
            base_port: state.base_port,
            shards: state.shards,
            ports: interfaces.into_iter().map(port).collect(),
            counters: counters.map(|(reason, count)| (reason.name(), count)).collect(),
            jobs,
        })
    }

    /// The jobs and what their workers did.
    ///
    /// # Errors
    /// When it is not attached any more.
    pub fn jobs(&self) -> Result<Vec<JobStatus>, OpenError> {
        let tables = self.tables()?;
        let jobs = tables.jobs()?.into_iter().filter(|(_, entry)| entry.flags & job_flag::ACTIVE != 0);
        Ok(jobs.map(|(number, entry)| job(&tables, number, &entry)).collect::<Result<_, _>>()?)
    }
}

fn port(interface: String) -> PortStatus {
    match Interface::by_name(&interface) {
        Ok(found) => PortStatus {
            interface,
            mode: found.xdp.first().map(|program| program.mode),
            ifindex: found.index,
            mtu: found.mtu,
        },
        Err(_) => PortStatus { interface, mode: None, ifindex: 0, mtu: 0 },
    }
}

fn job(tables: &Tables, number: u16, entry: &JobEntry) -> Result<JobStatus, TableError> {
    let has = |flag| entry.flags & flag != 0;
    Ok(JobStatus {
        job: number,
        epoch: entry.epoch,
        first_slot: entry.slot_base,
        slots: entry.slots,
        elements: entry.elements,
        checksum: has(job_flag::CHECKSUM),
        group: has(job_flag::MULTICAST).then(|| Ipv4Addr::from_bits(entry.group_ip)),
        workers: (0..entry.world).map(|rank| worker(tables, number, rank)).collect::<Result<_, _>>()?,
    })
}

fn worker(tables: &Tables, job: u16, rank: u16) -> Result<WorkerStatus, TableError> {
    let entry = tables.worker(job, rank)?;
    let counters = tables.worker_counters(job, rank)?;
    Ok(WorkerStatus {
        rank,
        ip: Ipv4Addr::from_bits(entry.ip),
        port: entry.port,
        mac: entry.mac.map(|byte| format!("{byte:02x}")).join(":"),
        ifindex: entry.ifindex,
        added: counters.added,
        last: counters.last,
        duplicates: counters.duplicates,
        replies: counters.replies,
    })
}

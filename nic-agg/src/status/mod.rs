//! The status of an aggregator: interfaces, counters and jobs. The host aggregator's has the same form.

pub mod host;
pub mod job;
pub mod switch;
pub mod text;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use sumac_agg_layout::State;
use sumac_loader::{BoundXdpMode, Interface, Variant};
use sumac_udp::Counts;
use sumac_wire::{
    MAX_JOBS,
    admit::payload_len,
    frame::{IPV4_LEN, UDP_LEN},
    header::ELEMENT_LEN,
};

use self::job::{EndedJob, JobStatus};
use crate::{
    aggregator::Aggregator,
    drops::DropRule,
    pool::{Pools, variant_of},
    tables::{OpenError, TableError, Tables},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Plane {
    Ebpf,
    Host,
    P4,
}

/// The state of an aggregator, without the slots' contents and the jobs' tokens.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub plane: Plane,
    /// Changes when the slots' contents were lost.
    pub instance: u64,
    pub slots: u32,
    pub slots_used: u32,
    /// The pool that dynamic jobs share; `None`: none are served.
    pub dynamic: Option<DynamicPool>,
    /// Bytes of memory that both pools take.
    pub pool_bytes: u64,
    /// The largest chunk that a slot holds.
    pub elements: u16,
    pub chunk_limit: ChunkLimit,
    /// Whether the programs are those for frames of several buffers.
    pub jumbo: bool,
    pub base_port: u16,
    pub shards: u16,
    /// The address that the programs reply to ARP and ICMP echo requests for.
    pub own_ip: Option<Ipv4Addr>,
    /// The interfaces; a host aggregator's are the kernel's.
    pub ports: Vec<InterfaceStatus>,
    /// A host aggregator's sockets, by shard: packets, and the messages that they were in.
    pub sockets: Vec<Counts>,
    /// Intentional drops, of jobs present or not.
    pub drops: Vec<DropRule>,
    /// Frames by reason, without those never counted.
    pub counters: BTreeMap<&'static str, u64>,
    pub jobs: Vec<JobStatus>,
    /// Jobs that were removed, with their totals.
    pub ended: Vec<EndedJob>,
}

/// The time over which rates are measured.
const RATE_WINDOW: Duration = Duration::from_millis(200);

/// Returns a status with the jobs' rates: that of the second of two looks.
pub fn with_rates<E>(mut look: impl FnMut() -> Result<Status, E>) -> Result<Status, E> {
    let (earlier, began) = (look()?, Instant::now());
    if earlier.jobs.is_empty() {
        return Ok(earlier);
    }
    thread::sleep(RATE_WINDOW);
    let mut status = look()?;
    let elapsed = began.elapsed();
    for job in &mut status.jobs {
        if let Some(before) = earlier.jobs.iter().find(|before| before.job == job.job) {
            job.set_rate(before, elapsed);
        }
    }
    Ok(status)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DynamicPool {
    pub slots: u32,
    /// Slots of all shards that hold a chunk; unknown of a switch.
    pub held: Option<u32>,
    /// The time without packets after which a job loses its slots; unknown of a switch.
    pub timeout_ms: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChunkLimit {
    pub elements: u16,
    /// The interface whose MTU is the limit; `None`: the slots' size is.
    pub port: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct InterfaceStatus {
    pub interface: String,
    /// The bound mode; `None`: the interface or the program is gone.
    pub mode: Option<BoundXdpMode>,
    /// 0 when it is gone.
    pub ifindex: u32,
    /// 0 when it is gone.
    pub mtu: u32,
}

impl Status {
    /// Returns whether packets can come in: through an interface, a host aggregator's sockets, or a switch's ports.
    pub fn is_attached(&self) -> bool {
        self.plane != Plane::Ebpf || self.ports.iter().any(|port| port.mode.is_some())
    }
}

impl Aggregator {
    pub fn status(&self) -> Result<Status, OpenError> {
        let tables = self.tables()?;
        let state = tables.state.get(0)?;
        let (pools, variant) = (Pools::of(&state), variant_of(&state));
        let jobs = self.jobs()?;
        let counters = tables.counters()?.into_iter().filter(|(_, count)| *count > 0);
        let drops = (1..MAX_JOBS as u16).map(|job| Ok((job, tables.drops.get(job.into())?)));
        let drops = drops.collect::<Result<Vec<_>, TableError>>()?;
        Ok(Status {
            plane: Plane::Ebpf,
            instance: state.instance,
            slots: state.slots,
            slots_used: job::slots_used(&jobs),
            dynamic: dynamic_pool(&tables, &state)?,
            pool_bytes: pools.memory(variant),
            elements: state.elements,
            chunk_limit: chunk_limit(state.elements, &tables.ports()?),
            jumbo: variant == Variant::Jumbo,
            base_port: state.base_port,
            shards: state.shards,
            own_ip: (state.own_ip != 0).then(|| Ipv4Addr::from_bits(state.own_ip)),
            ports: self.interfaces()?.into_iter().map(interface).collect(),
            sockets: Vec::new(),
            drops: DropRule::of(drops),
            counters: counters.map(|(reason, count)| (reason.name(), count)).collect(),
            jobs,
            ended: job::ended(tables.jobs()?, |job| tables.job_seen(job))?,
        })
    }
}

fn dynamic_pool(tables: &Tables, state: &State) -> Result<Option<DynamicPool>, TableError> {
    let (slots, timeout_ms) = (state.dynamic_slots, Some(state.slot_timeout));
    if slots == 0 {
        return Ok(None);
    }
    let mut held = 0;
    for index in 0..Pools::of(state).all_dynamic_slots() {
        held += u32::from(tables.dynamic_slots.get(index)?.meta.owner != 0);
    }
    Ok(Some(DynamicPool { slots, held: Some(held), timeout_ms }))
}

fn interface(interface: String) -> InterfaceStatus {
    match Interface::by_name(&interface) {
        Ok(found) => {
            let mode = found.xdp.first().map(|program| program.mode);
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

//! The status of an aggregator of any kind: interfaces, counters and jobs.

pub mod job;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use sumac_agg_layout::{State, state_flag};
use sumac_control::plane::PlaneKind;
use sumac_udp::Counts;

use self::job::{EndedJob, JobStatus, slots_used};
use crate::drops::DropRule;

/// The state of an aggregator, without the slots' contents and the jobs' tokens.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub plane: PlaneKind,
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
    /// The bound XDP mode; `None`: the interface or the program is gone.
    pub mode: Option<&'static str>,
    /// 0 when it is gone.
    pub ifindex: u32,
    /// 0 when it is gone.
    pub mtu: u32,
}

impl Status {
    /// Describes a plane of these sizes, without its pool's bytes, drops, counters and ended jobs. `held` are
    /// the slots of the pool for dynamic jobs that hold a chunk, where that is known.
    pub fn of(plane: PlaneKind, state: &State, held: Option<u32>, jobs: Vec<JobStatus>) -> Status {
        let &State { instance, slots, elements, base_port, shards, dynamic_slots, .. } = state;
        let timeout_ms = held.map(|_| state.slot_timeout);
        Status {
            plane,
            instance,
            slots,
            slots_used: slots_used(&jobs),
            dynamic: (dynamic_slots > 0).then_some(DynamicPool { slots: dynamic_slots, held, timeout_ms }),
            pool_bytes: 0,
            elements,
            chunk_limit: ChunkLimit { elements, port: None },
            jumbo: state.flags & state_flag::JUMBO != 0,
            base_port,
            shards,
            own_ip: (state.own_ip != 0).then(|| Ipv4Addr::from_bits(state.own_ip)),
            ports: Vec::new(),
            sockets: Vec::new(),
            drops: Vec::new(),
            counters: BTreeMap::new(),
            jobs,
            ended: Vec::new(),
        }
    }

    /// Sets what the control plane knows of the jobs: their names, and the reasons for their numbers of
    /// slots.
    pub fn set_notes(&mut self, mut names: BTreeMap<u16, String>, mut slots_reasons: BTreeMap<u16, String>) {
        for job in &mut self.jobs {
            job.name = names.remove(&job.job);
            job.slots_reason = slots_reasons.remove(&job.job);
        }
    }

    /// Returns whether packets can come in: through an interface, a host aggregator's sockets, or a switch's
    /// ports.
    pub fn is_attached(&self) -> bool {
        self.plane != PlaneKind::Ebpf || self.ports.iter().any(|port| port.mode.is_some())
    }
}

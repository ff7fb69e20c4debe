//! What is bound, counted and installed: of the eBPF aggregator as the kernel tells it, and the form that the host
//! aggregator's takes too.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
};

use serde::Serialize;
use sumac_agg_layout::{Drops, Injected, Lateness, State, Times};
use sumac_hostprog::{interface::Interface, mode::BoundMode};
use sumac_wire::{
    MAX_JOBS, Reason,
    admit::payload_len,
    frame::{IPV4_LEN, UDP_LEN},
    header::ELEMENT_LEN,
    tables::{JobEntry, WorkerCounters, WorkerEntry, job_flag},
};

use crate::{
    aggregator::{Aggregator, OpenError},
    attach::{pools_of, variant_of},
    drops::{DropRule, percent},
    preflight::pool_memory,
    program::Variant,
    tables::{TableError, Tables},
};

/// What adds the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Plane {
    /// XDP programs.
    Ebpf,
    /// A process.
    Host,
}

/// The whole state of an aggregator but the slots' contents. Tokens are not shown.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// What adds the packets.
    pub plane: Plane,
    /// Changes when the slots' contents were lost.
    pub instance: u64,
    /// Slots in the pool.
    pub slots: u32,
    /// Of these, how many belong to static jobs.
    pub slots_used: u32,
    /// The pool that dynamic jobs share; none: they are not served.
    pub dynamic: Option<DynamicPool>,
    /// Bytes of memory that both pools take.
    pub pool_bytes: u64,
    /// Largest chunk that a slot holds.
    pub elements: u16,
    /// Largest chunk that a job may ask for.
    pub chunk_limit: ChunkLimit,
    /// Whether the programs are those for frames of several buffers.
    pub jumbo: bool,
    /// UDP destination port of shard 0.
    pub base_port: u16,
    /// Shards.
    pub shards: u16,
    /// The address that the programs answer ARP and ICMP echo for.
    pub own_ip: Option<Ipv4Addr>,
    /// The ports; a host aggregator's are the kernel's.
    pub ports: Vec<PortStatus>,
    /// What is dropped on purpose, also of jobs that are not there.
    pub drops: Vec<DropRule>,
    /// Frames by reason, those never seen left out.
    pub counters: BTreeMap<&'static str, u64>,
    /// The jobs.
    pub jobs: Vec<JobStatus>,
}

/// The slots that dynamic jobs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DynamicPool {
    /// How many each shard has.
    pub slots: u32,
    /// How many hold a chunk at the moment, in all shards.
    pub held: u32,
    /// Milliseconds after which a job that sends nothing loses its slots.
    pub timeout_ms: u32,
}

/// Largest chunk that a job may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChunkLimit {
    /// Its elements.
    pub elements: u16,
    /// The port whose MTU carries no more; none: it is the slots that hold no more.
    pub port: Option<String>,
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
    /// Whether it is dynamic, and shares slots.
    pub is_dynamic: bool,
    /// Where a dynamic job's sums go; none at a rack, whose go to its root.
    pub parameter_hosts: Vec<SocketAddrV4>,
    /// Its first slot in the pool.
    pub first_slot: u32,
    /// Its slots; of a dynamic job, those of each shard that it may take.
    pub slots: u32,
    /// Why as many; known to what serves the aggregator only.
    pub slots_reason: Option<String>,
    /// Its lanes: streams of their own, with as many slots each; 0 of a dynamic job, whose slots know no lanes.
    pub lanes: u32,
    /// Its shards.
    pub shards: u16,
    /// Whether a completed slot takes whatever chunk of its lane comes next.
    pub stealing: bool,
    /// What it is in a tree of aggregators.
    pub level: LevelStatus,
    /// Most elements in a chunk.
    pub elements: u16,
    /// Whether UDP checksums are verified.
    pub checksum: bool,
    /// The multicast group of results for workers that share a port.
    pub group: Option<Ipv4Addr>,
    /// Whether each worker, or each group behind a port, gets a copy of its own; else all get one together.
    pub is_copied: bool,
    /// Frames by reason, those never seen left out.
    pub counters: BTreeMap<&'static str, u64>,
    /// What is dropped on purpose; none: nothing.
    pub drops: Option<DropStatus>,
    /// How long chunks took from the first contribution to the last, of one in 16.
    pub aggregation: Histogram,
    /// Who keeps the others waiting, when somebody does.
    pub straggler: Option<Straggler>,
    /// Its workers, by rank; at a root its racks.
    pub workers: Vec<WorkerStatus>,
}

/// What an aggregator is to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LevelStatus {
    /// The only one.
    Only,
    /// Its workers are racks.
    Root,
    /// A rack, with this parent.
    Rack {
        /// Its number.
        rack: u16,
        /// The parent's address.
        parent: Ipv4Addr,
    },
}

/// What is dropped on purpose.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DropStatus {
    /// Percent of what arrives.
    pub up_percent: f64,
    /// Percent of what leaves.
    pub down_percent: f64,
    /// Frames that arrived and were dropped.
    pub up: u64,
    /// Frames that would have left and were dropped.
    pub down: u64,
}

/// Times in buckets that double.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// How many.
    pub count: u64,
    /// Half of them took less, in nanoseconds.
    pub p50_ns: u64,
    /// 99 % of them took less, in nanoseconds.
    pub p99_ns: u64,
    /// Upper bound in nanoseconds and how many, of buckets that are not empty.
    pub buckets: Vec<(u64, u64)>,
}

impl Histogram {
    pub(crate) fn of(times: &Times) -> Histogram {
        let all = times.buckets.iter().enumerate().map(|(log2, count)| (2u64 << log2, *count));
        let buckets: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
        let count = buckets.iter().map(|(_, count)| count).sum::<u64>();
        let below = |percent: u64| {
            let mut seen = 0;
            let of = buckets.iter().find(|(_, here)| {
                seen += here;
                seen * 100 >= count * percent
            });
            of.map_or(0, |(upper, _)| *upper)
        };
        Histogram { count, p50_ns: below(50), p99_ns: below(99), buckets }
    }
}

/// The worker that completes more than its part of the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Straggler {
    /// Its rank.
    pub rank: u16,
    /// Its address.
    pub ip: Ipv4Addr,
    /// Percent of all chunks that waited for it last.
    pub last_percent: f64,
    /// How late it was behind the chunks' first contributions on average, in nanoseconds.
    pub late_mean_ns: u64,
    /// At most.
    pub late_max_ns: u64,
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
    /// Its MAC address, or its router's; a host aggregator leaves that to the kernel.
    pub mac: Option<String>,
    /// The interface that it is behind; likewise.
    pub ifindex: Option<u32>,
    /// Contributions that were added.
    pub added: u64,
    /// Of these, how many were the last of their slot.
    pub last: u64,
    /// Contributions that had been added before.
    pub duplicates: u64,
    /// Results that it was sent again.
    pub replies: u64,
    /// How late it was behind the chunks' first contributions on average, in nanoseconds, of one chunk in 16.
    pub late_mean_ns: u64,
    /// At most.
    pub late_max_ns: u64,
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
        let drops = (1..MAX_JOBS as u16).map(|job| Ok((job, tables.drops(job)?)));
        let drops = drops.collect::<Result<Vec<_>, TableError>>()?;
        Ok(Status {
            plane: Plane::Ebpf,
            instance: state.instance,
            slots: state.slots,
            slots_used: slots_used(&jobs),
            dynamic: dynamic_pool(&tables, &state)?,
            pool_bytes: pool_memory(pools_of(&state), variant_of(&state)),
            elements: state.elements,
            chunk_limit: chunk_limit(state.elements, &tables.ports()?),
            jumbo: variant_of(&state) == Variant::Jumbo,
            base_port: state.base_port,
            shards: state.shards,
            own_ip: (state.own_ip != 0).then(|| Ipv4Addr::from_bits(state.own_ip)),
            ports: interfaces.into_iter().map(port).collect(),
            drops: DropRule::of(drops),
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

/// The slots of static jobs.
pub(crate) fn slots_used(jobs: &[JobStatus]) -> u32 {
    jobs.iter().filter(|job| !job.is_dynamic).map(|job| job.slots).sum()
}

fn dynamic_pool(tables: &Tables, state: &State) -> Result<Option<DynamicPool>, TableError> {
    let (slots, timeout_ms) = (state.dynamic_slots, state.slot_timeout);
    if slots == 0 {
        return Ok(None);
    }
    let mut held = 0;
    for index in 0..pools_of(state).all_dynamic_slots() {
        held += u32::from(tables.dynamic_slot(index)?.meta.owner != 0);
    }
    Ok(Some(DynamicPool { slots, held, timeout_ms }))
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

/// The largest chunk that slots of `elements` and the ports of these interfaces take.
pub(crate) fn chunk_limit(elements: u16, ports: &[u32]) -> ChunkLimit {
    // One that is gone limits nobody.
    let ports = ports.iter().filter_map(|ifindex| Interface::by_index(*ifindex).ok());
    let narrowest = ports.min_by_key(|port| port.mtu).map(|port| (carried(port.mtu), port));
    match narrowest.filter(|(carried, _)| *carried < elements) {
        Some((elements, port)) => {
            ChunkLimit { elements, port: Some(format!("{} (MTU {})", port.name, port.mtu)) }
        }
        None => ChunkLimit { elements, port: None },
    }
}

/// The most elements in a frame that fits an MTU.
fn carried(mtu: u32) -> u16 {
    let headers = (IPV4_LEN + UDP_LEN + payload_len(0)) as u32;
    u16::try_from(mtu.saturating_sub(headers) / ELEMENT_LEN as u32).unwrap_or(u16::MAX)
}

fn parents(tables: &Tables, number: u16, entry: &JobEntry) -> Result<Vec<SocketAddrV4>, TableError> {
    let parents = tables.parents(number, entry.hosts)?;
    Ok(parents.iter().map(|parent| SocketAddrV4::new(parent.ip.into(), parent.port)).collect())
}

fn job(tables: &Tables, number: u16, entry: &JobEntry) -> Result<JobStatus, TableError> {
    let seen = Seen {
        parents: parents(tables, number, entry)?,
        counters: tables.job_counters(number)?,
        drops: tables.drops(number)?,
        injected: tables.injected(number)?,
        times: tables.times(number)?,
        workers: (0..entry.world).map(|rank| worker(tables, number, rank)).collect::<Result<_, _>>()?,
    };
    Ok(job_status(number, entry, seen))
}

/// What an aggregator of either kind has seen of a job.
pub(crate) struct Seen {
    /// Its root, or its parameter hosts.
    pub parents: Vec<SocketAddrV4>,
    pub counters: Vec<(Reason, u64)>,
    pub drops: Drops,
    pub injected: Injected,
    pub times: Times,
    pub workers: Vec<WorkerStatus>,
}

/// A job's status but for the reason of its slots.
pub(crate) fn job_status(number: u16, entry: &JobEntry, seen: Seen) -> JobStatus {
    let has = |flag| entry.flags & flag != 0;
    let (drops, injected) = (seen.drops, seen.injected);
    let is_dropping = drops != Drops::default() || injected != Injected::default();
    let is_dynamic = has(job_flag::DYNAMIC);
    let level = match seen.parents.first() {
        _ if has(job_flag::ROOT) => LevelStatus::Root,
        Some(parent) if has(job_flag::CHILD) => LevelStatus::Rack { rack: entry.rack, parent: *parent.ip() },
        _ => LevelStatus::Only,
    };
    let is_rack = matches!(level, LevelStatus::Rack { .. });
    JobStatus {
        job: number,
        epoch: entry.epoch,
        is_dynamic,
        parameter_hosts: if is_dynamic && !is_rack { seen.parents } else { Vec::new() },
        first_slot: entry.slot_base,
        slots: entry.slots,
        slots_reason: None,
        lanes: if is_dynamic { 0 } else { entry.slots / entry.lane_slots() },
        shards: entry.shards,
        stealing: has(job_flag::STEALING),
        level,
        elements: entry.elements,
        checksum: has(job_flag::CHECKSUM),
        group: (entry.group_ip != 0).then(|| Ipv4Addr::from_bits(entry.group_ip)),
        is_copied: !has(job_flag::MULTICAST),
        counters: seen.counters.into_iter().map(|(reason, count)| (reason.name(), count)).collect(),
        drops: is_dropping.then(|| DropStatus {
            up_percent: percent(drops.up),
            down_percent: percent(drops.down),
            up: injected.up,
            down: injected.down,
        }),
        aggregation: Histogram::of(&seen.times),
        straggler: straggler(&seen.workers),
        workers: seen.workers,
    }
}

/// Who is last more than half as often again as an even share.
fn straggler(workers: &[WorkerStatus]) -> Option<Straggler> {
    let chunks = workers.iter().map(|worker| worker.last).sum::<u64>();
    let slowest = workers.iter().max_by_key(|worker| worker.last)?;
    let last = slowest.last as f64 / chunks.max(1) as f64;
    let is_slow = workers.len() > 1 && last * workers.len() as f64 > 1.5;
    is_slow.then_some(Straggler {
        rank: slowest.rank,
        ip: slowest.ip,
        last_percent: last * 100.0,
        late_mean_ns: slowest.late_mean_ns,
        late_max_ns: slowest.late_max_ns,
    })
}

fn worker(tables: &Tables, job: u16, rank: u16) -> Result<WorkerStatus, TableError> {
    let WorkerEntry { ip, port, mac, ifindex, .. } = tables.worker(job, rank)?;
    let address = SocketAddrV4::new(ip.into(), port);
    let way = Some((mac, ifindex));
    Ok(worker_status(rank, address, way, tables.worker_counters(job, rank)?, tables.lateness(job, rank)?))
}

/// A worker's status; `way`: its MAC address and its interface, where the aggregator knows them.
pub(crate) fn worker_status(
    rank: u16,
    address: SocketAddrV4,
    way: Option<([u8; 6], u32)>,
    counters: WorkerCounters,
    late: Lateness,
) -> WorkerStatus {
    WorkerStatus {
        rank,
        ip: *address.ip(),
        port: address.port(),
        mac: way.map(|(mac, _)| mac.map(|byte| format!("{byte:02x}")).join(":")),
        ifindex: way.map(|(_, ifindex)| ifindex),
        added: counters.added,
        last: counters.last,
        duplicates: counters.duplicates,
        replies: counters.replies,
        late_mean_ns: late.sum / late.chunks.max(1),
        late_max_ns: late.max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(rank: u16, last: u64) -> WorkerStatus {
        let address = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, rank as u8), 48700);
        let counters = WorkerCounters { added: 100, last, ..WorkerCounters::default() };
        worker_status(rank, address, None, counters, Lateness { chunks: 2, sum: 10, max: 7 })
    }

    #[test]
    fn stragglers_are_last_more_often_than_the_others() {
        let of = |last: &[u64]| {
            let workers: Vec<_> = (0..).zip(last).map(|(rank, last)| worker(rank, *last)).collect();
            straggler(&workers).map(|straggler| (straggler.rank, straggler.last_percent))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[100]), None, "alone");
        assert_eq!(of(&[0, 0]), None, "nothing yet");
        assert_eq!(of(&[25, 30, 25, 20]), None, "nobody in particular");
        assert_eq!(of(&[10, 10, 80, 0]), Some((2, 80.0)));
        assert_eq!(of(&[30, 70]), None, "two take turns");
        assert_eq!(of(&[10, 90]), Some((1, 90.0)));
    }

    #[test]
    fn quantiles_are_the_buckets_upper_bounds() {
        assert_eq!(Histogram::of(&Times::default()), Histogram::default());
        let mut times = Times::default();
        (times.buckets[9], times.buckets[10], times.buckets[20]) = (60, 39, 1);
        let histogram = Histogram::of(&times);
        assert_eq!((histogram.count, histogram.p50_ns, histogram.p99_ns), (100, 1024, 2048));
        assert_eq!(histogram.buckets, [(1024, 60), (2048, 39), (2 << 20, 1)]);
    }
}

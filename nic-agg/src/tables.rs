//! Typed access to the maps, by pins or of an object that was just loaded.

mod counters;

use aya::{
    Ebpf,
    maps::{
        Array, HashMap, Map, MapData, MapError, PerCpuArray,
        xdp::{DevMapHash, XdpMapError},
    },
    programs::ProgramFd,
};
use sumac_agg_layout::{Drops, DynamicSlot, Injected, Lateness, MAX_PORTS, Slot, State, Tail, Times, name};
use sumac_wire::{
    MAX_HOSTS, MAX_JOBS, Reason,
    reason::COUNTERS,
    tables::{EgressKey, JobEntry, WorkerCounters, WorkerEntry, lane_index, parent_index, worker_index},
};
use thiserror::Error;
use zerocopy::transmute;

use crate::pins::PinDir;

/// What went wrong with a map.
#[derive(Debug, Error)]
#[error("{doing} map {map}: {source}")]
pub struct TableError {
    doing: &'static str,
    map: &'static str,
    source: MapError,
}

type Result<T> = std::result::Result<T, TableError>;

/// aya takes plain bytes without `unsafe`, zerocopy makes them of our structs.
type Bytes<const N: usize> = Array<MapData, [u8; N]>;
type PerCpu<const N: usize> = PerCpuArray<MapData, [u8; N]>;

/// All maps but the log's.
pub struct Tables {
    state: Bytes<{ size_of::<State>() }>,
    jobs: Bytes<{ size_of::<JobEntry>() }>,
    workers: Bytes<{ size_of::<WorkerEntry>() }>,
    parents: Bytes<{ size_of::<WorkerEntry>() }>,
    lanes: Array<MapData, u32>,
    egress: HashMap<MapData, [u8; size_of::<EgressKey>()], u32>,
    ports: DevMapHash<MapData>,
    slots: Bytes<{ size_of::<Slot>() }>,
    tails: Bytes<{ size_of::<Tail>() }>,
    dynamic_slots: Bytes<{ size_of::<DynamicSlot>() }>,
    counters: PerCpuArray<MapData, u64>,
    job_counters: PerCpu<{ size_of::<[u64; COUNTERS]>() }>,
    worker_counters: PerCpu<{ size_of::<WorkerCounters>() }>,
    drops: Bytes<{ size_of::<Drops>() }>,
    injected: PerCpu<{ size_of::<Injected>() }>,
    times: PerCpu<{ size_of::<Times>() }>,
    lateness: PerCpu<{ size_of::<Lateness>() }>,
    own: HashMap<MapData, u32, u64>,
}

fn port_error(error: XdpMapError) -> TableError {
    let source = match error {
        XdpMapError::MapError(source) => source,
        XdpMapError::ChainedProgramNotSupported => MapError::ProgIdNotSupported,
    };
    TableError { doing: "writing", map: name::PORTS, source }
}

fn at(doing: &'static str, map: &'static str) -> impl FnOnce(MapError) -> TableError {
    move |source| TableError { doing, map, source }
}

impl Tables {
    /// Those that are pinned.
    ///
    /// # Errors
    /// When one is not there, or is of another layout.
    pub fn open(pins: &PinDir) -> Result<Tables> {
        Tables::of(|name| Map::from_map_data(MapData::from_pin(pins.map(name))?))
    }

    /// Those of an object that was loaded without pins. The programs keep theirs.
    ///
    /// # Errors
    /// When one is not there: they were taken before.
    pub fn take(ebpf: &mut Ebpf) -> Result<Tables> {
        Tables::of(|name| ebpf.take_map(name).ok_or(MapError::ElementNotFound))
    }

    fn of(mut map: impl FnMut(&'static str) -> std::result::Result<Map, MapError>) -> Result<Tables> {
        macro_rules! open {
            ($name:expr) => {
                map($name).and_then(|map| map.try_into()).map_err(at("opening", $name))?
            };
        }
        Ok(Tables {
            state: open!(name::STATE),
            jobs: open!(name::JOBS),
            workers: open!(name::WORKERS),
            parents: open!(name::PARENTS),
            lanes: open!(name::LANES),
            egress: open!(name::EGRESS),
            ports: open!(name::PORTS),
            slots: open!(name::SLOTS),
            tails: open!(name::TAILS),
            dynamic_slots: open!(name::DYNAMIC_SLOTS),
            counters: open!(name::COUNTERS),
            job_counters: open!(name::JOB_COUNTERS),
            worker_counters: open!(name::WORKER_COUNTERS),
            drops: open!(name::DROPS),
            injected: open!(name::INJECTED),
            times: open!(name::TIMES),
            lateness: open!(name::LATENESS),
            own: open!(name::OWN),
        })
    }

    /// What the loader told the programs.
    ///
    /// # Errors
    /// As the kernel answers; so for every function here.
    pub fn state(&self) -> Result<State> {
        self.state.get(&0, 0).map(|bytes| transmute!(bytes)).map_err(at("reading", name::STATE))
    }

    /// Tells the programs.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn set_state(&mut self, state: State) -> Result<()> {
        let bytes: [u8; size_of::<State>()] = transmute!(state);
        self.state.set(0, bytes, 0).map_err(at("writing", name::STATE))
    }

    /// A job's entry; inactive when there is none.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn job(&self, job: u16) -> Result<JobEntry> {
        self.jobs.get(&u32::from(job), 0).map(|bytes| transmute!(bytes)).map_err(at("reading", name::JOBS))
    }

    /// All entries of jobs that were ever used, by number.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn jobs(&self) -> Result<Vec<(u16, JobEntry)>> {
        let all = (0..MAX_JOBS as u16).map(|job| Ok((job, self.job(job)?))).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().filter(|(_, entry)| *entry != JobEntry::default()).collect())
    }

    /// Writes a job's entry.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn set_job(&mut self, job: u16, entry: JobEntry) -> Result<()> {
        let bytes: [u8; size_of::<JobEntry>()] = transmute!(entry);
        self.jobs.set(u32::from(job), bytes, 0).map_err(at("writing", name::JOBS))
    }

    /// A worker's entry.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn worker(&self, job: u16, rank: u16) -> Result<WorkerEntry> {
        let index = worker_index(job, rank);
        self.workers.get(&index, 0).map(|bytes| transmute!(bytes)).map_err(at("reading", name::WORKERS))
    }

    /// Writes a worker's entry.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn set_worker(&mut self, job: u16, rank: u16, entry: WorkerEntry) -> Result<()> {
        let bytes: [u8; size_of::<WorkerEntry>()] = transmute!(entry);
        self.workers.set(worker_index(job, rank), bytes, 0).map_err(at("writing", name::WORKERS))
    }

    /// A job's parents: its root, or the parameter hosts of its shards, one after the other.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn parents(&self, job: u16, count: u16) -> Result<Vec<WorkerEntry>> {
        let read = |shard| {
            let bytes = self.parents.get(&parent_index(job, shard, count), 0)?;
            Ok(transmute!(bytes))
        };
        (0..count).map(read).collect::<std::result::Result<_, _>>().map_err(at("reading", name::PARENTS))
    }

    /// Writes a job's parents, and none where others were.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn set_parents(&mut self, job: u16, entries: &[WorkerEntry]) -> Result<()> {
        for shard in 0..MAX_HOSTS as u16 {
            let entry = entries.get(usize::from(shard)).copied().unwrap_or_default();
            let bytes: [u8; size_of::<WorkerEntry>()] = transmute!(entry);
            let index = parent_index(job, shard, MAX_HOSTS as u16);
            self.parents.set(index, bytes, 0).map_err(at("writing", name::PARENTS))?;
        }
        Ok(())
    }

    /// The chunk that a lane's next slot draws.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn lane(&self, job: u16, lane: u16) -> Result<u32> {
        self.lanes.get(&lane_index(job, lane), 0).map_err(at("reading", name::LANES))
    }

    /// Says which chunk a lane's next slot draws.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn set_lane(&mut self, job: u16, lane: u16, seq: u32) -> Result<()> {
        self.lanes.set(lane_index(job, lane), seq, 0).map_err(at("writing", name::LANES))
    }

    /// Says which rank of a job is behind an interface.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn set_egress(&mut self, job: u16, ifindex: u32, rank: u16) -> Result<()> {
        let key: [u8; size_of::<EgressKey>()] = transmute!(EgressKey { job: u32::from(job), ifindex });
        self.egress.insert(key, u32::from(rank), 0).map_err(at("writing", name::EGRESS))
    }

    /// Removes all ranks of a job from all interfaces.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn clear_egress(&mut self, job: u16) -> Result<()> {
        let keys: Vec<_> =
            self.egress.keys().collect::<std::result::Result<_, _>>().map_err(at("reading", name::EGRESS))?;
        for bytes in keys {
            let key: EgressKey = transmute!(bytes);
            if key.job == u32::from(job) {
                self.egress.remove(&bytes).map_err(at("writing", name::EGRESS))?;
            }
        }
        Ok(())
    }

    /// The interfaces that results leave through.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn ports(&self) -> Result<Vec<u32>> {
        let ports: std::result::Result<Vec<u32>, MapError> = self.ports.keys().collect();
        ports.map_err(at("reading", name::PORTS))
    }

    /// Lets results leave through an interface. `false`: there are too many already.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn add_port(&mut self, ifindex: u32, egress: &ProgramFd) -> Result<bool> {
        let ports = self.ports()?;
        if ports.len() >= MAX_PORTS && !ports.contains(&ifindex) {
            return Ok(false);
        }
        self.ports.insert(ifindex, ifindex, Some(egress), 0).map_err(port_error)?;
        Ok(true)
    }

    /// No results through an interface any more.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn remove_port(&mut self, ifindex: u32) -> Result<()> {
        if !self.ports()?.contains(&ifindex) {
            return Ok(());
        }
        self.ports.remove(ifindex).map_err(at("writing", name::PORTS))
    }

    /// The MAC address that a port answers ARP with.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn set_own(&mut self, ifindex: u32, mac: [u8; 6]) -> Result<()> {
        let [a, b, c, d, e, f] = mac;
        let value = u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
        self.own.insert(ifindex, value, 0).map_err(at("writing", name::OWN))
    }

    /// A slot of the pool, its two versions' sums included.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn slot(&self, index: u32) -> Result<Slot> {
        self.slots.get(&index, 0).map(|bytes| transmute!(bytes)).map_err(at("reading", name::SLOTS))
    }

    /// What a slot of a pool for jumbo frames holds beyond the first page.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn tail(&self, index: u32) -> Result<Tail> {
        self.tails.get(&index, 0).map(|bytes| transmute!(bytes)).map_err(at("reading", name::TAILS))
    }

    /// A slot of the pool that dynamic jobs share, counted over all shards.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn dynamic_slot(&self, index: u32) -> Result<DynamicSlot> {
        let bytes = self.dynamic_slots.get(&index, 0).map_err(at("reading", name::DYNAMIC_SLOTS))?;
        Ok(transmute!(bytes))
    }

    /// How many slots the pool's map has.
    #[must_use]
    pub fn pool_len(&self) -> u32 {
        self.slots.len()
    }

    /// Frames by reason, of all CPUs.
    ///
    /// # Errors
    /// As [`Tables::state`].
    pub fn counters(&self) -> Result<Vec<(Reason, u64)>> {
        let count = |reason: &Reason| {
            let per_cpu = self.counters.get(&(*reason as u32), 0)?;
            Ok((*reason, per_cpu.iter().sum()))
        };
        Reason::ALL
            .iter()
            .map(count)
            .collect::<std::result::Result<_, _>>()
            .map_err(at("reading", name::COUNTERS))
    }
}

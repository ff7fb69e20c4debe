//! Typed access to the maps, by pins or of an object that was just loaded.

mod counters;

use std::{collections::BTreeSet, io};

use aya::{
    Ebpf,
    maps::{
        HashMap, Map, MapData, MapError,
        xdp::{DevMapHash, XdpMapError},
    },
    programs::ProgramFd,
};
use sumac_agg_layout::{Drops, DynamicSlot, Injected, Lateness, MAX_PORTS, Slot, State, Tail, Times, name};
pub use sumac_loader::map::TableError;
use sumac_loader::{
    PinError,
    map::{PerCpuTable, Table, open_pinned},
};
use sumac_wire::{
    MAX_HOSTS, MAX_LANES, MAX_WORKERS,
    reason::COUNTERS,
    tables::{EgressKey, JobEntry, WorkerCounters, WorkerEntry, job_flag, parent_index, worker_index},
};
use thiserror::Error;
use zerocopy::transmute;

use crate::pins::AggregatorPins;

type Result<T> = std::result::Result<T, TableError>;

#[derive(Debug, Error)]
pub enum OpenError {
    #[error(
        "no aggregator is attached in this network namespace (looked in {path}); attach one: sumac-agg \
        attach IFACE..."
    )]
    NotAttached { path: String },
    #[error(
        "no bpffs at {path} in this mount namespace, which is not the machine's (`ip netns exec` makes one): \
        whether an aggregator is attached is not to be seen from here; nsenter --net=/run/netns/NAME enters \
        the network namespace alone"
    )]
    Hidden { path: String },
    #[error("no access to {path}: {source}; run as root")]
    Access { path: String, source: io::Error },
    #[error(
        "the aggregator at {path} was attached by another release: its maps have ABI version {found}, and \
        this one works with {own}; use that release, or remove it with its jobs and attach again: sumac-agg \
        detach --all",
        own = sumac_agg_layout::ABI
    )]
    OtherAbi { path: String, found: String },
    #[error("job number {job}: this aggregator has 1 to {most}; attach it with more --jobs")]
    NoNumber { job: u16, most: u16 },
    #[error("a former attach did not end, and could not be undone: {0}")]
    Recover(Box<sumac_loader::AttachError>),
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error(transparent)]
    Table(#[from] TableError),
}

/// All maps but the log's.
pub struct Tables {
    /// Written by the loader, at index 0.
    pub state: Table<State, { size_of::<State>() }>,
    /// By job number.
    pub entries: Table<JobEntry, { size_of::<JobEntry>() }>,
    /// By [`sumac_wire::tables::worker_index`].
    pub workers: Table<WorkerEntry, { size_of::<WorkerEntry>() }>,
    parents: Table<WorkerEntry, { size_of::<WorkerEntry>() }>,
    /// The chunk that the next slot of a lane takes, by [`sumac_wire::tables::lane_index`].
    pub lanes: Table<u32, 4>,
    egress: HashMap<MapData, [u8; size_of::<EgressKey>()], u32>,
    ports: DevMapHash<MapData>,
    /// The pool, with the sums of both versions of each slot.
    pub slots: Table<Slot, { size_of::<Slot>() }>,
    /// The elements beyond the first page of each slot for jumbo frames.
    pub tails: Table<Tail, { size_of::<Tail>() }>,
    /// The slots for dynamic jobs, of one shard after the other.
    pub dynamic_slots: Table<DynamicSlot, { size_of::<DynamicSlot>() }>,
    counters: PerCpuTable<u64, 8>,
    job_counters: PerCpuTable<[u64; COUNTERS], { size_of::<[u64; COUNTERS]>() }>,
    worker_counters: PerCpuTable<WorkerCounters, { size_of::<WorkerCounters>() }>,
    /// By `worker_index`: of each lane the record of its last survey ([`sumac_wire::result_paths`]).
    pub surveys: Table<[u32; MAX_LANES], { 4 * MAX_LANES }>,
    /// By job number.
    pub drops: Table<Drops, { size_of::<Drops>() }>,
    injected: PerCpuTable<Injected, { size_of::<Injected>() }>,
    times: PerCpuTable<Times, { size_of::<Times>() }>,
    lateness: PerCpuTable<Lateness, { size_of::<Lateness>() }>,
    own: HashMap<MapData, u32, u64>,
    addresses: HashMap<MapData, u32, u32>,
}

fn reading(map: &'static str) -> impl FnOnce(MapError) -> TableError {
    TableError::of("read", map)
}

fn writing(map: &'static str) -> impl FnOnce(MapError) -> TableError {
    TableError::of("write", map)
}

impl Tables {
    /// Opens the pinned maps.
    pub fn open(pins: &AggregatorPins) -> Result<Tables> {
        Tables::of(|name| open_pinned(&pins.map(name)))
    }

    /// Opens the maps that programs were just loaded over.
    pub(crate) fn open_loaded(pins: &AggregatorPins, keep: bool) -> Result<Tables> {
        Tables::of(|name| open_pinned(&pins.map_of(name, keep)))
    }

    /// Takes the maps of an object that was loaded without pins. The programs keep theirs.
    pub fn take(ebpf: &mut Ebpf) -> Result<Tables> {
        Tables::of(|name| ebpf.take_map(name).ok_or(MapError::ElementNotFound))
    }

    fn of(mut map: impl FnMut(&'static str) -> std::result::Result<Map, MapError>) -> Result<Tables> {
        macro_rules! open {
            ($name:expr) => {
                map($name).and_then(|map| map.try_into()).map_err(TableError::of("open", $name))?
            };
        }
        macro_rules! table {
            ($name:expr, $kind:ident) => {
                $kind::new(map($name).map_err(TableError::of("open", $name))?, $name)?
            };
        }
        Ok(Tables {
            state: table!(name::STATE, Table),
            entries: table!(name::JOBS, Table),
            workers: table!(name::WORKERS, Table),
            parents: table!(name::PARENTS, Table),
            lanes: table!(name::LANES, Table),
            egress: open!(name::EGRESS),
            ports: open!(name::PORTS),
            slots: table!(name::SLOTS, Table),
            tails: table!(name::TAILS, Table),
            dynamic_slots: table!(name::DYNAMIC_SLOTS, Table),
            counters: table!(name::COUNTERS, PerCpuTable),
            job_counters: table!(name::JOB_COUNTERS, PerCpuTable),
            worker_counters: table!(name::WORKER_COUNTERS, PerCpuTable),
            surveys: table!(name::SURVEYS, Table),
            drops: table!(name::DROPS, Table),
            injected: table!(name::INJECTED, PerCpuTable),
            times: table!(name::TIMES, PerCpuTable),
            lateness: table!(name::LATENESS, PerCpuTable),
            own: open!(name::OWN),
            addresses: open!(name::ADDRESSES),
        })
    }

    /// Returns how many numbers of jobs there is room for, 0 among them.
    pub fn numbers(&self) -> u16 {
        self.entries.len() as u16
    }

    /// Returns all entries that were ever used, by number.
    pub fn jobs(&self) -> Result<Vec<(u16, JobEntry)>> {
        let all = (0..self.numbers())
            .map(|job| Ok((job, self.entries.get(job.into())?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().filter(|(_, entry)| *entry != JobEntry::default()).collect())
    }

    /// Returns the numbers of the active jobs.
    pub fn active_jobs(&self) -> Result<Vec<u16>> {
        let jobs = self.jobs()?.into_iter();
        Ok(jobs.filter(|(_, job)| job.flags & job_flag::ACTIVE != 0).map(|(number, _)| number).collect())
    }

    /// Returns a job's parents: its root, or the parameter hosts of its shards in turn.
    pub fn parents(&self, job: u16, count: u16) -> Result<Vec<WorkerEntry>> {
        (0..count).map(|shard| self.parents.get(parent_index(job, shard, count))).collect()
    }

    pub fn set_parents(&mut self, job: u16, entries: &[WorkerEntry]) -> Result<()> {
        for shard in 0..MAX_HOSTS as u16 {
            let entry = entries.get(usize::from(shard)).copied().unwrap_or_default();
            self.parents.set(parent_index(job, shard, MAX_HOSTS as u16), &entry)?;
        }
        Ok(())
    }

    pub fn set_egress(&mut self, job: u16, ifindex: u32, rank: u16) -> Result<()> {
        let key: [u8; size_of::<EgressKey>()] = transmute!(EgressKey { job: u32::from(job), ifindex });
        self.egress.insert(key, u32::from(rank), 0).map_err(writing(name::EGRESS))
    }

    /// Removes what was set for a job, whose workers' entries are there still.
    pub fn clear_egress(&mut self, job: u16) -> Result<()> {
        let mut interfaces = BTreeSet::new();
        for rank in 0..MAX_WORKERS as u16 {
            interfaces.insert(self.workers.get(worker_index(job, rank))?.ifindex);
        }
        for ifindex in interfaces {
            let key: [u8; size_of::<EgressKey>()] = transmute!(EgressKey { job: u32::from(job), ifindex });
            match self.egress.get(&key, 0) {
                Ok(_) => self.egress.remove(&key).map_err(writing(name::EGRESS))?,
                Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(reading(name::EGRESS)(error)),
            }
        }
        Ok(())
    }

    /// Returns the interfaces that results leave through, by index.
    pub fn ports(&self) -> Result<Vec<u32>> {
        let ports: std::result::Result<Vec<u32>, MapError> = self.ports.keys().collect();
        ports.map_err(reading(name::PORTS))
    }

    /// Adds an interface that results leave through; returns `false` when there are too many already.
    pub fn add_port(&mut self, ifindex: u32, egress: &ProgramFd) -> Result<bool> {
        let ports = self.ports()?;
        if ports.len() >= MAX_PORTS && !ports.contains(&ifindex) {
            return Ok(false);
        }
        self.ports.insert(ifindex, ifindex, Some(egress), 0).map_err(|error| {
            writing(name::PORTS)(match error {
                XdpMapError::MapError(source) => source,
                XdpMapError::ChainedProgramNotSupported => MapError::ProgIdNotSupported,
            })
        })?;
        Ok(true)
    }

    pub fn remove_port(&mut self, ifindex: u32) -> Result<()> {
        if !self.ports()?.contains(&ifindex) {
            return Ok(());
        }
        self.ports.remove(ifindex).map_err(writing(name::PORTS))
    }

    /// Adds an address of the aggregator. None is removed: whoever was told it may go on sending there.
    pub fn add_address(&mut self, ip: u32) -> Result<()> {
        self.addresses.insert(ip, 0, 0).map_err(writing(name::ADDRESSES))
    }

    /// Sets the MAC address for replies to ARP on an interface.
    pub fn set_own(&mut self, ifindex: u32, mac: [u8; 6]) -> Result<()> {
        let [a, b, c, d, e, f] = mac;
        let value = u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
        self.own.insert(ifindex, value, 0).map_err(writing(name::OWN))
    }
}

//! The handle on an attached program: its sockets, jobs, counters and settings, through its pins.

#![expect(
    clippy::result_large_err,
    reason = "an interface is attached once, and the error has all that it met"
)]

use std::{
    fmt, io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use aya::maps::{Map, MapData, MapInfo, XskMap};
use sumac_loader::{
    BoundXdpMode, Interface, PinError,
    log::{LogError, ProgramLog},
    map::{PerCpuTable, Table, TableError, open_pinned},
    owner::{Owner, OwnerError},
    pins::{LINK, permission},
    recover::recover,
};
use sumac_netutil::steer::{
    records::RuleRecords,
    report::{self, Steering},
};
use sumac_wire::{
    MAX_JOBS, Reason,
    tables::{HOST_JOB_WAYS, HostConfig, HostJobEntry, MAX_QUEUES, QueueCounters, host_job_index, job_flag},
};
use thiserror::Error;

use crate::{
    mode::HostMode,
    pins::{self, HostPins, MapPin},
    queues,
};

#[derive(Debug, Error)]
pub enum OpenError {
    #[error("no host program on {ifname} (looked for {path}): attach it first: sumac attach {ifname}")]
    NotAttached { ifname: String, path: PathBuf },
    /// The pins are there, the program is not on the interface any more.
    #[error(
        "the host program pinned at {path} is no longer on {ifname}; attach it again: sumac attach {ifname}"
    )]
    Detached { ifname: String, path: PathBuf },
    /// A program is there, with other maps than the handle's.
    #[error(
        "the host program on {ifname} was detached and attached anew since it was opened; restart the \
        daemon, so that the new program gets its sockets and jobs"
    )]
    Renewed { ifname: String },
    #[error(
        "the host program on {ifname} was attached by another release: its maps have ABI version {found}, \
        and this one works with {own}; attach it again with this release: sumac attach {ifname}",
        own = crate::program::ABI
    )]
    OtherAbi { ifname: String, found: String },
    #[error(transparent)]
    Owner(#[from] OwnerError),
    #[error(transparent)]
    Recover(Box<sumac_loader::AttachError>),
    #[error("could not examine {subject}: {source}{}", permission(.source))]
    System { subject: String, source: io::Error },
    #[error(transparent)]
    Link(#[from] PinError),
    #[error("could not open {path}: {source}; attach again to replace another version's map")]
    Map { path: PathBuf, source: TableError },
}

#[derive(Debug, Error)]
pub enum MapError {
    #[error("queue {0} is beyond the {MAX_QUEUES} that the host program steers")]
    NoSuchQueue(u32),
    #[error("job {0} is beyond the host program's table; jobs are numbered 1 to {max}", max = MAX_JOBS - 1)]
    NoSuchJob(u16),
    #[error(
        "number {0} is that of {HOST_JOB_WAYS} jobs of this host already, of as many control planes; let one \
        of them end, or use fewer control planes"
    )]
    NumberTaken(u16),
    #[error(
        "the kernel did not take the AF_XDP socket of queue {queue}: {source}; it must be bound and have a \
        UMEM"
    )]
    Socket { queue: u32, source: aya::maps::MapError },
    #[error("the host program: {0}")]
    Table(#[from] TableError),
}

/// An attached host program. Dropping it changes nothing: the program stays attached.
pub struct Attached {
    pins: HostPins,
    interface: Interface,
    mode: BoundXdpMode,
    program_id: u32,
    config: HostConfig,
    fallback: Option<String>,
    owner: Option<Owner>,
    sockets_id: u32,
    sockets: XskMap<MapData>,
    jobs: Table<HostJobEntry, { size_of::<HostJobEntry>() }>,
    counters: PerCpuTable<u64, { size_of::<u64>() }>,
    queues: PerCpuTable<QueueCounters, { size_of::<QueueCounters>() }>,
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached")
            .field("pins", &self.pins.directory.path())
            .field("program_id", &self.program_id)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl Attached {
    /// Opens the program on an interface of the calling thread's network namespace.
    pub fn open(ifname: &str, pin_root: impl AsRef<Path>) -> Result<Self, OpenError> {
        let pins = HostPins::find(pin_root.as_ref(), ifname)
            .map_err(|source| OpenError::System { subject: "the network namespace".to_owned(), source })?;
        Self::open_settled(pins)
    }

    /// Opens the program after an `attach` that was killed, if there was one, is completed or undone.
    pub(crate) fn open_settled(pins: HostPins) -> Result<Self, OpenError> {
        let directory = &pins.directory;
        let failed = |source| OpenError::System { subject: directory.path().display().to_string(), source };
        if directory.is_interrupted()?
            && let Some(_lock) = directory.lock().map_err(failed)?
        {
            recover(directory).map_err(|error| OpenError::Recover(Box::new(error)))?;
        }
        Self::open_pins(pins)
    }

    /// Claims the program for this process, for the lifetime of the handle: sockets and jobs are one
    /// daemon's.
    ///
    /// # Errors
    /// [`OpenError::Owner`], which names the process that has it.
    pub fn claim(&mut self) -> Result<(), OpenError> {
        let HostPins { directory, interface } = &self.pins;
        self.owner = Some(Owner::claim(directory, &format!("the host program on {interface}"))?);
        Ok(())
    }

    /// Releases the program before the handle ends: its interface is gone, and one of the same name is to be
    /// claimed.
    pub fn release(&mut self) {
        self.owner = None;
    }

    /// Continues with the present name of the interface.
    pub fn rename(&mut self, interface: &str) -> Result<(), OpenError> {
        let path = self.pins.directory.path().display().to_string();
        self.pins =
            self.pins.renamed(interface).map_err(|source| OpenError::System { subject: path, source })?;
        interface.clone_into(&mut self.interface.name);
        if self.owner.is_some() {
            self.claim()?;
        }
        Ok(())
    }

    pub(crate) fn open_pins(pins: HostPins) -> Result<Self, OpenError> {
        let (ifname, path) = (pins.interface.clone(), pins.directory.path().to_owned());
        let closed = |source| OpenError::System { subject: path.display().to_string(), source };
        if !pins.exist().map_err(closed)? {
            return Err(OpenError::NotAttached { ifname, path });
        }
        if let Some(found) = pins.directory.other_abi(crate::program::ABI)? {
            return Err(OpenError::OtherAbi { ifname, found });
        }
        let program_id = pins.directory.linked_program(LINK)?;
        let interface = Interface::by_name(&ifname)
            .map_err(|source| OpenError::System { subject: format!("interface {ifname}"), source })?;
        let Some(bound) = interface.xdp.iter().find(|program| program.id == program_id) else {
            return Err(OpenError::Detached { ifname, path });
        };
        let config: Table<HostConfig, { size_of::<HostConfig>() }> =
            open_map(&pins, pins::CONFIG, Table::new)?;
        let sockets = pins.pin(pins::SOCKETS.1);
        let sockets_id = MapInfo::from_pin(&sockets)
            .map(|info| info.id())
            .map_err(|source| unopened(&pins, pins::SOCKETS, TableError::of("open", "SOCKETS")(source)))?;
        Ok(Self {
            mode: bound.mode,
            interface,
            program_id,
            config: config.get(0).map_err(|source| unopened(&pins, pins::CONFIG, source))?,
            fallback: None,
            owner: None,
            sockets_id,
            sockets: open_map(&pins, pins::SOCKETS, |map, name| {
                map.try_into().map_err(TableError::of("open", name))
            })?,
            jobs: open_map(&pins, pins::JOBS, Table::new)?,
            counters: open_map(&pins, pins::COUNTERS, PerCpuTable::new)?,
            queues: open_map(&pins, pins::QUEUES, PerCpuTable::new)?,
            pins,
        })
    }

    pub(crate) fn with_fallback(self, fallback: Option<String>) -> Self {
        Self { fallback, ..self }
    }

    /// Fails when this handle's program is no longer on the interface: it was detached, or detached and
    /// attached anew with maps that have neither the sockets nor the jobs of this handle. A program that was
    /// replaced has kept them.
    pub fn check_current(&self) -> Result<(), OpenError> {
        let now = Self::open_pins(self.pins.clone())?;
        if now.sockets_id == self.sockets_id {
            Ok(())
        } else {
            Err(OpenError::Renewed { ifname: self.pins.interface.clone() })
        }
    }

    pub fn mode(&self) -> BoundXdpMode {
        self.mode
    }

    /// Returns the mode that was asked for at attachment, in which sockets shall be bound.
    pub fn requested_mode(&self) -> HostMode {
        HostMode::from_number(self.config.mode)
    }

    pub fn fell_back(&self) -> bool {
        self.mode == BoundXdpMode::Generic && self.requested_mode() != HostMode::Generic
    }

    /// Returns the reason for which `attach`, which returned this handle, fell back to generic mode.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Examines how each shard's packets find their queue.
    pub fn steering(&self) -> Steering {
        let records = RuleRecords::of_interface(self.pin_path());
        report::examine(&self.interface, self.ports(), &self.queues(), &records)
    }

    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    pub fn program_id(&self) -> u32 {
        self.program_id
    }

    pub fn ports(&self) -> (u16, u16) {
        (self.config.base_port, self.config.shards)
    }

    pub fn queues(&self) -> Vec<u32> {
        queues::from_bits(&self.config.queues)
    }

    pub fn pin_path(&self) -> &Path {
        self.pins.directory.path()
    }

    pub fn log(&self) -> Result<ProgramLog, LogError> {
        ProgramLog::open(self.program_id, format!("host program on {}", self.interface.name))
    }

    /// Steers a queue's frames to a socket, which must be bound to that queue of this interface. The kernel
    /// removes the socket when it is closed.
    pub fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), MapError> {
        if queue >= self.sockets.len() {
            return Err(MapError::NoSuchQueue(queue));
        }
        self.sockets.set(queue, socket, 0).map_err(|source| MapError::Socket { queue, source })
    }

    /// Admits a job's packets, or changes what is admitted of them: a job is its number and its token.
    pub fn add_job(&mut self, job: u16, entry: HostJobEntry) -> Result<(), MapError> {
        let ways = self.ways(job)?;
        let is_own = |way: &usize| is_active(&ways[*way]) && ways[*way].token == entry.token;
        let own = (0..ways.len()).find(is_own);
        let way = own.or_else(|| ways.iter().position(|other| !is_active(other)));
        let way = way.ok_or(MapError::NumberTaken(job))?;
        let entry = HostJobEntry { flags: entry.flags | job_flag::ACTIVE, ..entry };
        Ok(self.jobs.set(host_job_index(job, way), &entry)?)
    }

    pub fn remove_job(&mut self, job: u16, token: u64) -> Result<(), MapError> {
        let ways = self.ways(job)?;
        let Some(way) = ways.iter().position(|entry| is_active(entry) && entry.token == token) else {
            return Ok(());
        };
        Ok(self.jobs.set(host_job_index(job, way), &HostJobEntry::default())?)
    }

    /// Returns the entries of a number.
    fn ways(&self, job: u16) -> Result<Vec<HostJobEntry>, MapError> {
        if usize::from(job) >= MAX_JOBS {
            return Err(MapError::NoSuchJob(job));
        }
        (0..HOST_JOB_WAYS).map(|way| Ok(self.jobs.get(host_job_index(job, way))?)).collect()
    }

    /// Returns all jobs by number.
    pub fn jobs(&self) -> Result<Vec<(u16, HostJobEntry)>, MapError> {
        let mut found = Vec::new();
        for job in 0..MAX_JOBS as u16 {
            found.extend(self.ways(job)?.into_iter().filter(is_active).map(|entry| (job, entry)));
        }
        Ok(found)
    }

    /// Removes every job: for a daemon that starts after one that died.
    pub fn clear_jobs(&mut self) -> Result<(), MapError> {
        for (job, entry) in self.jobs()? {
            self.remove_job(job, entry.token)?;
        }
        Ok(())
    }

    /// Returns the frames by reason, over all CPUs, since the program was first attached.
    pub fn counters(&self) -> Result<Vec<(Reason, u64)>, MapError> {
        let count =
            |reason: &Reason| Ok((*reason, self.counters.fold(*reason as u32, 0, |sum, one| sum + one)?));
        Reason::ALL.iter().map(count).collect()
    }

    /// Returns the frames by queue, of the interface's queues and of every other that received one.
    pub fn queue_counters(&self) -> Result<Vec<(u32, QueueCounters)>, MapError> {
        let mut found = Vec::new();
        for queue in 0..self.queues.len() {
            let sum = self.queues.fold(queue, QueueCounters::default(), |sum, one| QueueCounters {
                foreign: sum.foreign + one.foreign,
                steered: sum.steered + one.steered,
                no_socket: sum.no_socket + one.no_socket,
                refused: sum.refused + one.refused,
            })?;
            if queue < self.interface.rx_queues || sum != QueueCounters::default() {
                found.push((queue, sum));
            }
        }
        Ok(found)
    }
}

fn is_active(entry: &HostJobEntry) -> bool {
    entry.flags & job_flag::ACTIVE != 0
}

fn open_map<T>(
    pins: &HostPins,
    (map, pin): MapPin,
    typed: impl FnOnce(Map, &'static str) -> Result<T, TableError>,
) -> Result<T, OpenError> {
    let opened = open_pinned(&pins.pin(pin)).map_err(TableError::of("open", map));
    opened.and_then(|found| typed(found, map)).map_err(|source| unopened(pins, (map, pin), source))
}

fn unopened(pins: &HostPins, (_, pin): MapPin, source: TableError) -> OpenError {
    OpenError::Map { path: pins.pin(pin), source }
}

//! The handle on an attached program: its sockets, jobs, counters and settings, through its pins.

use std::{
    fmt, io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use aya::{
    maps::{Array, Map, MapData, MapInfo, PerCpuArray, XskMap},
    programs::links::{FdLink, LinkError, PinnedLink},
};
use sumac_wire::{
    MAX_JOBS, Reason,
    tables::{HostConfig, HostJobEntry, MAX_QUEUES, QueueCounters, job_flag},
};
use thiserror::Error;

use crate::{
    interface::Interface,
    mode::{BoundMode, Mode},
    pins::{self, PinDir},
    queues,
    steer::report::{self, Steering},
};

type JobBytes = [u8; size_of::<HostJobEntry>()];
type QueueBytes = [u8; size_of::<QueueCounters>()];
type ConfigBytes = [u8; size_of::<HostConfig>()];

/// Why an attached program could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Nothing is pinned for the interface.
    #[error("no host program on {ifname} (looked for {path}): attach it first: sumac attach {ifname}")]
    NotAttached {
        /// The interface.
        ifname: String,
        /// Where its pins would be.
        path: PathBuf,
    },
    /// The pins are there, the program is not on the interface any more.
    #[error(
        "the host program pinned at {path} is no longer on {ifname}; attach it again: sumac attach {ifname}"
    )]
    Detached {
        /// The interface.
        ifname: String,
        /// Its pins.
        path: PathBuf,
    },
    /// It is there, with other maps than the handle's.
    #[error(
        "the host program was taken off {ifname} and attached anew since it was opened; restart the daemon, so that \
         its sockets and jobs are known to the new one"
    )]
    Renewed {
        /// The interface.
        ifname: String,
    },
    /// The system's own calls.
    #[error("could not look at {what}: {source}; try again as root")]
    System {
        /// The interface, or the place in /proc.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The link's pin.
    #[error("could not open {path}: {source}; are you root?")]
    Link {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: LinkError,
    },
    /// A map's pin.
    #[error("could not open {path}: {source}; attach again to renew what another version left")]
    Map {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: aya::maps::MapError,
    },
}

/// Why a map of an attached program could not be read or changed.
#[derive(Debug, Error)]
pub enum MapError {
    /// A queue beyond the table.
    #[error("queue {0} is beyond the {MAX_QUEUES} that the host program steers")]
    NoSuchQueue(u32),
    /// A job beyond the table.
    #[error("job {0} is beyond the host program's table; jobs are numbered 1 to {max}", max = MAX_JOBS - 1)]
    NoSuchJob(u16),
    /// Putting a socket in.
    #[error(
        "the kernel did not take the AF_XDP socket of queue {queue}: {source}; it must be bound and have a UMEM"
    )]
    Socket {
        /// The queue.
        queue: u32,
        /// What the kernel said.
        source: aya::maps::MapError,
    },
    /// Reading or writing another map.
    #[error("could not {doing}: {source}")]
    Access {
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        source: aya::maps::MapError,
    },
}

/// An attached host program. Dropping it changes nothing: the program stays where it is.
pub struct Attached {
    pins: PinDir,
    interface: Interface,
    mode: BoundMode,
    program_id: u32,
    config: HostConfig,
    fallback: Option<String>,
    /// The kernel's number of the table of sockets.
    sockets_id: u32,
    sockets: XskMap<MapData>,
    jobs: Array<MapData, JobBytes>,
    counters: PerCpuArray<MapData, u64>,
    queues: PerCpuArray<MapData, QueueBytes>,
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached")
            .field("pins", &self.pins.path())
            .field("program_id", &self.program_id)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl Attached {
    /// Opens the program on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// When nothing is attached there, or its pins do not open.
    pub fn open(ifname: &str, pin_root: impl AsRef<Path>) -> Result<Self, OpenError> {
        let pins = PinDir::here(pin_root.as_ref(), ifname)
            .map_err(|source| OpenError::System { what: "the network namespace".to_owned(), source })?;
        Self::open_pins(pins)
    }

    pub(crate) fn open_pins(pins: PinDir) -> Result<Self, OpenError> {
        let ifname = pins.interface().to_owned();
        let closed = |source| OpenError::System { what: pins.path().display().to_string(), source };
        if !pins.exists().map_err(closed)? {
            return Err(OpenError::NotAttached { ifname, path: pins.path().to_owned() });
        }
        let program_id = linked_program(&pins)?;
        let interface = Interface::by_name(&ifname)
            .map_err(|source| OpenError::System { what: format!("interface {ifname}"), source })?;
        let Some(bound) = interface.xdp.iter().find(|program| program.id == program_id) else {
            return Err(OpenError::Detached { ifname, path: pins.path().to_owned() });
        };
        Ok(Self {
            mode: bound.mode,
            interface,
            program_id,
            config: config(&pins)?,
            fallback: None,
            sockets_id: map_id(&pins, "xsks")?,
            sockets: open_map(&pins, "xsks", Map::XskMap)?,
            jobs: open_map(&pins, "jobs", Map::Array)?,
            counters: counters_map(&pins)?,
            queues: queues_map(&pins)?,
            pins,
        })
    }

    pub(crate) fn with_fallback(self, fallback: Option<String>) -> Self {
        Self { fallback, ..self }
    }

    /// Fails when this handle is not the interface's any more: the program was taken off, or taken off and attached
    /// anew, with maps that know neither sockets nor jobs of this handle. A program that was replaced in its place has
    /// kept them.
    ///
    /// # Errors
    /// As [`Attached::open`], or [`OpenError::Renewed`].
    pub fn check_current(&self) -> Result<(), OpenError> {
        let now = Self::open_pins(self.pins.clone())?;
        if now.sockets_id == self.sockets_id {
            Ok(())
        } else {
            Err(OpenError::Renewed { ifname: self.pins.interface().to_owned() })
        }
    }

    /// Where the program really runs.
    #[must_use]
    pub fn mode(&self) -> BoundMode {
        self.mode
    }

    /// The mode that was asked for when the program was attached: how sockets shall be bound.
    #[must_use]
    pub fn requested_mode(&self) -> Mode {
        Mode::from_number(self.config.mode)
    }

    /// Why `attach` fell back to generic mode, if it just did.
    #[must_use]
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// What leads each shard's packets to its queue, as it is now.
    #[must_use]
    pub fn steering(&self) -> Steering {
        report::look(&self.interface, self.ports(), &self.queues(), &self.pins.rules())
    }

    /// The interface, as it was when the handle was opened.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The kernel's number of the program.
    #[must_use]
    pub fn program_id(&self) -> u32 {
        self.program_id
    }

    /// UDP destination port of shard 0, and the number of shards.
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        (self.config.base_port, self.config.shards)
    }

    /// The queues that sockets shall be opened on, ascending.
    #[must_use]
    pub fn queues(&self) -> Vec<u32> {
        queues::from_bits(&self.config.queues)
    }

    /// Where the pins are.
    #[must_use]
    pub fn pin_path(&self) -> &Path {
        self.pins.path()
    }

    /// Steers a queue's frames into a socket. The socket must be bound to that queue of this interface. The kernel
    /// takes it out again by itself when the socket is closed.
    ///
    /// # Errors
    /// When the queue is beyond the table or the kernel does not take the socket.
    pub fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), MapError> {
        self.check_queue(queue)?;
        self.sockets.set(queue, socket, 0).map_err(|source| MapError::Socket { queue, source })
    }

    fn check_queue(&self, queue: u32) -> Result<(), MapError> {
        if queue < self.sockets.len() { Ok(()) } else { Err(MapError::NoSuchQueue(queue)) }
    }

    /// Lets a job's results in, in place of whatever had its number before.
    ///
    /// # Errors
    /// When the number is beyond the table or the kernel refuses.
    pub fn add_job(&mut self, job: u16, entry: HostJobEntry) -> Result<(), MapError> {
        self.write_job(job, HostJobEntry { flags: entry.flags | job_flag::ACTIVE, ..entry })
    }

    /// Lets no more of a job's results in. Nothing happens when it is not there.
    ///
    /// # Errors
    /// As [`Attached::add_job`].
    pub fn remove_job(&mut self, job: u16) -> Result<(), MapError> {
        self.write_job(job, HostJobEntry::default())
    }

    fn write_job(&mut self, job: u16, entry: HostJobEntry) -> Result<(), MapError> {
        if u32::from(job) >= self.jobs.len() {
            return Err(MapError::NoSuchJob(job));
        }
        let bytes: JobBytes = zerocopy::transmute!(entry);
        self.jobs
            .set(u32::from(job), bytes, 0)
            .map_err(|source| MapError::Access { doing: "write the host program's table of jobs", source })
    }

    /// The jobs whose results are let in, with their numbers.
    ///
    /// # Errors
    /// When the kernel refuses to read the map.
    pub fn jobs(&self) -> Result<Vec<(u16, HostJobEntry)>, MapError> {
        let mut found = Vec::new();
        for job in 0..self.jobs.len().min(MAX_JOBS as u32) {
            let bytes = self.jobs.get(&job, 0).map_err(|source| MapError::Access {
                doing: "read the host program's table of jobs",
                source,
            })?;
            let entry: HostJobEntry = zerocopy::transmute!(bytes);
            if entry.flags & job_flag::ACTIVE != 0 {
                found.push((job as u16, entry));
            }
        }
        Ok(found)
    }

    /// Removes every job, for a daemon that starts and finds those of one that died.
    ///
    /// # Errors
    /// As [`Attached::add_job`].
    pub fn clear_jobs(&mut self) -> Result<(), MapError> {
        for (job, _) in self.jobs()? {
            self.remove_job(job)?;
        }
        Ok(())
    }

    /// Frames by what became of them, over all CPUs, since the program first came to the interface.
    ///
    /// # Errors
    /// When the kernel refuses to read the map.
    pub fn counters(&self) -> Result<Vec<(Reason, u64)>, MapError> {
        read_counters(&self.counters)
    }

    /// Frames by queue, of the interface's queues and of every other that saw one.
    ///
    /// # Errors
    /// When the kernel refuses to read the map.
    pub fn queue_counters(&self) -> Result<Vec<(u32, QueueCounters)>, MapError> {
        read_queue_counters(&self.queues, self.interface.rx_queues)
    }
}

/// The program behind a pinned link.
pub(crate) fn linked_program(pins: &PinDir) -> Result<u32, OpenError> {
    let path = pins.pin(pins::LINK);
    let id = PinnedLink::from_pin(&path).and_then(|link| Ok(FdLink::from(link).info()?.program_id()));
    id.map_err(|source| OpenError::Link { path, source })
}

pub(crate) fn config(pins: &PinDir) -> Result<HostConfig, OpenError> {
    let path = pins.pin(pins::CONFIG.1);
    let map: Array<_, ConfigBytes> = open_map(pins, pins::CONFIG.1, Map::Array)?;
    let bytes = map.get(&0, 0).map_err(|source| OpenError::Map { path, source })?;
    Ok(zerocopy::transmute!(bytes))
}

pub(crate) fn counters_map(pins: &PinDir) -> Result<PerCpuArray<MapData, u64>, OpenError> {
    open_map(pins, "counters", Map::PerCpuArray)
}

pub(crate) fn queues_map(pins: &PinDir) -> Result<PerCpuArray<MapData, QueueBytes>, OpenError> {
    open_map(pins, "queues", Map::PerCpuArray)
}

fn map_id(pins: &PinDir, name: &str) -> Result<u32, OpenError> {
    let path = pins.pin(name);
    MapInfo::from_pin(&path).map(|info| info.id()).map_err(|source| OpenError::Map { path, source })
}

fn open_map<T>(pins: &PinDir, name: &str, kind: fn(MapData) -> Map) -> Result<T, OpenError>
where
    T: TryFrom<Map, Error = aya::maps::MapError>,
{
    let path = pins.pin(name);
    let map = MapData::from_pin(&path).and_then(|data| T::try_from(kind(data)));
    map.map_err(|source| OpenError::Map { path, source })
}

pub(crate) fn read_counters(map: &PerCpuArray<MapData, u64>) -> Result<Vec<(Reason, u64)>, MapError> {
    let read = |reason: &Reason| {
        let values = map
            .get(&(*reason as u32), 0)
            .map_err(|source| MapError::Access { doing: "read the host program's counters", source })?;
        Ok((*reason, values.iter().sum()))
    };
    Reason::ALL.iter().map(read).collect()
}

pub(crate) fn read_queue_counters(
    map: &PerCpuArray<MapData, QueueBytes>,
    present: u32,
) -> Result<Vec<(u32, QueueCounters)>, MapError> {
    let mut found = Vec::new();
    for queue in 0..map.len() {
        let values = map
            .get(&queue, 0)
            .map_err(|source| MapError::Access { doing: "read the host program's queues", source })?;
        let sum = values.iter().fold(QueueCounters::default(), |sum, bytes| {
            let one: QueueCounters = zerocopy::transmute!(*bytes);
            QueueCounters {
                foreign: sum.foreign + one.foreign,
                steered: sum.steered + one.steered,
                no_socket: sum.no_socket + one.no_socket,
                refused: sum.refused + one.refused,
            }
        });
        if queue < present || sum != QueueCounters::default() {
            found.push((queue, sum));
        }
    }
    Ok(found)
}

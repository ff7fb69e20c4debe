//! What the control plane needs of an aggregator's data plane, be it eBPF or a host process.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
};

use thiserror::Error;

use crate::dynamic::DynamicInstall;

/// What adds the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    /// XDP programs.
    Ebpf,
    /// A host process with a UDP socket.
    Host,
    /// Nothing: a control plane without an aggregator, for dynamic jobs.
    None,
    /// A parameter host: it completes the sums of dynamic jobs.
    Parameter,
}

impl PlaneKind {
    /// `ebpf`, `host`, `none` or `parameter`.
    pub const fn name(self) -> &'static str {
        match self {
            PlaneKind::Ebpf => "ebpf",
            PlaneKind::Host => "host",
            PlaneKind::None => "none",
            PlaneKind::Parameter => "parameter",
        }
    }
}

/// What a data plane has to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaneInfo {
    /// Its kind.
    pub kind: PlaneKind,
    /// Slots in the pool.
    pub slots: u32,
    /// Most elements in a chunk.
    pub max_elements: u16,
    /// The port whose MTU carries no more, for people; none: the slots hold no more.
    pub narrowest: Option<Arc<str>>,
    /// UDP port of shard 0.
    pub base_port: u16,
    /// How many shards, each on a port of its own.
    pub shards: u16,
    /// Slots of each shard that dynamic jobs share; 0: none.
    pub dynamic_slots: u32,
    /// For a parameter host: where workers and aggregators reach it, when that is not where its control connection comes
    /// from.
    pub address: Option<Ipv4Addr>,
    /// For a parameter host: the numbers of jobs that an earlier control plane left and that still see packets. No other
    /// job gets them before they are gone.
    pub kept: Vec<u16>,
}

/// One worker of a job that is to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInstall {
    /// Contributions must come from here, and results go here.
    pub ip: Ipv4Addr,
    /// The worker's UDP port for results of shard 0.
    pub port: u16,
    /// The worker's own MAC address, as it says. Behind a router the plane needs the router's.
    pub mac: [u8; 6],
    /// The aggregator's address on the worker's control connection.
    pub local_ip: Ipv4Addr,
}

/// A job that is to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInstall {
    /// Its number: 1 to `MAX_JOBS - 1`.
    pub job: u16,
    /// Its incarnation. Never used before with this job number on this plane.
    pub epoch: u16,
    /// The secret number in all of its packets.
    pub token: u64,
    /// Its first slot in the pool.
    pub first_slot: u32,
    /// Slots of each lane, a power of two.
    pub lane_slots: u32,
    /// Why as many, for people; empty while the workers' paths are measured.
    pub slots_reason: String,
    /// Its lanes.
    pub lanes: u16,
    /// Its shards: lane l belongs to shard l mod this, and each shard has a port of its own.
    pub shards: u16,
    /// Most elements in a chunk.
    pub elements: u16,
    /// Whether packets carry UDP checksums that are to be verified.
    pub checksum: bool,
    /// Whether a completed slot takes whatever chunk of its lane comes next.
    pub stealing: bool,
    /// Where this plane stands in the job.
    pub level: Level,
    /// The workers below this plane, by rank; racks where it is the root.
    pub workers: Vec<WorkerInstall>,
    /// What a dynamic job has beside that; it has no slots of its own, so `first_slot` and `lane_slots` are 0. None: the
    /// job is static.
    pub dynamic: Option<DynamicInstall>,
}

impl JobInstall {
    /// Its slots in the pool, all lanes together.
    pub const fn slots(&self) -> u32 {
        self.lane_slots.saturating_mul(self.lanes as u32)
    }
}

/// Where a plane stands in a job (SwitchML section 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// It is the only one.
    #[default]
    Only,
    /// Its workers are the planes of racks.
    Root {
        /// Workers of all racks.
        contributors: u16,
    },
    /// Its sums go up to a root, whose results go down to its workers.
    Rack {
        /// Its number among the root's racks.
        rack: u16,
        /// How many racks the root has.
        racks: u16,
        /// Workers of all racks.
        contributors: u16,
        /// Where the root takes contributions of shard 0.
        parent: SocketAddrV4,
    },
}

/// Where the workers of an installed job find the plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The address that each rank sends to, by rank.
    pub aggregator_ips: Vec<Ipv4Addr>,
    /// The multicast group that results are sent to, if not to each worker.
    pub result_group: Option<Ipv4Addr>,
    /// The address that each parameter host of a dynamic job hears the plane from, in the order of
    /// [`DynamicInstall::hosts`]. Empty at a rack's plane, which sends to the root, and at a parameter host itself.
    pub host_sides: Vec<Ipv4Addr>,
}

/// The last incarnation that a plane knows of a job number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastEpoch {
    /// The job number.
    pub job: u16,
    /// Its incarnation.
    pub epoch: u16,
}

/// Why a data plane did not do what was asked.
#[derive(Debug, Error)]
pub enum PlaneError {
    /// It is not there: detached, or its process is gone.
    #[error("data plane unavailable: {what}")]
    Unavailable {
        /// What is missing and what to do.
        what: String,
    },
    /// A worker cannot be reached.
    #[error("no way to rank {rank} at {ip}: {what}")]
    NoWay {
        /// The worker.
        rank: usize,
        /// Its address.
        ip: Ipv4Addr,
        /// Why.
        what: String,
    },
    /// It refused.
    #[error("{doing}: {what}")]
    Failed {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        what: String,
    },
}

/// An aggregator's data plane. Calls may block: the server makes them off its asynchronous threads, those that change
/// something one at a time, and asks for [`DataPlane::info`] and [`DataPlane::instance`] beside them.
pub trait DataPlane: Send + Sync + 'static {
    /// What it has to give.
    fn info(&self) -> Result<PlaneInfo, PlaneError>;
    /// Removes all jobs that an earlier control plane left, and says which incarnations were used. A parameter host keeps
    /// those that still see packets, and says so in [`PlaneInfo::kept`].
    fn take_over(&self) -> Result<Vec<LastEpoch>, PlaneError>;
    /// Starts to aggregate for a job.
    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError>;
    /// Leaves an installed job only so many slots in each lane (or all that it has), before any of its workers has sent a
    /// contribution. `reason` says why as many, for people.
    fn resize(&self, job: u16, lane_slots: u32, reason: &str) -> Result<(), PlaneError>;
    /// Goes on with an installed dynamic job under another epoch, since one of its workers was replaced (ATP appendix A.3).
    /// A parameter host keeps what is summed, forgets what is not whole, and says for each lane (those of others' shards
    /// count for nothing) which chunk is the first that is not summed; where it hears from it knows. An aggregator has
    /// nothing to keep.
    fn renew(&self, job: &JobInstall) -> Result<Vec<u32>, PlaneError> {
        self.remove(job.job)?;
        self.install(job).map(|_| Vec::new())
    }
    /// Takes up the very job that a parameter host keeps from an earlier control plane: its number is none of
    /// [`PlaneInfo::kept`] any more. Where it hears from it knows.
    fn resume(&self, job: &JobInstall) -> Result<(), PlaneError> {
        let what = format!("an aggregator keeps no sums of job {}", job.job);
        Err(PlaneError::Failed { doing: "taking up an earlier control plane's job", what })
    }
    /// Stops it, without leaving anything of it. A job that is not there is no error.
    fn remove(&self, job: u16) -> Result<(), PlaneError>;
    /// Names the memory that holds the slots: another number means that their contents are lost.
    fn instance(&self) -> Result<u64, PlaneError>;
}

impl<P: DataPlane> DataPlane for std::sync::Arc<P> {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        (**self).info()
    }
    fn take_over(&self) -> Result<Vec<LastEpoch>, PlaneError> {
        (**self).take_over()
    }
    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        (**self).install(job)
    }
    fn resize(&self, job: u16, lane_slots: u32, reason: &str) -> Result<(), PlaneError> {
        (**self).resize(job, lane_slots, reason)
    }
    fn renew(&self, job: &JobInstall) -> Result<Vec<u32>, PlaneError> {
        (**self).renew(job)
    }
    fn resume(&self, job: &JobInstall) -> Result<(), PlaneError> {
        (**self).resume(job)
    }
    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        (**self).remove(job)
    }
    fn instance(&self) -> Result<u64, PlaneError> {
        (**self).instance()
    }
}

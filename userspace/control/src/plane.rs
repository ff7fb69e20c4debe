//! The interface to an aggregator's data plane, be it eBPF, a host process or a P4 switch, and to a parameter
//! host.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
pub use sumac_job::AggregatorKind as PlaneKind;
use sumac_job::{JobTerms, Mode};
use sumac_wire::{
    BLOCK_ELEMENTS, CLASSES, DEFAULT_BASE_PORT, MAX_ELEMENTS, MAX_JOBS, MAX_LANES, PAGE_ELEMENTS,
};
use thiserror::Error;

/// The instance of a data plane, and its state.
pub type PlaneReport = (u64, PlaneInfo);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneInfo {
    pub kind: PlaneKind,
    pub slots: u32,
    /// Most elements in a chunk; see [`PlaneInfo::most_elements`].
    pub max_elements: u16,
    /// The port whose MTU carries no more, for people; none: the slots hold no more.
    pub narrowest: Option<String>,
    /// UDP port of shard 0.
    pub base_port: u16,
    /// The number of shards, each on a port of its own.
    pub shards: u16,
    /// Slots of each shard that dynamic jobs share; 0: none.
    pub dynamic_slots: u32,
    /// Whether it verifies UDP checksums. Jobs of one that does not have none.
    #[serde(default = "as_before_switches")]
    pub verifies_checksums: bool,
    /// Whether it marks the sums of dynamic jobs that it clamps. To one that does not, workers send values
    /// whose sum cannot leave 32 bits.
    #[serde(default = "as_before_switches")]
    pub marks_overflow: bool,
    /// Whether the sums of static jobs may leave workers out, as far as their loss bounds allow. On a switch
    /// those of one level may.
    #[serde(default = "as_before_switches")]
    pub bounds_loss: bool,
    /// Bytes of packets that a shard's socket holds until they are read; none without sockets.
    pub socket_bytes: Option<u64>,
    /// Parameter host: the address that workers and aggregators send to, when that is not the source of its
    /// control connection.
    pub address: Option<Ipv4Addr>,
    /// Parameter host: the numbers of jobs that its control plane does not know and that still see packets.
    /// No other job gets them meanwhile.
    pub kept: Vec<u16>,
    /// The largest job number that it has.
    #[serde(default = "jobs_before")]
    pub jobs: u16,
}

impl PlaneInfo {
    /// No aggregator: the limits are those of packets.
    pub const NONE: PlaneInfo = PlaneInfo {
        kind: PlaneKind::None,
        slots: 0,
        max_elements: PAGE_ELEMENTS as u16,
        narrowest: None,
        base_port: DEFAULT_BASE_PORT,
        shards: MAX_LANES as u16 / CLASSES,
        dynamic_slots: 0,
        verifies_checksums: true,
        marks_overflow: true,
        bounds_loss: true,
        socket_bytes: None,
        address: None,
        kept: Vec::new(),
        jobs: MAX_JOBS as u16 - 1,
    };

    /// Returns the most elements in a chunk of a job of this mode. A switch adds chunks of dynamic jobs in
    /// one pass, and what its program cannot do it does not do to the packets of direct ones, which it only
    /// forwards.
    #[must_use]
    pub fn most_elements(&self, mode: Mode) -> u16 {
        let most = match (self.kind, mode) {
            (PlaneKind::P4, Mode::Dynamic) => self.max_elements.min(BLOCK_ELEMENTS as u16),
            (PlaneKind::P4, Mode::Direct) => MAX_ELEMENTS as u16,
            _ => self.max_elements,
        };
        most.min(MAX_ELEMENTS as u16)
    }
}

/// The largest job number of releases whose planes do not report it.
const fn jobs_before() -> u16 {
    63
}

/// The journals of releases without switches do not have their limits.
const fn as_before_switches() -> bool {
    true
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInstall {
    /// The source of its contributions and destination of its results.
    pub ip: Ipv4Addr,
    /// The worker's UDP port for results of shard 0.
    pub port: u16,
    /// The worker's own MAC address. Behind a router the plane needs the router's.
    pub mac: [u8; 6],
    /// The aggregator's address on the worker's control connection.
    pub local_ip: Ipv4Addr,
    /// Source ports that its results may come from ([`sumac_wire::result_paths`]).
    pub paths: u16,
}

/// A job that is to be installed on one data plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobInstall {
    /// The job. Its number is 1 to `MAX_JOBS - 1`; its epoch was never used before with this number on this
    /// plane.
    pub terms: JobTerms,
    /// Static mode: its first slot in the pool; else 0.
    pub first_slot: u32,
    /// Whether a completed slot takes the next chunk of its lane, whichever that is.
    pub stealing: bool,
    pub level: Level,
    /// The workers below this plane, by rank; racks where it is the root.
    pub workers: Vec<WorkerInstall>,
    /// The job's ranks below each of those, as bits. Empty where there is one level, or more ranks than bits.
    pub ranks: Vec<u32>,
    /// Parameter host: the workers' bits, by rank. Empty for aggregators.
    pub contributors: Vec<ContributorBits>,
    /// Parameter host: the aggregators that send to it, with their ports for shard 0; none where workers send
    /// to it. Empty for aggregators.
    pub upstream: Vec<SocketAddrV4>,
}

impl JobInstall {
    /// Static mode: its slots in the pool, all lanes together; else 0.
    #[must_use]
    pub fn pool_slots(&self) -> u32 {
        if self.terms.mode != Mode::Static {
            0
        } else {
            self.terms.slots.saturating_mul(self.terms.lanes().into())
        }
    }
}

/// A worker's bits in contributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContributorBits {
    /// Its bit at the second level: its rack's, or its own when it is beside the racks; 0 where there is one
    /// level.
    pub rack: u8,
    /// Its bit at the first level.
    pub bit: u8,
}

/// The position of a plane in a job (SwitchML section 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Level {
    #[default]
    Only,
    /// Its workers are the planes of racks.
    Root {
        /// Workers of all racks.
        contributors: u16,
    },
    /// Its sums go up to a parent, whose results go down to its workers.
    Rack {
        rack: u16,
        racks: u16,
        contributors: u16,
        /// Its parent's address and port for contributions of shard 0: the root's, or another rack's.
        parent: SocketAddrV4,
        /// Whether its workers are the planes of racks: it is in the middle of a tree. Static jobs only.
        has_racks: bool,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// The address that each rank sends to, by rank.
    pub aggregator_ips: Vec<Ipv4Addr>,
    /// The multicast group that results are sent to, if not to each worker.
    pub result_group: Option<Ipv4Addr>,
    /// The plane's source address towards each parameter host, in the order of
    /// [`JobTerms::parameter_hosts`]. Empty at a rack's plane, which sends to the root, and at a parameter
    /// host itself.
    pub host_sides: Vec<Ipv4Addr>,
}

/// The last incarnation that a plane knows of a job number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEpoch {
    pub job: u16,
    pub epoch: u16,
}

/// A running job that the coordinator knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownJob {
    pub job: u16,
    pub epoch: u16,
    pub token: u64,
    /// The incarnation that it is changing to while a worker is replaced.
    pub next_epoch: Option<u16>,
}

impl KnownJob {
    /// Whether an installed job is this one.
    #[must_use]
    pub fn is(&self, job: u16, epoch: u16, token: u64) -> bool {
        (self.job, self.token) == (job, token) && (self.epoch == epoch || self.next_epoch == Some(epoch))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenOver {
    /// The numbers of the known jobs that it still has.
    pub jobs: Vec<u16>,
    /// The incarnations that its slots remember.
    pub last_epochs: Vec<LastEpoch>,
}

#[derive(Debug, Error)]
pub enum PlaneError {
    /// It is not there: detached, or its process is gone.
    #[error("data plane unavailable: {what}")]
    Unavailable { what: String },
    #[error("no way to rank {rank} at {ip}: {what}")]
    NoWay { rank: usize, ip: Ipv4Addr, what: String },
    #[error("{doing}: {what}")]
    Failed { doing: &'static str, what: String },
}

/// An aggregator's data plane. Calls may block: the server makes them off its asynchronous threads, those
/// that change something one at a time, and asks for [`DataPlane::info`] and [`DataPlane::instance`] beside
/// them.
pub trait DataPlane: Send + Sync + 'static {
    fn info(&self) -> Result<PlaneInfo, PlaneError>;
    /// Removes all jobs of earlier control planes but those that are `known`. A parameter host keeps those
    /// that still see packets as well, and lists them in [`PlaneInfo::kept`].
    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError>;
    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError>;
    /// Leaves an installed static job only so many slots in each lane (or all that it has), before any of its
    /// workers has sent a contribution. `reason` explains the number to people.
    fn resize(&self, job: u16, slots: u32, reason: &str) -> Result<(), PlaneError>;
    /// Continues an installed dynamic job under another epoch, since one of its workers was replaced (ATP
    /// appendix A.3). A parameter host keeps complete sums, drops partial ones, and returns for each lane
    /// (those of others' shards do not count) the first chunk that is not summed; its upstream stays. An
    /// aggregator has nothing to keep.
    fn renew(&self, job: &JobInstall) -> Result<Vec<u32>, PlaneError> {
        self.remove(job.terms.job)?;
        self.install(job).map(|_| Vec::new())
    }
    /// Removes a job entirely. A job that is not there is no error.
    fn remove(&self, job: u16) -> Result<(), PlaneError>;
    /// Names the memory that holds the slots: another number means that their contents are lost.
    fn instance(&self) -> Result<u64, PlaneError>;
    /// Whether its threads in this process run; for systemd's watchdog.
    fn is_alive(&self) -> bool {
        true
    }
}

/// A control plane without an aggregator: workers of dynamic jobs send to their parameter hosts. Limits
/// nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDataPlane;

impl DataPlane for NoDataPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        Ok(PlaneInfo::NONE)
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        Ok(TakenOver { jobs: known.iter().map(|known| known.job).collect(), last_epochs: Vec::new() })
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        let aggregator_ips = vec![Ipv4Addr::UNSPECIFIED; job.workers.len()];
        Ok(Installed { aggregator_ips, ..Installed::default() })
    }

    fn resize(&self, _: u16, _: u32, _: &str) -> Result<(), PlaneError> {
        Ok(())
    }

    fn remove(&self, _: u16) -> Result<(), PlaneError> {
        Ok(())
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        Ok(0)
    }
}

pub(crate) fn report<P: DataPlane>(plane: &P) -> Result<PlaneReport, PlaneError> {
    Ok((plane.instance()?, plane.info()?))
}

/// Calls into a data plane, off the asynchronous threads. The error is for people.
pub(crate) async fn blocking<P: DataPlane, T: Send + 'static>(
    plane: &Arc<P>,
    call: impl FnOnce(&P) -> Result<T, PlaneError> + Send + 'static,
) -> Result<T, String> {
    let plane = plane.clone();
    match tokio::task::spawn_blocking(move || call(&plane)).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(error) => Err(format!("the call into the data plane ended abnormally: {error}")),
    }
}

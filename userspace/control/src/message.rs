//! The messages of the control channel, one enum for each direction.
//!
//! The server sends `Hello`. Then a worker sends `Hello`, and `Join` or `Reconnect`; a rack agent or
//! parameter host `Hello`, `Enter` and `TakenOver`. Both sides send `Alive` at least twice a second.

use std::{net::Ipv4Addr, time::Duration};

use serde::{Deserialize, Serialize};
use sumac_job::JobSpec;

use crate::{
    JobFailure, Refusal, Secret,
    coordinator::{Grant, MemberId, Outcome},
    events::{Event, Post},
    plane::{DataPlane, Installed, JobInstall, KnownJob, PlaneError, PlaneInfo, PlaneReport, TakenOver},
};

/// The longest that a join may wait for the other ranks.
const MAX_JOIN_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// The version of the control protocol that this build speaks.
pub const PROTOCOL_VERSION: u32 = 24;

/// The first message in each direction, the server's before the client's. Its form never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    /// The release, for people.
    pub build: String,
}

impl Hello {
    pub fn own() -> Hello {
        Hello { protocol: PROTOCOL_VERSION, build: env!("CARGO_PKG_VERSION").into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerHost {
    /// The source address of its data packets; unspecified: that of the control connection.
    pub data_ip: Ipv4Addr,
    /// Its UDP port for results of shard 0.
    pub data_port: u16,
    /// Its MAC address; zeros with the UDP backend.
    pub mac: [u8; 6],
    /// The most 32-bit words that its packets carry.
    pub max_elements: u16,
    pub max_shards: u16,
    pub checksum: bool,
    /// Source ports that its packets leave by, and that its results may come from.
    pub paths: u16,
    /// Whether UDP sockets take the job's packets, or can in place of AF_XDP, at the same port.
    pub has_udp: bool,
    /// The user whose trainer has opened the job, as its daemon knows it.
    pub user: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinRequest {
    pub spec: JobSpec,
    pub host: WorkerHost,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
}

/// A try to join. A later one with the same number is of the member that the earlier one has made, whose
/// answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// A random number.
    pub join: u64,
    /// Tries before this one.
    pub earlier: u32,
}

impl JoinRequest {
    /// [`join`](crate::join) numbers its attempts.
    pub fn new(spec: JobSpec, host: WorkerHost) -> JoinRequest {
        JoinRequest { spec, host, attempt: None }
    }

    /// Timeout for the aggregator and for the other ranks.
    pub(crate) fn timeout(&self) -> Duration {
        let asked = self.spec.timeout_s.map(Duration::try_from_secs_f64);
        asked.map_or(DEFAULT_JOIN_TIMEOUT, |asked| asked.unwrap_or(MAX_JOIN_TIMEOUT)).min(MAX_JOIN_TIMEOUT)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconnect {
    pub secret: Secret,
    pub job: String,
    pub rank: u16,
    /// The membership, from `Joined`.
    pub session: MemberId,
    pub received: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enter {
    pub secret: Secret,
    pub name: String,
    pub is_parameter_host: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ClientMessage {
    Hello(Hello),
    /// The sender is alive, and has received so many events.
    Alive {
        received: u64,
    },
    Join {
        secret: Secret,
        #[serde(flatten)]
        request: Box<JoinRequest>,
    },
    Reconnect(Reconnect),
    /// A member's reports; `first` counts the member's earlier ones.
    Posts {
        first: u64,
        posts: Vec<Post>,
    },
    Leave(Outcome),
    /// A rack agent or parameter host offers itself.
    Enter(Enter),
    /// It has removed all jobs but those that the coordinator knows.
    TakenOver {
        report: PlaneReport,
        jobs: TakenOver,
    },
    /// The state of its data plane, or the reason that the plane does not answer.
    Report(Result<PlaneReport, String>),
    /// The outcome of the oldest command that has none yet.
    Completed(Result<Completion, String>),
    /// This connection, of a rack that has entered, is for a worker or rack below it, whose messages follow.
    Relay {
        rack: Enter,
        /// The worker's address, and the rack's own towards it.
        ends: [Ipv4Addr; 2],
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ServerMessage {
    Hello(Hello),
    /// The sender is alive, and has received so many posts.
    Alive {
        received: u64,
    },
    Joined {
        session: MemberId,
    },
    Status(Status),
    /// An event; its `number` counts the job's events from 0.
    Event {
        number: u64,
        event: Event,
    },
    /// The connection is refused, for a reason that another attempt does not mend.
    Denied(Denial),
    /// It ends, for a reason that may be gone at another attempt.
    Unavailable(String),
    /// The jobs that a rack agent or parameter host is to keep.
    Known(Vec<KnownJob>),
    Command(PlaneCommand),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Status {
    /// These ranks have not joined yet; none: the job is being installed.
    Waiting(Vec<u16>),
    Running {
        grant: Box<Grant>,
        /// Ranks that have left because their work is done.
        departed: Vec<u16>,
    },
    Over(End),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Refused(Refusal),
    Failed(JobFailure),
    /// All have done their work; or this worker is no member any more.
    Finished,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    pub kind: DenialKind,
    pub message: String,
}

impl Denial {
    pub(crate) fn new(kind: DenialKind, message: impl Into<String>) -> Denial {
        Denial { kind, message: message.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DenialKind {
    Secret,
    Version,
    Request,
}

/// A command for a data plane; see [`DataPlane`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PlaneCommand {
    Install(Box<JobInstall>),
    Renew(Box<JobInstall>),
    Resize { job: u16, slots: u32, reason: String },
    Remove { job: u16 },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Completion {
    Installed(Installed, PlaneInfo),
    Renewed { resume: Vec<u32> },
    Done,
}

impl PlaneCommand {
    pub(crate) fn execute<P: DataPlane>(self, plane: &P) -> Result<Completion, PlaneError> {
        match self {
            PlaneCommand::Install(job) => {
                let installed = plane.install(&job)?;
                Ok(Completion::Installed(installed, plane.info()?))
            }
            PlaneCommand::Renew(job) => plane.renew(&job).map(|resume| Completion::Renewed { resume }),
            PlaneCommand::Resize { job, slots, reason } => {
                plane.resize(job, slots, &reason).map(|()| Completion::Done)
            }
            PlaneCommand::Remove { job } => plane.remove(job).map(|()| Completion::Done),
        }
    }
}

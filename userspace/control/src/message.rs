//! The messages of the control channel, one enum for each direction.
//!
//! A worker sends `Hello`, then `Join` or `Reconnect`; a rack agent or parameter host sends `Hello`, `Enter` and
//! `TakenOver`. Both sides send `Alive` at least twice a second.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use sumac_job::JobSpec;

use crate::{
    JobFailure, Secret,
    coordinator::{Grant, MemberId, Outcome},
    events::{Event, Post},
    plane::{Installed, JobInstall, KnownJob, PlaneInfo, TakenOver},
    refusal::Refused,
};

/// The version of the control protocol that this build speaks.
pub const PROTOCOL_VERSION: u32 = 6;

/// The first message of each stream. Its form never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// See [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// The release, for people.
    pub build: String,
}

impl Hello {
    /// This build's.
    pub fn own() -> Hello {
        Hello { protocol: PROTOCOL_VERSION, build: env!("CARGO_PKG_VERSION").into() }
    }
}

/// The properties of a worker's host.
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
    /// The most shards that it has.
    pub max_shards: u16,
    /// Whether it wants UDP checksums.
    pub checksum: bool,
}

/// A worker's request to join a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// The job's secret.
    pub secret: Secret,
    /// The job as the worker asks for it.
    pub spec: JobSpec,
    /// The worker's host.
    pub host: WorkerHost,
}

/// A member's request to go on after its stream ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconnect {
    /// The job's secret.
    pub secret: Secret,
    /// The job's name.
    pub job: String,
    /// The member's rank.
    pub rank: u16,
    /// The membership, from `Joined`.
    pub session: MemberId,
    /// The number of events that it has received.
    pub received: u64,
}

/// A message to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ClientMessage {
    /// See [`Hello`].
    Hello(Hello),
    /// The sender is alive, and has received so many events.
    Alive {
        /// Events received.
        received: u64,
    },
    /// A worker joins a job.
    Join(Box<Join>),
    /// A member goes on.
    Reconnect(Reconnect),
    /// A member's reports; `first` counts the member's earlier ones.
    Posts {
        /// The number of the first.
        first: u64,
        /// The reports.
        posts: Vec<Post>,
    },
    /// A member leaves.
    Leave(Outcome),
    /// A rack agent or parameter host offers itself.
    Enter {
        /// The racks' secret.
        secret: Secret,
        /// Its name, for people.
        name: String,
        /// Whether it is a parameter host.
        is_parameter_host: bool,
    },
    /// It has removed all jobs but those that the coordinator knows.
    TakenOver {
        /// The state of its data plane.
        report: PlaneReport,
        /// The jobs that are left.
        jobs: TakenOver,
    },
    /// The state of its data plane, or the reason that the plane does not answer.
    Report(Result<PlaneReport, String>),
    /// The outcome of a command.
    Completed {
        /// The command's number.
        command: u64,
        /// The outcome.
        result: Result<Completion, String>,
    },
    /// A message of a worker below the rack; `None`: the worker's stream has ended.
    Relay {
        /// The worker's stream.
        stream: u64,
        /// The worker's address, and the rack's own towards it.
        ends: [Ipv4Addr; 2],
        /// The message.
        message: Option<Box<ClientMessage>>,
    },
}

/// A message of the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ServerMessage {
    /// The sender is alive, and has received so many posts.
    Alive {
        /// Posts received.
        received: u64,
    },
    /// The worker is a member.
    Joined {
        /// Names the membership.
        session: MemberId,
    },
    /// The membership's state.
    Status(Status),
    /// An event; its `number` counts the job's events from 0.
    Event {
        /// Its number.
        number: u64,
        /// The event.
        event: Event,
    },
    /// The stream is refused, for a reason that another attempt does not mend.
    Denied(Denial),
    /// The jobs that a rack agent or parameter host is to keep.
    Known(Vec<KnownJob>),
    /// A command for a data plane.
    Command {
        /// Its number.
        number: u64,
        /// The command.
        command: PlaneCommand,
    },
    /// A message for a worker below the rack; `None`: its stream ends.
    Relay {
        /// The worker's stream.
        stream: u64,
        /// The message.
        message: Option<Box<ServerMessage>>,
    },
}

/// The state of a membership.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Status {
    /// These ranks have not joined yet; none: the job is being installed.
    Waiting(Vec<u16>),
    /// The job runs.
    Running {
        /// The member's part.
        grant: Box<Grant>,
        /// Ranks that have left because their work is done.
        departed: Vec<u16>,
    },
    /// The job does not start.
    Refused(Refused),
    /// The job has ended.
    Failed(JobFailure),
    /// The member has left.
    Left,
}

/// The reason that a stream is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// For programs.
    pub kind: DenialKind,
    /// For people.
    pub message: String,
}

/// The subject of a [`Denial`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DenialKind {
    /// The secret is another than the coordinator's.
    Secret,
    /// The other side is of another release.
    Version,
    /// The job has ended, or goes on with another worker in this one's slot.
    Over,
    /// The request is not understood, or cannot be served here.
    Request,
}

/// The state of a data plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneReport {
    /// Its properties.
    pub info: PlaneInfo,
    /// See [`crate::DataPlane::instance`].
    pub instance: u64,
}

/// A command for the data plane of a rack or parameter host; see [`crate::DataPlane`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "they are the methods of DataPlane")]
pub enum PlaneCommand {
    Install(Box<JobInstall>),
    Renew(Box<JobInstall>),
    Resize { job: u16, slots: u32, reason: String },
    Remove { job: u16 },
}

/// The outcome of a [`PlaneCommand`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "one for each command")]
pub enum Completion {
    Installed(Installed),
    Renewed { resume: Vec<u32> },
    Done,
}

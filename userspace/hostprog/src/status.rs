//! What is attached, as the kernel sees it: for people and, through `serde`, for programs.

use std::{collections::BTreeMap, io, net::Ipv4Addr, path::Path};

use serde::Serialize;
use sumac_wire::tables::{HostJobEntry, QueueCounters, job_flag};
use thiserror::Error;

use crate::{
    attached::{self, Attached, MapError},
    mode::{BoundMode, Mode},
    pins::{self, PinDir},
    steer::report::Steering,
};

/// Why the status cannot be told.
#[derive(Debug, Error)]
pub enum StatusError {
    /// /proc.
    #[error("could not tell this network namespace: {0}; is /proc mounted?")]
    Namespace(#[source] io::Error),
    /// The directory of pins.
    #[error("could not list {path}: {source}; are you root?")]
    List {
        /// The directory.
        path: std::path::PathBuf,
        /// What the file system said.
        source: io::Error,
    },
}

/// Everything of Sumac's that is attached on this host.
#[derive(Debug, Serialize)]
pub struct Status {
    /// One for each interface that has pins.
    pub interfaces: Vec<InterfaceStatus>,
}

/// One interface.
#[derive(Debug, Serialize)]
pub struct InterfaceStatus {
    /// Its name.
    pub interface: String,
    /// The inode of its network namespace.
    pub namespace: u64,
    /// Where its pins are.
    pub pins: String,
    /// What is attached, or why that cannot be told.
    #[serde(flatten)]
    pub state: State,
}

/// What became of an interface's program.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum State {
    /// It is attached and was asked.
    Attached(Box<Details>),
    /// It is in another network namespace: pinned there, by its program's number.
    ElsewhereAttached {
        /// The kernel's number of the program.
        program_id: u32,
    },
    /// Its pins are there and it is not.
    Broken {
        /// What is wrong, and what to do.
        error: String,
    },
}

/// An attached program.
#[derive(Debug, Serialize)]
pub struct Details {
    /// The kernel's number of the program.
    pub program_id: u32,
    /// Where it really runs.
    pub mode: BoundMode,
    /// The mode that was asked for.
    pub requested_mode: Mode,
    /// Whether it runs in generic mode though that was not asked for.
    pub fell_back: bool,
    /// The interface's MTU in bytes.
    pub mtu: u32,
    /// UDP destination port of shard 0.
    pub base_port: u16,
    /// Shards, each with a port.
    pub shards: u16,
    /// What leads each shard's packets to its queue.
    pub steering: Steering,
    /// Each receive queue.
    pub queues: Vec<QueueStatus>,
    /// Frames by what became of them; those that never happened are left out.
    pub counters: BTreeMap<&'static str, u64>,
    /// The jobs whose results are let in.
    pub jobs: Vec<JobStatus>,
}

/// One receive queue, in frames.
#[derive(Debug, Serialize)]
pub struct QueueStatus {
    /// Its number.
    pub queue: u32,
    /// Whether a socket was asked for on it.
    pub selected: bool,
    /// Not Sumac's.
    pub foreign: u64,
    /// Handed to the socket.
    pub steered: u64,
    /// Sumac's, without a socket to take them.
    pub no_socket: u64,
    /// Sumac's by their port, and refused.
    pub refused: u64,
}

/// One job in the program's table. Its token is not shown.
#[derive(Debug, Serialize)]
pub struct JobStatus {
    /// Its number.
    pub job: u16,
    /// Its incarnation.
    pub epoch: u16,
    /// Its workers.
    pub world: u16,
    /// Most elements in a chunk.
    pub elements: u16,
    /// Where results must come from; none: there is no aggregator.
    pub aggregator: Option<Ipv4Addr>,
    /// The job's parameter hosts, which results may come from too.
    pub hosts: Vec<Ipv4Addr>,
    /// Whether this host is one of them, and takes contributions.
    pub parameter: bool,
    /// Whether results must carry a valid checksum.
    pub checksum: bool,
}

/// Looks at everything that is pinned below `pin_root`.
///
/// # Errors
/// When the directory of pins cannot be read; trouble with one interface is told in its place.
pub fn status(pin_root: impl AsRef<Path>) -> Result<Status, StatusError> {
    let root = pin_root.as_ref();
    let failed = |source| StatusError::List { path: pins::host_root(root), source };
    let here = pins::current_namespace().map_err(StatusError::Namespace)?;
    let interfaces = PinDir::list(root).map_err(failed)?;
    let interfaces = interfaces.into_iter().map(|pins| interface(pins, here)).collect();
    Ok(Status { interfaces })
}

fn interface(pins: PinDir, here: u64) -> InterfaceStatus {
    let (interface, namespace) = (pins.interface().to_owned(), pins.namespace());
    let path = pins.path().display().to_string();
    let state = if namespace == here { attached_here(pins) } else { attached_elsewhere(&pins) };
    InterfaceStatus { interface, namespace, pins: path, state }
}

fn attached_here(pins: PinDir) -> State {
    let details = Attached::open_pins(pins)
        .map_err(|error| error.to_string())
        .and_then(|attached| details(&attached).map_err(|error| error.to_string()));
    match details {
        Ok(details) => State::Attached(Box::new(details)),
        Err(error) => State::Broken { error },
    }
}

fn attached_elsewhere(pins: &PinDir) -> State {
    match attached::linked_program(pins) {
        Ok(program_id) => State::ElsewhereAttached { program_id },
        Err(error) => State::Broken { error: error.to_string() },
    }
}

/// All that an attached program tells.
///
/// # Errors
/// When the kernel refuses to read its maps.
pub fn details(attached: &Attached) -> Result<Details, MapError> {
    let (base_port, shards) = attached.ports();
    let selected = attached.queues();
    let requested_mode = attached.requested_mode();
    let mode = attached.mode();
    Ok(Details {
        program_id: attached.program_id(),
        mode,
        requested_mode,
        fell_back: mode == BoundMode::Generic && requested_mode != Mode::Generic,
        mtu: attached.interface().mtu,
        base_port,
        shards,
        steering: attached.steering(),
        queues: attached
            .queue_counters()?
            .into_iter()
            .map(|(queue, counters)| QueueStatus::new(queue, selected.contains(&queue), counters))
            .collect(),
        counters: attached
            .counters()?
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| (reason.name(), count))
            .collect(),
        jobs: attached.jobs()?.into_iter().map(|(job, entry)| JobStatus::new(job, entry)).collect(),
    })
}

impl QueueStatus {
    fn new(queue: u32, selected: bool, counters: QueueCounters) -> Self {
        let QueueCounters { foreign, steered, no_socket, refused } = counters;
        Self { queue, selected, foreign, steered, no_socket, refused }
    }
}

impl JobStatus {
    fn new(job: u16, entry: HostJobEntry) -> Self {
        Self {
            job,
            epoch: entry.epoch,
            world: entry.world,
            elements: entry.elements,
            aggregator: address(entry.aggregator_ip),
            hosts: entry.host_ips.into_iter().filter_map(address).collect(),
            parameter: entry.flags & job_flag::PARAMETER != 0,
            checksum: entry.flags & job_flag::CHECKSUM != 0,
        }
    }
}

/// An address of the table; zero is none.
fn address(bits: u32) -> Option<Ipv4Addr> {
    (bits != 0).then(|| Ipv4Addr::from_bits(bits))
}

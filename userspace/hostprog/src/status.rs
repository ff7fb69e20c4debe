//! The host programs that are attached, by the kernel's account: as text, and through `serde`.

use std::{collections::BTreeMap, io, net::Ipv4Addr, path::Path};

use serde::Serialize;
use sumac_loader::{
    BoundXdpMode, namespace,
    pins::{LINK, permission},
};
use sumac_netutil::steer::report::Steering;
use sumac_wire::tables::{HostJobEntry, QueueCounters, job_flag};
use thiserror::Error;

use crate::{
    attached::{Attached, MapError},
    mode::HostMode,
    pins::{self, HostPins},
};

#[derive(Debug, Error)]
pub enum StatusError {
    #[error("could not identify this network namespace: {0}; is /proc mounted?")]
    Namespace(#[source] io::Error),
    #[error("could not list {path}: {source}{}", permission(.source))]
    List { path: std::path::PathBuf, source: io::Error },
}

/// Everything of Sumac's that is attached on this host.
#[derive(Debug, Serialize)]
pub struct Status {
    pub interfaces: Vec<InterfaceStatus>,
}

/// An interface that has pins.
#[derive(Debug, Serialize)]
pub struct InterfaceStatus {
    pub interface: String,
    /// The inode of its network namespace.
    pub namespace: u64,
    pub pins: String,
    #[serde(flatten)]
    pub state: State,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum State {
    Attached(Box<Details>),
    /// The program is in another network namespace; only its number is known here.
    ElsewhereAttached {
        program_id: u32,
    },
    /// The pins are there and the program is not attached.
    Broken {
        error: String,
    },
}

#[derive(Debug, Serialize)]
pub struct Details {
    pub program_id: u32,
    pub mode: BoundXdpMode,
    pub requested_mode: HostMode,
    /// Whether it runs in generic mode though another was asked for.
    pub fell_back: bool,
    pub mtu: u32,
    pub base_port: u16,
    pub shards: u16,
    pub steering: Steering,
    pub queues: Vec<QueueStatus>,
    /// Frames by reason; those never counted are left out.
    pub counters: BTreeMap<&'static str, u64>,
    pub jobs: Vec<JobStatus>,
}

/// One receive queue, in frames.
#[derive(Debug, Serialize)]
pub struct QueueStatus {
    pub queue: u32,
    /// Whether a socket was asked for on it.
    pub selected: bool,
    pub foreign: u64,
    /// Redirected to the socket.
    pub steered: u64,
    /// Sumac's, on a queue without a socket.
    pub no_socket: u64,
    /// Sumac's by their port, and refused.
    pub refused: u64,
}

/// One job in the program's table, without its token.
#[derive(Debug, Serialize)]
pub struct JobStatus {
    pub job: u16,
    pub epoch: u16,
    pub world: u16,
    pub elements: u16,
    /// The source of results; `None` without an aggregator.
    pub aggregator: Option<Ipv4Addr>,
    /// The job's parameter hosts, from which results may come too.
    pub hosts: Vec<Ipv4Addr>,
    /// Whether this host is one of them, and takes contributions.
    pub parameter: bool,
    /// Whether results must carry a valid checksum.
    pub checksum: bool,
}

/// Examines everything that is pinned below `pin_root`.
///
/// # Errors
/// When the directory of pins cannot be read; an error of one interface is its [`State::Broken`].
pub fn status(pin_root: impl AsRef<Path>) -> Result<Status, StatusError> {
    let root = pin_root.as_ref();
    let failed = |source| StatusError::List { path: pins::host_root(root), source };
    let here = namespace::current().map_err(StatusError::Namespace)?;
    let interfaces = HostPins::list(root).map_err(failed)?;
    let interfaces = interfaces.into_iter().map(|pins| interface(pins, here)).collect();
    Ok(Status { interfaces })
}

fn interface(pins: HostPins, here: u64) -> InterfaceStatus {
    let (interface, namespace) = (pins.interface.clone(), pins.directory.namespace());
    let path = pins.directory.path().display().to_string();
    let state = if namespace == here { attached_here(pins) } else { attached_elsewhere(&pins) };
    InterfaceStatus { interface, namespace, pins: path, state }
}

fn attached_here(pins: HostPins) -> State {
    let details = Attached::open_settled(pins)
        .map_err(|error| error.to_string())
        .and_then(|attached| details(&attached).map_err(|error| error.to_string()));
    match details {
        Ok(details) => State::Attached(Box::new(details)),
        Err(error) => State::Broken { error },
    }
}

fn attached_elsewhere(pins: &HostPins) -> State {
    match pins.directory.linked_program(LINK) {
        Ok(program_id) => State::ElsewhereAttached { program_id },
        Err(error) => State::Broken { error: error.to_string() },
    }
}

pub fn details(attached: &Attached) -> Result<Details, MapError> {
    let (base_port, shards) = attached.ports();
    let selected = attached.queues();
    let queues = attached.queue_counters()?.into_iter();
    let counters = attached.counters()?.into_iter().filter(|(_, count)| *count > 0);
    Ok(Details {
        program_id: attached.program_id(),
        mode: attached.mode(),
        requested_mode: attached.requested_mode(),
        fell_back: attached.fell_back(),
        mtu: attached.interface().mtu,
        base_port,
        shards,
        steering: attached.steering(),
        queues: queues
            .map(|(queue, counters)| QueueStatus::new(queue, selected.contains(&queue), counters))
            .collect(),
        counters: counters.map(|(reason, count)| (reason.name(), count)).collect(),
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
        let address = |bits: u32| (bits != 0).then(|| Ipv4Addr::from_bits(bits));
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

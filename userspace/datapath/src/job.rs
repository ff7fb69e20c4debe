//! Jobs as the data path installs them, its errors and its events.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use sumac_host::{FragmentKey, JobId};
use sumac_job::PathMeasure;
use sumac_parameter::{HostError, HostJob};
use sumac_transport::{
    Completion, JobError, JobParams, Operation, ParamError, PeerId, PeerRole, PeerTable, SubmitError, Time,
    Transmit,
};

use super::frame_io::{Outgoing, Peer};
use super::groups::ResultGroup;

#[derive(Clone, Debug, Default)]
pub struct WorkerJob {
    pub id: JobId,
    /// The lanes by number, all of the same job. One may measure the path.
    pub lanes: Vec<JobParams>,
    /// The aggregator; a dynamic job may have none.
    pub peer: Option<Peer>,
    /// The parameter hosts of a dynamic job: shard `s` has the one with number `s % hosts`.
    pub hosts: Vec<Peer>,
    /// The workers of a direct job, by rank.
    pub workers: Vec<Peer>,
    /// The first chunk of each lane, for a worker that replaces another one; else empty.
    pub resume: Vec<u32>,
    /// Whether its packets are those of the UDP sockets beside AF_XDP, where there are some.
    pub over_udp: bool,
    /// The multicast group of its results, if they are not sent to each worker.
    pub group: Option<ResultGroup>,
}

impl WorkerJob {
    /// Whether it measures UDP, for a choice between it and AF_XDP.
    pub(super) fn is_trial(&self) -> bool {
        self.over_udp && self.lanes.iter().any(|lane| lane.measure)
    }
}

/// A job that this host is a parameter host of.
#[derive(Clone, Debug)]
pub struct ParameterJob {
    pub job: HostJob,
    /// One peer for each address of a worker or an aggregator.
    pub peers: Vec<Peer>,
}

/// The peers of a worker's job: the engines' table, and the addresses of packets to them.
pub(super) struct JobPeers {
    table: PeerTable,
    /// By the peer's id.
    addresses: Vec<Peer>,
}

impl JobPeers {
    pub(super) fn new(
        aggregator: Option<Peer>,
        hosts: Vec<Peer>,
        workers: Vec<Peer>,
        lane: &JobParams,
    ) -> Result<JobPeers, InstallError> {
        let job = lane.job;
        let address = |peer: &Peer| SocketAddrV4::new(peer.ip, peer.base_port);
        match (&lane.direct, &lane.dynamic) {
            (Some(_), _) => {
                let peer = |peer| sumac_transport::Peer { role: PeerRole::Worker, address: address(peer) };
                return Ok(JobPeers { table: PeerTable::new(workers.iter().map(peer)), addresses: workers });
            }
            (None, Some(_)) if hosts.is_empty() => {
                return Err(InstallError::NoPeer { job, peer: "parameter host" });
            }
            (None, None) if aggregator.is_none() => {
                return Err(InstallError::NoPeer { job, peer: "aggregator" });
            }
            _ => {}
        }
        let table = PeerTable::of(aggregator.as_ref().map(address), hosts.iter().map(address));
        Ok(JobPeers { table, addresses: aggregator.into_iter().chain(hosts).collect() })
    }

    pub(super) fn table(&self) -> &PeerTable {
        &self.table
    }

    pub(super) fn address(&self, packet: &Transmit) -> Option<Outgoing> {
        let peer = self.addresses.get(usize::from(packet.to.0))?;
        Some(Outgoing {
            len: packet.len,
            to: SocketAddrV4::new(peer.ip, peer.base_port.wrapping_add(packet.port_offset)),
            mac: peer.mac,
            path: packet.path,
            dscp_ecn: packet.dscp_ecn,
            checksum: peer.checksum,
        })
    }

    pub(super) fn find(&self, ip: Ipv4Addr) -> Option<PeerId> {
        self.table.find(ip)
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InstallError {
    #[error(transparent)]
    Params(#[from] ParamError),
    #[error(transparent)]
    ParameterHost(#[from] HostError),
    #[error("the {given} lanes of job number {job} are not numbered from 0, or not of one job")]
    Lanes { job: u16, given: usize },
    #[error("job {job} of this host is not open")]
    UnknownJob { job: JobId },
    #[error("job number {job} has no {peer}; open it again, and see the control plane's log")]
    NoPeer { job: u16, peer: &'static str },
    #[error("no Ethernet address is known for {ip}; see that it answers ARP, or that there is a route to it")]
    NoAddress { ip: Ipv4Addr },
    #[error(
        "job {job} of this host is open already, or has the number and token of one that is; end it first"
    )]
    InUse { job: JobId },
    #[error(
        "packets of {needed} bytes exceed this host's {capacity}; choose chunks of at most {elements} \
        elements"
    )]
    PacketTooLong { needed: usize, capacity: usize, elements: usize },
    #[error(
        "the job's packets come in {asked} shards, this host listens to {given}; set `shards = {asked}` in \
        its daemon's configuration"
    )]
    Shards { asked: u16, given: u16 },
    #[error(
        "cannot join {group}, which results are sent to: {error}; give `address` in the daemon's \
        configuration an address of the interface towards the aggregator"
    )]
    Group { group: Ipv4Addr, error: String },
    #[error("the data path has stopped; restart the daemon and see its log")]
    Stopped,
}

#[derive(Debug)]
pub enum Event {
    /// The path is measured; the job waits for [`super::Datapath::start_job`].
    JobMeasured {
        job: JobId,
        measure: PathMeasure,
    },
    JobReady {
        job: JobId,
    },
    /// The job has ended in all lanes. Each of its operations completes with an error.
    JobFailed {
        job: JobId,
        error: JobError,
    },
    /// An operation completed in a lane, with or without an error. Returns its buffer.
    Completed {
        job: JobId,
        lane: u16,
        id: FragmentKey,
        completion: Completion,
        /// The end of the round in which the thread took it: its first packets have left.
        sent: Time,
    },
    Rejected {
        job: JobId,
        lane: u16,
        id: FragmentKey,
        error: Rejection,
        operation: Operation,
    },
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rejection {
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error("job {job} of this host is not open")]
    UnknownJob { job: JobId },
}

/// Receives events on the data path's threads. It must not wait for the data path.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

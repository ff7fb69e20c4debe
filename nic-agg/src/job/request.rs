//! The records of a job that is to be added to an aggregator.

use std::net::Ipv4Addr;

use sumac_wire::tables::WorkerEntry;

/// A worker, root or parameter host, with the link-layer addresses of the next hop towards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewWorker {
    /// Its address; a worker's contributions must come from it.
    pub ip: Ipv4Addr,
    /// Its UDP port for shard 0.
    pub port: u16,
    /// Its MAC address, or its router's.
    pub mac: [u8; 6],
    /// The aggregator's interface towards it.
    pub ifindex: u32,
    /// The aggregator's address on that interface, to which its packets are sent.
    pub aggregator_ip: Ipv4Addr,
    /// The MAC address of that interface.
    pub aggregator_mac: [u8; 6],
}

impl NewWorker {
    pub(super) fn entry(&self) -> WorkerEntry {
        WorkerEntry {
            ip: self.ip.to_bits(),
            aggregator_ip: self.aggregator_ip.to_bits(),
            ifindex: self.ifindex,
            port: self.port,
            mac: self.mac,
            aggregator_mac: self.aggregator_mac,
            ..WorkerEntry::default()
        }
    }
}

/// The level of this aggregator in the job (SwitchML section 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// It is the only one.
    #[default]
    Only,
    /// Its workers are the aggregators of racks.
    Root {
        /// Workers of all racks.
        contributors: u16,
    },
    /// Its sums go to a root, whose results go to its workers.
    Rack {
        /// Its number among the root's racks, from 0.
        rack: u16,
        racks: u16,
        /// Workers of all racks.
        contributors: u16,
        /// The root, with its port for contributions of shard 0.
        parent: NewWorker,
    },
}

/// The part of a dynamic job (ATP), which has no slots of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDynamic {
    /// Slots of each shard that its chunks may take, from the first shared one on.
    pub slots: u32,
    /// Its parameter hosts, with their ports for contributions of shard 0; shard s belongs to the one with the number s
    /// modulo theirs. Below a root nothing is sent to them.
    pub hosts: Vec<NewWorker>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// The job's number: 1 to `MAX_JOBS - 1`.
    pub job: u16,
    /// The incarnation: never used before with this number, unless by the same dynamic job.
    pub epoch: u16,
    /// The secret number in all packets of the job.
    pub token: u64,
    /// `None` for a static job; for a dynamic one the next four fields are unused.
    pub dynamic: Option<NewDynamic>,
    /// The first slot in the pool; `None`: the first gap that is large enough.
    pub first_slot: Option<u32>,
    /// The slots of all lanes.
    pub slots: u32,
    /// The slots of one lane, a power of two.
    pub lane_slots: u32,
    /// Whether a completed slot takes the next chunk of its lane, whatever its number.
    pub stealing: bool,
    /// The shards, each with a port of its own; lane l belongs to shard l mod this.
    pub shards: u16,
    pub level: Level,
    /// Most elements in a chunk.
    pub elements: u16,
    /// Whether packets carry UDP checksums, which are then verified.
    pub checksum: bool,
    /// The multicast group for results to workers that share an interface; `None`: one is chosen when some do. Each other
    /// worker gets a copy of its own.
    pub group: Option<Ipv4Addr>,
    /// The workers, by rank.
    pub workers: Vec<NewWorker>,
}

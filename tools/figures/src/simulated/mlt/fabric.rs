//! The network of MLT's simulations (section 6.2.1), and the hosts of the job.

use sumac_sim::{
    address::NodeId,
    class_queues::Red,
    events::Nanos,
    fabric::{Fabric, FabricSpec},
    link::LinkSpec,
};

/// Bits per second of all links.
pub const RATE: u64 = 100_000_000_000;
/// One way: 24 us for the round trip of a full frame over four links.
const DELAY: Nanos = 2_870;
/// Bytes of a port.
pub const BUFFER: u32 = 512 << 10;
/// DCTCP's marking threshold.
const MARK: u64 = 65 * 1_538;
pub const HOSTS_PER_RACK: usize = 16;
const SPINES: usize = 4;
/// Parallel links from each leaf to each spine: a leaf has 16 links down and 4 up.
const LINKS_PER_SPINE: usize = 1;
/// Bytes that wait for a host's cable before it stops sending: 64 frames.
pub const RING: u64 = 64 * 1_570;

/// The queues of switches' ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// One queue that marks, for DCTCP.
    Marking,
    /// One for data, and one for control packets.
    Plain,
    /// One for each class, with the thresholds of `sumac qos show`.
    Classes,
}

/// The network with so many racks.
pub fn spec(racks: usize, queues: Queues) -> FabricSpec {
    let port = LinkSpec { queue: BUFFER.into(), ..LinkSpec::new(RATE, DELAY) };
    let port = match queues {
        Queues::Marking => LinkSpec { mark: Some(MARK), ..port },
        Queues::Plain => LinkSpec { classes: Some(Red::none()), ..port },
        Queues::Classes => LinkSpec { classes: Some(Red::of_buffer(BUFFER)), ..port },
    };
    let host = LinkSpec::new(RATE, DELAY);
    FabricSpec {
        racks,
        hosts_per_rack: HOSTS_PER_RACK,
        spines: SPINES,
        links_per_spine: LINKS_PER_SPINE,
        host,
        port,
    }
}

/// The hosts of a job: workers, then servers.
#[derive(Clone, Debug)]
pub struct JobHosts {
    pub nodes: Vec<NodeId>,
    pub workers: usize,
}

impl JobHosts {
    pub fn servers(&self) -> usize {
        self.nodes.len() - self.workers
    }

    /// A job on all hosts: every fourth of each rack is a server.
    pub fn all(fabric: &Fabric) -> JobHosts {
        let is_server = |place: &usize| place % HOSTS_PER_RACK % 4 == 3;
        let places = || 0..fabric.hosts.len();
        let (workers, servers) = (places().filter(|place| !is_server(place)), places().filter(is_server));
        let nodes: Vec<NodeId> = workers.chain(servers).map(|place| fabric.hosts[place]).collect();
        let workers = places().filter(|place| !is_server(place)).count();
        JobHosts { nodes, workers }
    }
}

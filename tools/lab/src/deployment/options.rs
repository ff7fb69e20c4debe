//! Sumac's options in a lab.

use clap::{ArgAction, Args, value_parser};
use serde::{Deserialize, Serialize};
use sumac_client::{CollectiveKind, Topology};

use crate::units::Probability;

/// The backend and the kind of aggregator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// AF_XDP on the workers, XDP programs on the aggregator
    #[default]
    Xdp,
    /// UDP sockets on the workers, a process on the aggregator
    Udp,
    /// UDP sockets on the workers, XDP programs on the aggregator
    Mixed,
}

impl Backend {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Xdp => "xdp",
            Backend::Udp => "udp",
            Backend::Mixed => "mixed",
        }
    }

    /// The backend in the configuration of the workers' daemons.
    pub fn of_workers(self) -> &'static str {
        if self == Backend::Xdp { "xdp" } else { "udp" }
    }
}

/// The kind of aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Aggregator {
    /// XDP programs
    Ebpf,
    /// A process, over UDP sockets
    Host,
    /// The P4 program on the behavioural model of a switch (simple_switch_grpc on PATH): its speed says
    /// nothing
    Bmv2,
    /// A control plane only
    #[value(skip)]
    None,
}

impl Aggregator {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Aggregator::Ebpf => "ebpf",
            Aggregator::Host => "host",
            Aggregator::Bmv2 => "bmv2",
            Aggregator::None => "none",
        }
    }
}

/// Sumac's options in a lab, and those of them on the command line.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct SumacOptions {
    /// The backend and the kind of aggregator.
    #[arg(skip)]
    pub backend: Backend,
    /// Whether the aggregators are the P4 program on the behavioural model, whatever the backend's are.
    #[arg(skip)]
    pub on_model: bool,
    /// 32-bit words per packet; by default what the MTU allows
    #[arg(long, value_parser = value_parser!(u16).range(1..=2224))]
    pub chunk: Option<u16>,
    /// Slots: of each lane of a static job, a power of two, by default what the measured path needs; with
    /// --mode dynamic those of each shard that all jobs share, by default 1024
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    pub slots: Option<u32>,
    /// Multiply floats with this number before they are rounded; by default block floating point, and 1e8 in
    /// dynamic jobs
    #[arg(long, value_parser = scale)]
    pub scale: Option<f32>,
    /// Send contributions without UDP checksum
    #[arg(long = "no-checksum", action = ArgAction::SetFalse)]
    pub checksum: bool,
    /// Fix which chunks a slot takes, whatever was lost
    #[arg(long = "no-reassignment", action = ArgAction::SetFalse)]
    pub stealing: bool,
    /// Answer Prometheus in each namespace: the aggregators' control planes on TCP port 9403, the daemons on
    /// 9402
    #[arg(long)]
    pub metrics: bool,
    /// Part of the frames that the aggregators drop on purpose, each way
    #[arg(long = "aggregator-drop", default_value = "0", value_name = "PROBABILITY")]
    pub drop: Probability,
    /// Paths of packets, 1 to 256: UDP source ports, by which routers choose among routes; by default 64,
    /// over UDP 1
    #[arg(long, value_parser = value_parser!(u16).range(1..=256))]
    pub paths: Option<u16>,
    /// Have each job measure AF_XDP and UDP on the workers, and use the faster (backend = "auto")
    #[arg(long = "auto")]
    pub is_auto: bool,
    /// Whether static jobs yield to congestion.
    #[arg(skip)]
    pub yields: bool,
    /// MiB that the daemons may hold for trainers; by default a part of the machine's.
    #[arg(skip)]
    pub buffers_mib: Option<u64>,
    /// VLANs that the packets of workers take in turn, from [`FIRST_VLAN`] on.
    #[arg(skip)]
    pub vlans: u16,
    /// The options of dynamic jobs; none: all jobs are static.
    #[arg(skip)]
    pub dynamic: Option<DynamicOptions>,
    /// The options of direct jobs.
    #[arg(skip)]
    pub direct: Option<DirectOptions>,
}

/// The first VLAN of workers' packets.
pub const FIRST_VLAN: u16 = 101;

/// The options of direct jobs in a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct DirectOptions {
    /// The operation of a direct job and the way of its values; by default ps
    #[arg(long, value_enum)]
    pub collective: Option<DirectCollective>,
    /// Workers of a direct job that own blocks, from worker 0 on; by default all
    #[arg(long, value_parser = value_parser!(u16).range(1..))]
    pub owners: Option<u16>,
    /// Workers of a direct job, from worker 0 on, that are parameter servers and contribute nothing
    #[arg(long, conflicts_with = "owners", value_parser = value_parser!(u16).range(1..))]
    pub servers: Option<u16>,
}

/// An operation of a direct job, and the way of its values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DirectCollective {
    /// Allreduce: each block has a worker that reduces it and sends it to all, as a parameter server does
    #[default]
    Ps,
    /// Allreduce around the ring
    Ring,
    /// Every worker's block to all others
    Allgather,
    /// All workers' values of a block to the worker whose block it is
    ReduceScatter,
}

impl DirectCollective {
    pub(crate) fn topology(self) -> Topology {
        if self == DirectCollective::Ring { Topology::Ring } else { Topology::Owners }
    }

    pub(crate) fn kind(self) -> CollectiveKind {
        match self {
            DirectCollective::Ps | DirectCollective::Ring => CollectiveKind::Allreduce,
            DirectCollective::Allgather => CollectiveKind::Allgather,
            DirectCollective::ReduceScatter => CollectiveKind::ReduceScatter,
        }
    }
}

/// The options of dynamic jobs in a lab, beside its parameter hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct DynamicOptions {
    /// Slots that they share, of each shard of each aggregator.
    #[arg(skip = 1024u32)]
    pub slots: u32,
    /// Run dynamic jobs without an aggregator: the parameter hosts do all
    #[arg(long = "no-aggregator", action = ArgAction::SetFalse)]
    pub has_aggregator: bool,
    /// Workers, the first ones on the only aggregator or on the root itself, whose daemons are parameter
    /// hosts too. A rack's workers cannot be: the rack's aggregator would take the root's sums for its own
    /// workers'.
    #[arg(skip)]
    pub co_located: u16,
    /// Packets that a lane of a dynamic job may be ahead of its oldest without result, a power of two
    #[arg(long, value_parser = power_of_two)]
    pub window: Option<u32>,
    /// Have dynamic jobs send a whole window, whatever congestion they meet
    #[arg(long = "no-congestion-control", action = ArgAction::SetFalse)]
    pub congestion_control: bool,
    /// Seconds that a dead worker's place in its job stays open; 0: its job fails.
    #[arg(skip)]
    pub rejoin_grace: u32,
}

impl Default for DynamicOptions {
    fn default() -> DynamicOptions {
        DynamicOptions {
            slots: 1024,
            has_aggregator: true,
            co_located: 0,
            window: None,
            congestion_control: true,
            rejoin_grace: 0,
        }
    }
}

impl SumacOptions {
    /// The operation of the jobs.
    pub fn collective(&self) -> CollectiveKind {
        self.direct.and_then(|direct| direct.collective).unwrap_or_default().kind()
    }

    /// Whether programs add packets, or a process; not where there is a control plane only.
    pub fn has_aggregator(&self) -> bool {
        self.direct.is_none() && self.dynamic.is_none_or(|dynamic| dynamic.has_aggregator)
    }

    /// The kind of the aggregators.
    pub fn aggregator(&self) -> Aggregator {
        match self.backend {
            _ if !self.has_aggregator() => Aggregator::None,
            _ if self.on_model => Aggregator::Bmv2,
            Backend::Xdp | Backend::Mixed => Aggregator::Ebpf,
            Backend::Udp => Aggregator::Host,
        }
    }
}

impl Default for SumacOptions {
    fn default() -> SumacOptions {
        SumacOptions {
            backend: Backend::Xdp,
            on_model: false,
            chunk: None,
            slots: None,
            scale: None,
            checksum: true,
            stealing: true,
            metrics: false,
            drop: Probability::default(),
            paths: None,
            is_auto: false,
            yields: false,
            buffers_mib: None,
            vlans: 0,
            dynamic: None,
            direct: None,
        }
    }
}

fn power_of_two(text: &str) -> Result<u32, &'static str> {
    let number = text.parse::<u32>().ok().filter(|number| number.is_power_of_two());
    number.ok_or("not a power of two")
}

fn scale(text: &str) -> Result<f32, &'static str> {
    let number = text.parse::<f32>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or("not a positive number")
}

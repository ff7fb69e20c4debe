//! The specification of a lab.

use std::net::Ipv4Addr;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::units::{Probability, Rate};

/// The range of a lab's number of workers.
pub const WORKERS: RangeInclusive<u16> = 2..=32;

/// The largest MTU: jumbo frames. Up to 3506 a veth hands XDP programs a frame in one piece, above in
/// several.
pub const LARGEST_MTU: u32 = 9000;

/// The range of an interface's number of queues, each with a shard of a job's slots.
pub const QUEUES: RangeInclusive<u16> = 1..=8;

/// The range of the number of racks in a lab of two levels.
pub const RACKS: RangeInclusive<u16> = 2..=8;

/// The aggregator's leaf of a fabric.
pub(crate) const FAR_LEAF: usize = 1;

/// The third byte of the subnet that joins the first rack to the root; those of workers are below.
const UPLINKS: u8 = 100;

/// The maximum of parameter hosts in a lab: as many as a job.
pub const PARAMETER_HOSTS: u16 = sumac_wire::MAX_HOSTS as u16;

/// The third byte of the subnet of the first parameter host; on a switch the last byte of its address.
const HOSTS: u8 = 200;

/// The topology of workers and aggregator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Each worker on a port and in a subnet of its own of the aggregator.
    #[default]
    PerPort,
    /// The aggregator with one port on a switch, beside the workers, in one subnet.
    OneArm,
    /// All programs on this host itself, over its loopback interface: UDP only, and no privilege needed.
    Loopback,
}

/// The context of a veth's receive processing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Napi {
    /// In a kernel thread of each queue, in batches: as an interrupt would on a NIC.
    #[default]
    Threaded,
    /// In the system call of whoever sends, frame by frame.
    Softirq,
}

/// The faults of a cable, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub struct Faults {
    /// Part of the frames that vanish, per direction of every cable
    #[arg(long, default_value = "0", value_name = "PROBABILITY")]
    pub loss: Probability,
    /// Part of the frames that arrive twice, per direction of every cable
    #[arg(long, default_value = "0", value_name = "PROBABILITY")]
    pub duplicate: Probability,
    /// Part of the frames that later ones overtake, per direction of every cable
    #[arg(long, default_value = "0", value_name = "PROBABILITY")]
    pub reorder: Probability,
}

impl Faults {
    pub fn is_none(&self) -> bool {
        *self == Faults::default()
    }
}

/// The workers' leaf of a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NearLeaf {
    /// A router, which chooses the spine (ECMP).
    #[default]
    Router,
    /// A switch: each spine is a next hop on the workers' segment, and the daemons choose it.
    Switch,
}

/// A lab before it is built: on the command line, in the program, and in the lab's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub struct LabSpec {
    /// Name of the lab and prefix of its namespaces; by default from this process's number
    #[arg(long, default_value_t = own_name(), hide_default_value = true)]
    pub name: String,
    /// Number of worker hosts, 2 to 32
    #[arg(long, default_value_t = 4)]
    pub workers: u16,
    /// The topology of workers and aggregator
    #[arg(long, value_enum, default_value_t)]
    pub topology: Topology,
    /// Two levels: this many racks, each with an aggregator and an equal part of the workers, below a root
    #[arg(
        long,
        default_value_t = 0,
        hide_default_value = true,
        requires = "workers_per_rack",
        conflicts_with = "workers"
    )]
    pub racks: u16,
    /// Levels of aggregators, 2 or 3: with 3 every two racks are below an aggregator in the middle, which is
    /// below the root; static jobs only
    #[arg(long, requires = "racks", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=3))]
    #[serde(default = "two")]
    pub levels: u16,
    /// Workers, the last ones, that hang on the root itself, beside the racks'; only dynamic jobs can have
    /// them
    #[arg(long, requires = "racks", default_value_t = 0, value_name = "WORKERS")]
    pub beside_root: u16,
    /// Hosts of their own for the parameter hosts of dynamic jobs, on the only aggregator or on the root.
    #[arg(skip)]
    pub parameter_hosts: u16,
    /// Spines of a leaf-spine fabric between workers and aggregator; 0: none.
    #[arg(skip)]
    pub spines: u16,
    /// The workers' leaf of a fabric.
    #[arg(skip)]
    pub near_leaf: NearLeaf,
    /// Workers, the last ones, that hang on the aggregator's leaf of a fabric.
    #[arg(skip)]
    pub far_workers: u16,
    /// Queues of every interface; a job has a shard of its slots on each
    #[arg(long, visible_alias = "shards", default_value_t = 1)]
    pub queues: u16,
    /// MTU of every interface, at most 9000
    #[arg(long, default_value_t = 1500)]
    pub mtu: u32,
    /// The context of receive processing
    #[arg(long, value_enum, default_value_t)]
    pub napi: Napi,
    /// Rate of every cable, each way, such as 1gbit; by default as fast as the machine can
    #[arg(long)]
    pub rate: Option<Rate>,
    #[command(flatten)]
    pub faults: Faults,
    /// Whether workers hang on cables for the sake of captures.
    #[arg(skip)]
    #[serde(default)]
    pub captured: bool,
    /// Mark congestion (ECN) above this backlog of a cable with a rate, in KB of 1024 bytes; 0: never; by
    /// default 64 where jobs yield: with --mode dynamic and --congestion-control
    #[arg(long = "ecn-threshold", value_name = "KB", requires = "rate")]
    pub ecn_threshold_kb: Option<u32>,
}

/// Racks below each aggregator in the middle.
const RACKS_OF_MIDDLE: u16 = 2;

const fn two() -> u16 {
    2
}

fn own_name() -> String {
    format!("sumac{}", std::process::id())
}

impl LabSpec {
    /// A lab of `workers` on straight veths, one port each, MTU 1500, with a name that no other one of this
    /// process has.
    pub fn new(workers: u16) -> LabSpec {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        LabSpec {
            name: format!("{}-{}", own_name(), COUNT.fetch_add(1, Ordering::Relaxed)),
            workers,
            topology: Topology::PerPort,
            racks: 0,
            levels: 2,
            beside_root: 0,
            parameter_hosts: 0,
            spines: 0,
            near_leaf: NearLeaf::default(),
            far_workers: 0,
            queues: 1,
            mtu: 1500,
            napi: Napi::default(),
            rate: None,
            faults: Faults::default(),
            captured: false,
            ecn_threshold_kb: None,
        }
    }

    /// Checks what the kernel would refuse half way through.
    pub fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        let LabSpec { racks, workers, beside_root, parameter_hosts, queues, mtu, .. } = *self;
        let within = |range: RangeInclusive<u16>, value: u16, whose: &str, what: &str| {
            let (first, last) = (range.start(), range.end());
            ensure!(range.contains(&value), "{whose} has {first} to {last} {what}, not {value}");
            Ok(())
        };
        within(WORKERS, workers, "a lab", "workers")?;
        ensure!((576..=LARGEST_MTU).contains(&mtu), "MTU {mtu} is not between 576 and {LARGEST_MTU}");
        within(QUEUES, queues, "an interface", "queues")?;
        ensure!(
            parameter_hosts <= PARAMETER_HOSTS,
            "a lab has at most {PARAMETER_HOSTS} parameter hosts, not {parameter_hosts}"
        );
        ensure!(
            self.spines == 0 || racks == 0 && self.topology == Topology::PerPort,
            "a fabric is between workers and one aggregator with a port for each"
        );
        let is_far = self.far_workers == 0 || self.spines > 0 && self.far_workers <= workers;
        ensure!(is_far, "{} of {workers} workers cannot be on the far leaf of a fabric", self.far_workers);
        let is_plain = parameter_hosts == 0 && queues == 1 && !self.has_cables();
        ensure!(
            self.topology != Topology::Loopback || is_plain,
            "over loopback there are no cables, queues and hosts; leave out --rate, faults, --pcap, --queues \
            and --mode dynamic"
        );
        if racks == 0 {
            ensure!(
                beside_root == 0,
                "workers beside the root need racks; with one aggregator they are just workers"
            );
            return Ok(());
        }
        let in_racks = workers.saturating_sub(beside_root);
        ensure!(
            RACKS.contains(&racks) && in_racks > 0 && in_racks.is_multiple_of(racks),
            "{in_racks} workers cannot be in {racks} racks: there are {} to {} racks, all of one size",
            RACKS.start(),
            RACKS.end()
        );
        let has_ports = self.topology == Topology::PerPort;
        ensure!(has_ports, "racks have a port for each worker; leave out --topology");
        let is_tree = (4..).contains(&racks) && racks.is_multiple_of(RACKS_OF_MIDDLE);
        ensure!(
            self.levels != 3 || is_tree && beside_root == 0 && parameter_hosts == 0,
            "with 3 levels there are 4, 6 or 8 racks, every two below an aggregator in the middle, and \
            static jobs only"
        );
        Ok(())
    }

    /// Whether workers hang on cables (bridges with shaping and faults) instead of straight veths.
    pub fn has_cables(&self) -> bool {
        self.rate.is_some() || !self.faults.is_none() || self.captured
    }

    /// The leaf of a fabric that a worker hangs on.
    pub(crate) fn leaf_of(&self, rank: u16) -> usize {
        if rank < self.workers - self.far_workers { 0 } else { FAR_LEAF }
    }

    /// The address of a host that has this subnet for itself, or this place on the switch.
    fn leaf_ip(&self, subnet: u8, place: u8) -> Ipv4Addr {
        match self.topology {
            Topology::PerPort => Ipv4Addr::new(10, 77, subnet, 2),
            Topology::OneArm => Ipv4Addr::new(10, 77, 0, place),
            Topology::Loopback => Ipv4Addr::LOCALHOST,
        }
    }

    /// The aggregator's address as the host of this subnet sees it.
    fn gateway(&self, subnet: u8) -> Ipv4Addr {
        match self.topology {
            Topology::PerPort => Ipv4Addr::new(10, 77, subnet, 1),
            Topology::OneArm => Ipv4Addr::new(10, 77, 0, 1),
            Topology::Loopback => Ipv4Addr::LOCALHOST,
        }
    }

    pub fn worker_ip(&self, rank: u16) -> Ipv4Addr {
        self.leaf_ip(rank as u8, 10 + rank as u8)
    }

    /// Returns the number of workers of each rack, or none with one aggregator.
    pub fn rack_size(&self) -> Option<u16> {
        self.workers.saturating_sub(self.beside_root).checked_div(self.racks)
    }

    /// The workers that hang on the only aggregator, or on the root itself.
    pub fn root_ranks(&self) -> Range<u16> {
        self.rack_size().map_or(0, |size| size * self.racks)..self.workers
    }

    /// The rack of a worker; none where one aggregator serves all, and of a worker beside the root.
    pub fn rack_of(&self, rank: u16) -> Option<u16> {
        self.rack_size().map(|size| rank / size).filter(|rack| *rack < self.racks)
    }

    /// The racks, and the aggregators in the middle, which are numbered behind them: all but the root.
    pub fn all_racks(&self) -> u16 {
        self.racks + self.middles()
    }

    pub fn middles(&self) -> u16 {
        if self.levels == 3 { self.racks / RACKS_OF_MIDDLE } else { 0 }
    }

    /// The aggregator in the middle that a rack is below; none: the root.
    pub fn middle_of(&self, rack: u16) -> Option<u16> {
        (self.levels == 3 && rack < self.racks).then(|| self.racks + rack / RACKS_OF_MIDDLE)
    }

    /// The interface of a rack's parent towards it.
    pub fn parent_port(&self, rack: u16) -> String {
        match self.middle_of(rack) {
            Some(_) => port(rack % RACKS_OF_MIDDLE),
            None if rack < self.racks => port(rack),
            None => port(rack - self.racks),
        }
    }

    /// Whether a worker is in this rack, or in one below this aggregator in the middle.
    pub fn is_below(&self, rank: u16, rack: u16) -> bool {
        let own = self.rack_of(rank);
        own == Some(rack) || own.and_then(|own| self.middle_of(own)) == Some(rack)
    }

    pub fn host_ip(&self, host: u16) -> Ipv4Addr {
        self.leaf_ip(HOSTS + host as u8, HOSTS + host as u8)
    }

    /// The address of the only aggregator, or of the root, as this parameter host sees it.
    pub fn host_gateway(&self, host: u16) -> Ipv4Addr {
        self.gateway(HOSTS + host as u8)
    }

    /// The interface of the only aggregator, or of the root, towards a parameter host.
    pub fn host_port(&self, host: u16) -> String {
        match self.topology {
            Topology::PerPort => format!("host{host}"),
            Topology::OneArm | Topology::Loopback => port(0),
        }
    }

    /// A rack's address on its way to the root, or to its middle.
    pub fn uplink_ip(&self, rack: u16) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, UPLINKS + rack as u8, 2)
    }

    /// The address of the root, or of its middle, as this rack sees it.
    pub fn root_ip(&self, rack: u16) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, UPLINKS + rack as u8, 1)
    }

    /// The address of this worker's aggregator as the worker sees it, which is its gateway.
    pub fn aggregator_ip(&self, rank: u16) -> Ipv4Addr {
        self.gateway(rank as u8)
    }

    /// The interfaces of the aggregator, or of the root towards racks and its own workers, and towards
    /// parameter hosts.
    pub fn aggregator_ports(&self) -> Vec<String> {
        let below = match (self.topology, self.racks) {
            (Topology::OneArm, _) => return vec![port(0)],
            (Topology::Loopback, _) => return Vec::new(),
            (Topology::PerPort, 0) => self.workers,
            (Topology::PerPort, _) if self.levels == 3 => self.middles(),
            (Topology::PerPort, racks) => racks + self.beside_root,
        };
        (0..below).map(port).chain((0..self.parameter_hosts).map(|host| self.host_port(host))).collect()
    }

    /// A rack's interfaces towards its workers.
    pub fn rack_ports(&self) -> Vec<String> {
        (0..self.rack_size().unwrap_or(0)).map(port).collect()
    }

    /// The interfaces of an aggregator in the middle towards its racks.
    pub fn middle_ports(&self) -> Vec<String> {
        (0..RACKS_OF_MIDDLE).map(port).collect()
    }

    /// The interface of a worker's aggregator towards it.
    pub fn port_of(&self, rank: u16) -> String {
        match (self.topology, self.rack_size()) {
            (Topology::OneArm | Topology::Loopback, _) => port(0),
            (Topology::PerPort, None) => port(rank),
            (Topology::PerPort, Some(size)) if rank < size * self.racks => port(rank % size),
            (Topology::PerPort, Some(size)) => port(self.racks + rank - size * self.racks),
        }
    }
}

fn port(number: u16) -> String {
    format!("port{number}")
}

/// Checks that a name can be part of a namespace's and a file's name.
pub fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_good = (1..=20).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('-');
    ensure!(is_good, "{name:?} cannot name a lab; use 1 to 20 letters, digits and dashes");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reasons for which a specification is invalid; empty where it is not.
    fn why(spec: &LabSpec) -> String {
        spec.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn refuses_what_the_kernel_would() {
        let spec = LabSpec::new(4);
        assert_eq!(why(&spec), "");
        for workers in [0, 1, 33] {
            let expected = format!("a lab has 2 to 32 workers, not {workers}");
            assert_eq!(why(&LabSpec { workers, ..spec.clone() }), expected);
        }
        for mtu in [100, 9001] {
            let expected = format!("MTU {mtu} is not between 576 and 9000");
            assert_eq!(why(&LabSpec { mtu, ..spec.clone() }), expected);
        }
        for queues in [0, 9] {
            let expected = format!("an interface has 1 to 8 queues, not {queues}");
            assert_eq!(why(&LabSpec { queues, ..spec.clone() }), expected);
        }
        for name in ["", "../x", "a b", "-x", "abcdefghijklmnopqrstu"] {
            let expected = format!("{name:?} cannot name a lab; use 1 to 20 letters, digits and dashes");
            assert_eq!(why(&LabSpec { name: name.into(), ..spec.clone() }), expected);
        }
    }

    #[test]
    fn racks_are_of_one_size() {
        let racks = |racks, workers| LabSpec { racks, ..LabSpec::new(workers) };
        assert_eq!(why(&racks(2, 6)), "");
        for (count, workers) in [(1, 4), (2, 5), (9, 9)] {
            let expected = format!(
                "{workers} workers cannot be in {count} racks: there are 2 to 8 racks, all of one size"
            );
            assert_eq!(why(&racks(count, workers)), expected);
        }
        let one_arm = LabSpec { topology: Topology::OneArm, ..racks(2, 4) };
        assert!(why(&one_arm).starts_with("racks have a port for each worker"));
        let spec = racks(2, 6);
        assert_eq!([0, 2, 3, 5].map(|rank| spec.rack_of(rank)), [0, 0, 1, 1].map(Some));
        assert_eq!([0, 2, 3, 5].map(|rank| spec.port_of(rank)), ["port0", "port2", "port0", "port2"]);
        assert_eq!((spec.rack_ports().len(), spec.aggregator_ports().len()), (3, 2));
        assert_eq!(LabSpec::new(4).rack_of(3), None);
    }

    #[test]
    fn with_three_levels_every_two_racks_have_a_middle() {
        let spec = LabSpec { racks: 4, levels: 3, ..LabSpec::new(8) };
        assert_eq!(why(&spec), "");
        assert_eq!((spec.middles(), spec.all_racks()), (2, 6));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|rack| spec.middle_of(rack)),
            [Some(4), Some(4), Some(5), Some(5), None]
        );
        let ports = [0, 1, 2, 3, 4, 5].map(|rack| spec.parent_port(rack));
        assert_eq!(ports, ["port0", "port1", "port0", "port1", "port0", "port1"]);
        assert_eq!((spec.aggregator_ports().len(), spec.middle_ports().len()), (2, 2));
        assert_eq!([1, 4, 5].map(|rack| spec.is_below(3, rack)), [true, true, false]);
        assert!(why(&LabSpec { racks: 2, ..spec }).starts_with("with 3 levels there are 4, 6 or 8 racks"));
        assert_eq!(LabSpec { racks: 4, ..LabSpec::new(8) }.all_racks(), 4);
    }

    #[test]
    fn workers_beside_the_root_have_ports_of_its_own() {
        let spec = LabSpec { racks: 2, beside_root: 2, parameter_hosts: 1, ..LabSpec::new(6) };
        assert_eq!(why(&spec), "");
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|rank| spec.rack_of(rank)),
            [Some(0), Some(0), Some(1), Some(1), None, None]
        );
        assert_eq!([1, 2, 4, 5].map(|rank| spec.port_of(rank)), ["port1", "port0", "port2", "port3"]);
        assert_eq!(spec.aggregator_ports(), ["port0", "port1", "port2", "port3", "host0"]);
        assert_eq!((spec.root_ranks(), LabSpec::new(4).root_ranks()), (4..6, 0..4));
        assert!(why(&LabSpec { racks: 0, ..spec.clone() }).starts_with("workers beside the root need racks"));
        let why = why(&LabSpec { parameter_hosts: 5, ..spec });
        assert_eq!(why, "a lab has at most 4 parameter hosts, not 5");
    }

    #[test]
    fn no_two_hosts_share_an_address() {
        for topology in [Topology::PerPort, Topology::OneArm] {
            let spec = LabSpec { topology, ..LabSpec::new(16) };
            let mut all: Vec<_> = (0..16).map(|rank| spec.worker_ip(rank)).collect();
            all.extend(spec.aggregator_ports().iter().zip(0..).map(|(_, rank)| spec.aggregator_ip(rank)));
            all.extend((0..PARAMETER_HOSTS).map(|host| spec.host_ip(host)));
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count);
        }
    }
}

//! The specification of a lab.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::units::{Probability, Rate};

/// The range of a lab's number of workers.
pub const WORKERS: std::ops::RangeInclusive<u16> = 2..=16;

/// The largest MTU: jumbo frames. Up to 3506 a veth hands XDP programs a frame in one piece, above in several.
pub const LARGEST_MTU: u32 = 9000;

/// The range of an interface's number of queues, each with a shard of a job's slots.
pub const QUEUES: std::ops::RangeInclusive<u16> = 1..=8;

/// The range of the number of racks in a lab of two levels.
pub const RACKS: std::ops::RangeInclusive<u16> = 2..=8;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Frames that vanish.
    pub loss: Probability,
    /// Frames that arrive twice.
    pub duplicate: Probability,
    /// Frames that later ones overtake.
    pub reorder: Probability,
}

impl Faults {
    /// Whether nothing goes wrong.
    pub fn is_none(&self) -> bool {
        *self == Faults::default()
    }
}

/// A lab before it is built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabSpec {
    /// Its name, the prefix of its namespaces.
    pub name: String,
    /// Number of worker hosts.
    pub workers: u16,
    pub topology: Topology,
    /// Racks, each with an aggregator and an equal part of the workers, below a root; 0: one aggregator for all.
    pub racks: u16,
    /// Workers, the last ones, that hang on the root itself beside its racks; only dynamic jobs can have them.
    pub beside_root: u16,
    /// Hosts of their own for the parameter hosts of dynamic jobs, on the only aggregator or on the root.
    pub parameter_hosts: u16,
    /// Queues of every interface.
    pub queues: u16,
    /// MTU of every interface.
    pub mtu: u32,
    /// The context of receive processing.
    pub napi: Napi,
    /// Rate of each cable, each way; none: as fast as the machine can.
    pub rate: Option<Rate>,
    /// The faults of each cable.
    pub faults: Faults,
    /// The queue at a cable's shaper above which it marks congestion, in units of 1024 bytes; none: no marks. Without a
    /// rate there is no shaper.
    pub ecn_threshold_kb: Option<u32>,
}

/// The reason that a specification is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpecError {
    /// A name that would not do as part of a namespace's or a file's name.
    #[error("{0:?} cannot name a lab; use 1 to 20 letters, digits and dashes")]
    Name(String),
    /// Too few or too many.
    #[error("a lab has {first} to {last} workers, not {0}", first = WORKERS.start(), last = WORKERS.end())]
    Workers(u16),
    /// Too small for IPv4 hosts or larger than jumbo frames.
    #[error("MTU {0} is not between 576 and {LARGEST_MTU}")]
    Mtu(u32),
    /// Too few or too many.
    #[error("an interface has {first} to {last} queues, not {0}", first = QUEUES.start(), last = QUEUES.end())]
    Queues(u16),
    /// Workers that cannot be dealt out.
    #[error(
        "{workers} workers cannot be in {racks} racks: there are {first} to {last} racks, all of one size",
        first = RACKS.start(), last = RACKS.end()
    )]
    Racks {
        /// The requested number of racks.
        racks: u16,
        workers: u16,
    },
    /// Two things that do not go together.
    #[error("racks have a port for each worker; leave out --topology one-arm")]
    OneArmedRacks,
    /// Workers beside the root without racks.
    #[error("workers beside the root need racks; with one aggregator they are just workers")]
    BesideNothing,
    /// More parameter hosts than a job can have.
    #[error("a lab has at most {PARAMETER_HOSTS} parameter hosts, not {0}")]
    ParameterHosts(u16),
}

impl LabSpec {
    /// A lab of `workers` on straight veths, one port each, MTU 1500, named after this process.
    pub fn new(workers: u16) -> LabSpec {
        LabSpec {
            name: format!("sumac{}", std::process::id()),
            workers,
            topology: Topology::PerPort,
            racks: 0,
            beside_root: 0,
            parameter_hosts: 0,
            queues: 1,
            mtu: 1500,
            napi: Napi::default(),
            rate: None,
            faults: Faults::default(),
            ecn_threshold_kb: None,
        }
    }

    /// Checks what the kernel would refuse half way through.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), SpecError> {
        check_name(&self.name)?;
        if !WORKERS.contains(&self.workers) {
            return Err(SpecError::Workers(self.workers));
        }
        if !(576..=LARGEST_MTU).contains(&self.mtu) {
            return Err(SpecError::Mtu(self.mtu));
        }
        if !QUEUES.contains(&self.queues) {
            return Err(SpecError::Queues(self.queues));
        }
        if self.parameter_hosts > PARAMETER_HOSTS {
            return Err(SpecError::ParameterHosts(self.parameter_hosts));
        }
        self.check_racks()
    }

    fn check_racks(&self) -> Result<(), SpecError> {
        let LabSpec { racks, workers, beside_root, topology, .. } = *self;
        if racks == 0 {
            return if beside_root == 0 { Ok(()) } else { Err(SpecError::BesideNothing) };
        }
        let in_racks = workers.saturating_sub(beside_root);
        if !RACKS.contains(&racks) || in_racks == 0 || !in_racks.is_multiple_of(racks) {
            return Err(SpecError::Racks { racks, workers: in_racks });
        }
        if topology == Topology::OneArm {
            return Err(SpecError::OneArmedRacks);
        }
        Ok(())
    }

    /// Whether workers hang on cables (bridges with shaping and faults) instead of straight veths.
    pub fn has_cables(&self) -> bool {
        self.rate.is_some() || !self.faults.is_none()
    }

    /// The address of a worker.
    pub fn worker_ip(&self, rank: u16) -> Ipv4Addr {
        match self.topology {
            Topology::PerPort => Ipv4Addr::new(10, 77, rank as u8, 2),
            Topology::OneArm => Ipv4Addr::new(10, 77, 0, 10 + rank as u8),
        }
    }

    /// Returns the number of workers of each rack, or none with one aggregator.
    pub fn rack_size(&self) -> Option<u16> {
        self.workers.saturating_sub(self.beside_root).checked_div(self.racks)
    }

    /// The workers that hang on the only aggregator, or on the root itself.
    pub fn root_ranks(&self) -> std::ops::Range<u16> {
        self.rack_size().map_or(0, |size| size * self.racks)..self.workers
    }

    /// The rack of a worker; none where one aggregator serves all, and of a worker beside the root.
    pub fn rack_of(&self, rank: u16) -> Option<u16> {
        self.rack_size().map(|size| rank / size).filter(|rack| *rack < self.racks)
    }

    /// The address of a parameter host.
    pub fn host_ip(&self, host: u16) -> Ipv4Addr {
        match self.topology {
            Topology::PerPort => Ipv4Addr::new(10, 77, HOSTS + host as u8, 2),
            Topology::OneArm => Ipv4Addr::new(10, 77, 0, HOSTS + host as u8),
        }
    }

    /// The address of the only aggregator, or of the root, as this parameter host sees it.
    pub fn host_gateway(&self, host: u16) -> Ipv4Addr {
        match self.topology {
            Topology::PerPort => Ipv4Addr::new(10, 77, HOSTS + host as u8, 1),
            Topology::OneArm => self.aggregator_ip(0),
        }
    }

    /// The interface of the only aggregator, or of the root, towards a parameter host.
    pub fn host_port(&self, host: u16) -> String {
        match self.topology {
            Topology::PerPort => format!("host{host}"),
            Topology::OneArm => port(0),
        }
    }

    /// A rack's address on its way to the root.
    pub fn uplink_ip(&self, rack: u16) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, UPLINKS + rack as u8, 2)
    }

    /// The root's address as this rack sees it.
    pub fn root_ip(&self, rack: u16) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, UPLINKS + rack as u8, 1)
    }

    /// The address of this worker's aggregator as the worker sees it, which is its gateway.
    pub fn aggregator_ip(&self, rank: u16) -> Ipv4Addr {
        match self.topology {
            Topology::PerPort => Ipv4Addr::new(10, 77, rank as u8, 1),
            Topology::OneArm => Ipv4Addr::new(10, 77, 0, 1),
        }
    }

    /// The interfaces of the aggregator, or of the root towards racks and its own workers, and towards parameter hosts.
    pub fn aggregator_ports(&self) -> Vec<String> {
        let below = match (self.topology, self.racks) {
            (Topology::OneArm, _) => return vec![port(0)],
            (Topology::PerPort, 0) => self.workers,
            (Topology::PerPort, racks) => racks + self.beside_root,
        };
        (0..below).map(port).chain((0..self.parameter_hosts).map(|host| self.host_port(host))).collect()
    }

    /// A rack's interfaces towards its workers.
    pub fn rack_ports(&self) -> Vec<String> {
        (0..self.rack_size().unwrap_or(0)).map(port).collect()
    }

    /// The interface of a worker's aggregator towards it.
    pub fn port_of(&self, rank: u16) -> String {
        match (self.topology, self.rack_size()) {
            (Topology::OneArm, _) => port(0),
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
///
/// # Errors
/// When it cannot.
pub fn check_name(name: &str) -> Result<(), SpecError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if (1..=20).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('-') {
        Ok(())
    } else {
        Err(SpecError::Name(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_the_kernel_would() {
        let spec = LabSpec::new(4);
        assert_eq!(spec.check(), Ok(()));
        for workers in [0, 1, 17] {
            assert_eq!(LabSpec { workers, ..spec.clone() }.check(), Err(SpecError::Workers(workers)));
        }
        for mtu in [100, 9001] {
            assert_eq!(LabSpec { mtu, ..spec.clone() }.check(), Err(SpecError::Mtu(mtu)));
        }
        for queues in [0, 9] {
            assert_eq!(LabSpec { queues, ..spec.clone() }.check(), Err(SpecError::Queues(queues)));
        }
        for name in ["", "../x", "a b", "-x", "abcdefghijklmnopqrstu"] {
            assert!(LabSpec { name: name.into(), ..spec.clone() }.check().is_err(), "{name}");
        }
    }

    #[test]
    fn racks_are_of_one_size() {
        let racks = |racks, workers| LabSpec { racks, ..LabSpec::new(workers) };
        assert_eq!(racks(2, 6).check(), Ok(()));
        for (count, workers) in [(1, 4), (2, 5), (9, 9)] {
            let error = SpecError::Racks { racks: count, workers };
            assert_eq!(racks(count, workers).check(), Err(error));
        }
        let one_arm = LabSpec { topology: Topology::OneArm, ..racks(2, 4) };
        assert_eq!(one_arm.check(), Err(SpecError::OneArmedRacks));
        let spec = racks(2, 6);
        assert_eq!([0, 2, 3, 5].map(|rank| spec.rack_of(rank)), [0, 0, 1, 1].map(Some));
        assert_eq!([0, 2, 3, 5].map(|rank| spec.port_of(rank)), ["port0", "port2", "port0", "port2"]);
        assert_eq!((spec.rack_ports().len(), spec.aggregator_ports().len()), (3, 2));
        assert_eq!(LabSpec::new(4).rack_of(3), None);
    }

    #[test]
    fn workers_beside_the_root_have_ports_of_its_own() {
        let spec = LabSpec { racks: 2, beside_root: 2, parameter_hosts: 1, ..LabSpec::new(6) };
        assert_eq!(spec.check(), Ok(()));
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|rank| spec.rack_of(rank)),
            [Some(0), Some(0), Some(1), Some(1), None, None]
        );
        assert_eq!([1, 2, 4, 5].map(|rank| spec.port_of(rank)), ["port1", "port0", "port2", "port3"]);
        assert_eq!(spec.aggregator_ports(), ["port0", "port1", "port2", "port3", "host0"]);
        assert_eq!((spec.root_ranks(), LabSpec::new(4).root_ranks()), (4..6, 0..4));
        assert_eq!(LabSpec { racks: 0, ..spec.clone() }.check(), Err(SpecError::BesideNothing));
        assert_eq!(LabSpec { parameter_hosts: 5, ..spec }.check(), Err(SpecError::ParameterHosts(5)));
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

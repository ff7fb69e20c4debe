//! What a lab is to look like.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::units::{Probability, Rate};

/// How many workers a lab can have.
pub const WORKERS: std::ops::RangeInclusive<u16> = 2..=16;

/// The largest MTU that a veth takes with an XDP program whose packets are in one piece.
pub const LARGEST_MTU: u32 = 3506;

/// How workers and aggregator are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Each worker on a port and in a subnet of its own of the aggregator.
    #[default]
    PerPort,
    /// The aggregator with one port on a switch, beside the workers, in one subnet.
    OneArm,
}

/// What goes wrong on a cable, in each direction.
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
    /// How they are joined.
    pub topology: Topology,
    /// MTU of every interface.
    pub mtu: u32,
    /// Rate of each cable, each way; none: as fast as the machine can.
    pub rate: Option<Rate>,
    /// What goes wrong on each cable.
    pub faults: Faults,
}

/// Why a specification cannot be built.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpecError {
    /// A name that would not do as part of a namespace's or a file's name.
    #[error("{0:?} cannot name a lab; use 1 to 20 letters, digits and dashes")]
    Name(String),
    /// Too few or too many.
    #[error("a lab has {first} to {last} workers, not {0}", first = WORKERS.start(), last = WORKERS.end())]
    Workers(u16),
    /// Too small for IPv4 hosts or too large for XDP on a veth.
    #[error("MTU {0} is not between 576 and {LARGEST_MTU}, the most that XDP on a veth takes")]
    Mtu(u32),
}

impl LabSpec {
    /// A lab of `workers` on straight veths, one port each, MTU 1500, named after this process.
    pub fn new(workers: u16) -> LabSpec {
        LabSpec {
            name: format!("sumac{}", std::process::id()),
            workers,
            topology: Topology::PerPort,
            mtu: 1500,
            rate: None,
            faults: Faults::default(),
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

    /// The aggregator's address as this worker sees it, which is its gateway.
    pub fn aggregator_ip(&self, rank: u16) -> Ipv4Addr {
        match self.topology {
            Topology::PerPort => Ipv4Addr::new(10, 77, rank as u8, 1),
            Topology::OneArm => Ipv4Addr::new(10, 77, 0, 1),
        }
    }

    /// The aggregator's interfaces.
    pub fn aggregator_ports(&self) -> Vec<String> {
        match self.topology {
            Topology::PerPort => (0..self.workers).map(|rank| format!("port{rank}")).collect(),
            Topology::OneArm => vec!["port0".to_owned()],
        }
    }
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
        for mtu in [100, 9000] {
            assert_eq!(LabSpec { mtu, ..spec.clone() }.check(), Err(SpecError::Mtu(mtu)));
        }
        for name in ["", "../x", "a b", "-x", "abcdefghijklmnopqrstu"] {
            assert!(LabSpec { name: name.into(), ..spec.clone() }.check().is_err(), "{name}");
        }
    }

    #[test]
    fn no_two_hosts_share_an_address() {
        for topology in [Topology::PerPort, Topology::OneArm] {
            let spec = LabSpec { topology, ..LabSpec::new(16) };
            let mut all: Vec<_> = (0..16).map(|rank| spec.worker_ip(rank)).collect();
            all.extend(spec.aggregator_ports().iter().zip(0..).map(|(_, rank)| spec.aggregator_ip(rank)));
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count);
        }
    }
}

//! Whom a job's packets go to, and whose it takes.

use std::net::Ipv4Addr;

use sumac_transport::{Destination, JobParams, Transmit};

use super::{
    command::AddError,
    port::{Outgoing, Peer},
};

/// The ends of a job's paths.
pub(super) struct Ways {
    aggregator: Option<Peer>,
    /// The parameter hosts of a dynamic job: shard `s` has the one with number `s % hosts`.
    hosts: Vec<Peer>,
}

impl Ways {
    /// The ways of a job with these lanes, which must have what they need.
    pub(super) fn new(
        aggregator: Option<Peer>,
        hosts: Vec<Peer>,
        lane: &JobParams,
    ) -> Result<Ways, AddError> {
        let job = lane.job;
        match &lane.dynamic {
            Some(_) if hosts.is_empty() => Err(AddError::NoWay { job, to: "parameter host" }),
            None if aggregator.is_none() => Err(AddError::NoWay { job, to: "aggregator" }),
            _ => Ok(Ways { aggregator, hosts }),
        }
    }

    /// An engine's payload, on its way. `None`: there is no way; a dynamic job does without an aggregator that cannot be reached.
    pub(super) fn send(&self, packet: &Transmit) -> Option<Outgoing> {
        let peer = match packet.to {
            Destination::Aggregator => self.aggregator.as_ref(),
            Destination::ParameterHost => {
                self.hosts.get(usize::from(packet.port_offset) % self.hosts.len().max(1))
            }
        };
        peer.map(|peer| Outgoing::new(packet, peer))
    }

    /// Whether the job's results may come from this address.
    pub(super) fn has(&self, ip: Ipv4Addr) -> bool {
        self.aggregator.iter().chain(&self.hosts).any(|peer| peer.ip == ip)
    }
}

//! Rules in the interfaces' NICs that direct each shard's packets to one queue, and so to one CPU.
//!
//! The programs add packets of any queue; but where a shard's packets arrive on one, no two CPUs wait for the same slots.
//! One shard needs no rules: the NIC spreads its packets.

use sumac_hostprog::steer::{self, Change, Steer, SteerError, records::RuleRecords, report};
use sumac_loader::Interface;

use crate::pins::AggregatorPins;

/// The rules for the shards, and the changes made so far, to be undone together.
#[derive(Debug)]
pub struct Steering {
    steer: Steer,
    base_port: u16,
    shards: u16,
    changes: Vec<(Interface, RuleRecords, Change)>,
}

impl Steering {
    pub fn new(steer: Steer, base_port: u16, shards: u16) -> Self {
        Self { steer, base_port, shards, changes: Vec::new() }
    }

    /// Steers one interface; returns the choice of its queues if there are several shards.
    pub fn apply(
        &mut self,
        interface: &Interface,
        pins: &AggregatorPins,
    ) -> Result<Option<String>, SteerError> {
        let ports = (self.base_port, self.shards);
        let queues: Vec<u32> = (0..interface.rx_queues).collect();
        let has_several = self.shards > 1;
        let wanted = if has_several { steer::wanted(ports.0, ports.1, &queues) } else { Vec::new() };
        let records = pins.rules(&interface.name);
        let change = steer::apply(self.steer, interface, &wanted, &records)?;
        let report = has_several.then(|| report::examine(interface, ports, &queues, &records).to_string());
        self.changes.push((interface.clone(), records, change));
        Ok(report)
    }

    pub fn roll_back(self) {
        for (interface, records, change) in self.changes {
            steer::roll_back(change, &interface, &records);
        }
    }
}

/// Deletes the rules inserted for an interface. A rule that stays is a warning, and keeps nothing else.
pub fn release(pins: &AggregatorPins, interface: &str) {
    if let Err(error) = steer::remove(pins.directory.namespace(), interface, &pins.rules(interface)) {
        tracing::warn!("{error}");
    }
}

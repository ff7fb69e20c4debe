//! Rules in the ports' NICs that lead each shard's packets to one queue, and so to one CPU.
//!
//! The programs add whatever queue a packet comes on; but where a shard's packets come on one, no two CPUs wait for the
//! same slots. With one shard there is nothing to part: the NIC spreads its packets as it likes.

use sumac_hostprog::{
    interface::Interface,
    steer::{self, Change, SteerError, memory::Memory, report::look},
};

use crate::{attach::AttachOptions, pins::PinDir};

/// What was changed on the ports so far, to be undone together.
#[derive(Debug, Default)]
pub(crate) struct Steering(Vec<(Interface, Memory, Change)>);

impl Steering {
    /// Steers one port; says what chooses its queues then, unless nothing is to be chosen.
    pub(crate) fn apply(
        &mut self,
        options: &AttachOptions,
        interface: &Interface,
        pins: &PinDir,
    ) -> Result<Option<String>, SteerError> {
        let AttachOptions { base_port, shards, steer, .. } = *options;
        let queues: Vec<u32> = (0..interface.rx_queues).collect();
        let wanted = if shards > 1 { steer::wanted(base_port, shards, &queues) } else { Vec::new() };
        let memory = pins.rules(&interface.name);
        let change = steer::apply(steer, interface, &wanted, &memory)?;
        let told = (shards > 1).then(|| look(interface, (base_port, shards), &queues, &memory).to_string());
        self.0.push((interface.clone(), memory, change));
        Ok(told)
    }

    /// Undoes it on all ports.
    pub(crate) fn roll_back(self) {
        for (interface, memory, change) in self.0 {
            steer::roll_back(change, &interface, &memory);
        }
    }
}

/// Takes out what was put into a port of a network namespace. What stays is a warning: it keeps nothing else from going.
pub(crate) fn release(namespace: u64, interface: &str, pins: &PinDir) {
    if let Err(error) = steer::remove(namespace, interface, &pins.rules(interface)) {
        tracing::warn!("{error}");
    }
}

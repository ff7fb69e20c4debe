//! The addresses of aggregators below others, and the ways between them.

use std::net::Ipv4Addr;

use sumac_wire::{DEFAULT_BASE_PORT, tables::WorkerEntry};

pub const ROOT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
pub const ROOT_MAC: [u8; 6] = [2, 9, 9, 0, 0, 1];

/// A rack's address towards its parent.
pub fn uplink(rack: usize) -> (Ipv4Addr, [u8; 6]) {
    (Ipv4Addr::new(10, 99, 0, 10 + rack as u8), [2, 9, 9, 0, 1, rack as u8])
}

/// Returns the way from an aggregator to another.
pub fn hop(to: (Ipv4Addr, [u8; 6]), from: (Ipv4Addr, [u8; 6]), ifindex: u32) -> WorkerEntry {
    WorkerEntry {
        ip: to.0.to_bits(),
        port: DEFAULT_BASE_PORT,
        mac: to.1,
        ifindex,
        aggregator_ip: from.0.to_bits(),
        aggregator_mac: from.1,
        ..WorkerEntry::default()
    }
}

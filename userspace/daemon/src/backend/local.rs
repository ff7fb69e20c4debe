//! Address, port and MAC address that packets of this host come from.

use std::net::Ipv4Addr;

/// This host's address in the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) ip: Ipv4Addr,
    pub(crate) port: u16,
    /// Zero over UDP.
    pub(crate) mac: [u8; 6],
}

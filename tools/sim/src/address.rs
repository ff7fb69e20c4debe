//! Addresses of nodes.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Index of a node.
pub type NodeId = usize;

/// The UDP port of shard 0, at all nodes.
pub const PORT: u16 = sumac_wire::DEFAULT_BASE_PORT;

const NETWORK: u32 = u32::from_be_bytes([10, 0, 0, 0]);

fn address(node: NodeId) -> Ipv4Addr {
    Ipv4Addr::from_bits(NETWORK + node as u32 + 1)
}

pub fn node_of(address: Ipv4Addr) -> NodeId {
    (address.to_bits() - NETWORK - 1) as NodeId
}

/// A node's socket for shard 0.
pub fn socket(node: NodeId) -> SocketAddrV4 {
    SocketAddrV4::new(address(node), PORT)
}

/// The socket for another shard beside that of shard 0.
pub fn shard_of(socket: SocketAddrV4, shard: u16) -> SocketAddrV4 {
    SocketAddrV4::new(*socket.ip(), socket.port() + shard)
}

//! Parameters and an engine for several tests.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::expect_used, reason = "a test that cannot go on")]

pub mod lone;

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_transport::{JobParams, PeerTable, Scale};

/// An aggregator and a parameter host.
pub fn peers() -> PeerTable {
    let address = |last| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 48_600);
    PeerTable::of(Some(address(1)), [address(2)])
}

/// A small job with a fixed scale; rank 0.
pub fn job(world: u16, slots: u32, elements: u16) -> JobParams {
    JobParams { scaling: Scale::Fixed(65536.0), ..block(world, slots, elements) }
}

/// The same with exponents that the workers agree on.
pub fn block(world: u16, slots: u32, elements: u16) -> JobParams {
    JobParams { epoch: 7, token: 0x5eed_cafe_f00d_beef, ..JobParams::new(3, world, slots, elements) }
}

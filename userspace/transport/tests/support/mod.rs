//! Parameters and an engine for several tests.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::expect_used, reason = "a test that cannot go on")]

pub mod lone;

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_transport::{JobParams, NonFinitePolicy, PeerTable, Scale, WireFormat};

/// An aggregator and a parameter host.
pub fn peers() -> PeerTable {
    let address = |last| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 48_600);
    PeerTable::of(Some(address(1)), [address(2)])
}

/// A small job with a fixed scale; rank 0.
pub fn job(world: u16, slots: u32, elements: u16) -> JobParams {
    JobParams {
        job: 3,
        epoch: 7,
        token: 0x5eed_cafe_f00d_beef,
        rank: 0,
        world,
        rack_rank: 0,
        rack_world: world,
        lane: 0,
        shards: 1,
        slots,
        elements,
        wire: WireFormat::Int32,
        scaling: Scale::Fixed(65536.0),
        not_finite: NonFinitePolicy::Error,
        measure: false,
        dynamic: None,
    }
}

/// The same with exponents that the workers agree on.
pub fn block(world: u16, slots: u32, elements: u16) -> JobParams {
    JobParams { scaling: Scale::Block, ..job(world, slots, elements) }
}

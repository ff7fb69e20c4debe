//! What several tests and the benchmark share: an aggregator in memory.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::expect_used, reason = "a test that cannot go on")]

pub mod aggregator;
pub mod lone;

use sumac_transport::JobParams;

/// A small job; rank 0.
pub fn job(world: u16, slots: u32, elements: u16) -> JobParams {
    JobParams {
        job: 3,
        epoch: 7,
        token: 0x5eed_cafe_f00d_beef,
        rank: 0,
        world,
        slots,
        elements,
        scale: 65536.0,
        shards: 1,
    }
}

//! Scenarios that are not drawn: one tensor, four workers, and loss alone.

use sumac_transport::{Arithmetic, DType, JobParams, Scale};

use crate::{
    scenario::{Faults, Kind, Scenario, Tensor},
    support,
};

pub const MICRO: u64 = 1_000;
/// When the tensor is submitted: after the handshake, however often that was lost.
pub const START: u64 = 2_000_000_000;

/// Four workers, 64 slots, a round trip of about 50 µs, and loss alone.
pub fn lossy(seed: u64, loss: f64, chunks: usize) -> Scenario {
    let kind = Kind::AllReduce(Arithmetic::Sum);
    let tensor = |count, at| Tensor { kind, dtype: DType::Int32, count, lane: 0, at, poison: None };
    let params = support::job(4, 64, 2);
    Scenario {
        seed,
        lanes: 1,
        racks: 1,
        stealing: true,
        first_seq: 0,
        // The empty one begins the handshake.
        tensors: vec![tensor(0, 0), tensor(chunks * 2, START)],
        faults: Faults {
            loss,
            duplication: 0.0,
            reordering: 0.0,
            held_back: MICRO,
            delay: 20 * MICRO,
            spacing: 500,
        },
        ring: 128,
        lateness: vec![0; usize::from(params.world)],
        pause: None,
        outage: None,
        restart: None,
        params,
    }
}

/// A tensor over links that carry a frame in 12 µs (1,500 bytes at 1 Gbit/s), in a window of ten times the path.
pub fn link_bound(seed: u64, loss: f64, chunks: usize) -> Scenario {
    let mut scenario = lossy(seed, loss, chunks);
    scenario.faults.spacing = 12 * MICRO;
    scenario
}

/// 256 KB of floats with block exponents at 1 % loss, over a fast path.
pub fn short(seed: u64) -> Scenario {
    let mut scenario = lossy(seed, 0.01, 187);
    scenario.params = JobParams { scaling: Scale::Block, slots: 128, ..scenario.params };
    scenario.tensors[1].dtype = DType::Float32;
    scenario.faults.spacing = 2 * MICRO;
    scenario
}

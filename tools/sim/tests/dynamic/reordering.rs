//! Packets that overtake each other without being lost, in both modes.

use sumac_sim::{
    events::{MICRO, Nanos},
    link::Faults,
};
use sumac_transport::{EngineStats, JobParams};

use crate::fabric::{CHUNKS, Fabric, WORKERS, jobs};

const TENSORS: u32 = 40;
/// Contributions of all workers.
const SENT: u64 = CHUNKS * TENSORS as u64 * WORKERS as u64;

/// Sums the tensors; `far`: the delay of the second spine's cables. Paths are alike but for that, and chosen
/// in turn.
fn run(params: &JobParams, far: Nanos, faults: Faults, seed: u64) -> EngineStats {
    let mut fabric = Fabric::new(params, far, faults, seed);
    fabric.sum(TENSORS);
    fabric.stats()
}

#[test]
fn overtaking_is_no_loss() {
    // The second spine's delay beside 10 us, and the most by which single packets are held back.
    let table = [(10, 0), (15, 0), (40, 0), (10, 10), (10, 20)];
    for (far, held_back) in table {
        let faults = Faults {
            reordering: f64::from(held_back.min(1)),
            held_back: held_back as Nanos * MICRO,
            ..Faults::default()
        };
        for (params, seed) in jobs().iter().flat_map(|params| (0..4).map(move |seed| (params, seed))) {
            let stats = run(params, far * MICRO, faults, seed);
            let case = format!("{far} us, held back {held_back} us, seed {seed}: {stats:?}");
            // A chunk whose first packets met a busy slot waits for a retransmission, as if one had been
            // lost.
            assert!(stats.halvings - stats.halvings_undone <= stats.collisions, "{case}");
            assert!(stats.halvings <= 6, "{case}");
            // One of two hundred, most in the first round trips. Static workers only ask, also where another
            // one's packet is late.
            assert!(stats.resent <= SENT / 200, "{SENT}: {case}");
            assert!(stats.questions <= SENT / 8, "{SENT}: {case}");
        }
    }
}

#[test]
fn losses_are_found_beside_reordering() {
    let faults = Faults { loss: 0.005, ..Faults::default() };
    for (params, seed) in jobs().iter().flat_map(|params| (0..4).map(move |seed| (params, seed))) {
        let stats = run(params, 40 * MICRO, faults, seed);
        let case = format!("seed {seed}: {stats:?}");
        assert!(stats.suspects_fast > 5 * stats.suspects_timer && stats.suspects_fast > 100, "{case}");
        // A chunk crosses two cables with each contribution and each result; all workers miss one that is
        // lost.
        let lost = SENT * 2 * 2 * 5 / 1000;
        let most = lost * u64::from(WORKERS) * 4;
        assert!(stats.resent + stats.questions < most, "{most}: {case}");
    }
}

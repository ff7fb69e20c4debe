//! Sums over cables that lose, duplicate and reorder frames, 1 % each, in every direction.
//!
//! ```text
//! w0 net0 --[cable]-- port0 +-----+
//! w1 net0 --[cable]-- port1 | agg |
//! w2 net0 --[cable]-- port2 +-----+
//! ```

use sumac_lab::deployment::{Backend, SumacOptions};
use sumac_lab::units::Probability;
use sumac_lab::{Faults, LabSpec};
use sumac_tests::site::with_sumac;
use sumac_tests::{Crew, exact, stats};

const COUNT: usize = 400_000;
const ROUNDS: u64 = 3;

/// One in a hundred.
const PERCENT: Probability = Probability(10_000);

fn sums_survive(backend: Backend) {
    let faults = Faults { loss: PERCENT, duplicate: PERCENT, reorder: PERCENT };
    let options = SumacOptions { backend, ..SumacOptions::default() };
    with_sumac(LabSpec { faults, ..LabSpec::new(3) }, &options, |sumac| {
        let before = sumac.lab().injected().unwrap();
        let crew = Crew::join(sumac, "lossy");
        for seed in 0..ROUNDS {
            // The reference knows no network: what equals it equals every other run, lossless ones included.
            exact::assert_sums(&format!("{backend:?}, round {seed}"), seed, &crew.allreduce(seed, COUNT));
        }
        let sent_again = crew.counter("resent");
        crew.leave();
        let after = sumac.lab().injected().unwrap();
        for (direction, before, after) in [("up", before.up, after.up), ("down", before.down, after.down)] {
            println!(
                "{backend:?} {direction}: {} frames, {} lost, {} duplicated, {} reordered",
                after.frames - before.frames,
                after.lost - before.lost,
                after.duplicated - before.duplicated,
                after.reordered - before.reordered,
            );
            assert!(after.lost > before.lost, "{direction}: nothing was lost");
            assert!(after.duplicated > before.duplicated, "{direction}: nothing was duplicated");
            assert!(after.reordered > before.reordered, "{direction}: nothing was reordered");
        }
        println!("{backend:?}: {sent_again} chunks sent again");
        assert!(sent_again > 0, "frames were lost and no chunk was sent again");
        if backend == Backend::Xdp {
            // A copy that the cable made of a contribution, or of one that was sent again needlessly.
            let counters = stats::at_aggregator(sumac);
            let refused =
                ["duplicate", "replied", "stale"].map(|reason| counters.get(reason).copied().unwrap_or(0));
            println!("at the aggregator: duplicates, replies, stale: {refused:?}");
            assert!(refused.iter().sum::<u64>() > 0);
        }
    });
}

#[test]
fn over_xdp() {
    sums_survive(Backend::Xdp);
}

#[test]
fn over_udp() {
    sums_survive(Backend::Udp);
}

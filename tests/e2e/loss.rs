//! Work stealing and the aggregator's own drop simulator.
//!
//! ```text
//! w0 net0 --[cable]-- port0 +-----+
//! w1 net0 --[cable]-- port1 | agg |
//! w2 net0 --[cable]-- port2 +-----+
//! ```

use sumac_lab::deployment::SumacOptions;
use sumac_lab::units::Probability;
use sumac_lab::{Faults, LabSpec};
use sumac_tests::site::with_crew;
use sumac_tests::{exact, stats};

const SEED: u64 = 41;
const COUNT: usize = 300_000;

/// One in a hundred.
const PERCENT: Probability = Probability(10_000);

#[test]
fn slots_that_lose_less_take_more() {
    let faults = Faults { loss: PERCENT, ..Faults::default() };
    for stealing in [true, false] {
        // Few slots, so that each has many chunks to be late with.
        let options = SumacOptions { stealing, slots: Some(16), ..SumacOptions::default() };
        with_crew(LabSpec { faults, ..LabSpec::new(3) }, &options, |_, crew| {
            let what = if stealing { "with stealing" } else { "without stealing" };
            exact::assert_sums(what, SEED, &crew.allreduce(SEED, COUNT));
            let steals: Vec<_> =
                crew.trainers.iter().map(|trainer| stats::counter(trainer, "steals")).collect();
            println!("{what}: {steals:?} of {} chunks", stats::counter(&crew.trainers[0], "results"));
            // All workers receive the same next chunk, and take it.
            assert!(steals.iter().all(|count| *count == steals[0] && (*count > 0) == stealing), "{steals:?}");
        });
    }
}

#[test]
fn what_the_aggregator_drops_on_purpose_is_counted_and_sent_again() {
    let options = SumacOptions { drop: PERCENT, ..SumacOptions::default() };
    with_crew(LabSpec::new(3), &options, |sumac, crew| {
        exact::assert_sums("with drops", SEED, &crew.allreduce(SEED, COUNT));
        let dropped = stats::at_aggregator(sumac)["injected_drop"];
        println!("{dropped} frames dropped, {} sent again", crew.counter("resent"));
        assert!(dropped > 0 && crew.counter("resent") > 0);
        sumac.sumac_agg(&["drop", "--up", "0", "--down", "0"]).unwrap();
        let before = stats::at_aggregator(sumac)["injected_drop"];
        exact::assert_sums("without drops", SEED, &crew.allreduce(SEED, COUNT));
        assert_eq!(stats::at_aggregator(sumac)["injected_drop"], before, "it still drops");
    });
}

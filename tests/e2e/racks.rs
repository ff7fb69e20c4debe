//! Two and three levels: the same bits as from one aggregator, also when every cable of all levels loses
//! frames.
//!
//! ```text
//! w0 net0 --[cable]-- port0 +-------+
//! w1 net0 --[cable]-- port1 | rack0 | up --[cable]-- port0 +-----+
//!                           +-------+                      | agg |
//! w2 net0 --[cable]-- port0 +-------+ up --[cable]-- port1 +-----+
//! w3 net0 --[cable]-- port1 | rack1 |
//!                           +-------+
//! ```

use sumac_client::Reduction;
use sumac_lab::deployment::SumacOptions;
use sumac_lab::units::Probability;
use sumac_lab::{Faults, LabSpec};
use sumac_tests::site::with_sumac;
use sumac_tests::{Crew, exact, stats};

const SEED: u64 = 11;
const COUNT: usize = 100_003;

/// One in a hundred, in each direction of every cable.
const LOSS: Faults = Faults { loss: Probability(10_000), duplicate: Probability(0), reorder: Probability(0) };

/// The sums of `workers` workers in `racks` racks; 0: below one aggregator.
fn sums(racks: u16, workers: u16) -> Option<Vec<Vec<f32>>> {
    sums_of(LabSpec { racks, ..LabSpec::new(workers) }, &SumacOptions::default())
}

fn sums_of(spec: LabSpec, options: &SumacOptions) -> Option<Vec<Vec<f32>>> {
    let spec = LabSpec { faults: LOSS, ..spec };
    let LabSpec { racks, workers, levels, .. } = spec;
    let mut result = None;
    with_sumac(spec, options, |sumac| {
        let what = format!("{workers} workers in {racks} racks, {levels} levels");
        let crew = Crew::join(sumac, "levels");
        let sums = crew.allreduce(SEED, COUNT);
        exact::assert_sums(&what, SEED, &sums);
        exact::assert_sums(&what, SEED, &crew.reduce::<i32>(SEED, COUNT, Reduction::Max));
        let sent_again = crew.counter("resent");
        crew.leave();
        let injected = sumac.lab().injected().unwrap();
        println!(
            "{what}: {} lost up, {} down, {sent_again} sent again",
            injected.up.lost, injected.down.lost
        );
        assert!(injected.up.lost > 0 && injected.down.lost > 0, "{what}: nothing was lost");
        for host in sumac.lab().racks() {
            let counters = stats::counters_of(sumac, host);
            let count = |name: &str| counters.get(name).copied().unwrap_or(0);
            assert!(count("concluded") > 0, "{}: no result came from the root: {counters:?}", host.name());
        }
        result = Some(sums.by_rank);
    });
    result
}

#[test]
fn two_racks_of_two_have_the_bits_of_one_level() {
    let bits = |sums: Option<Vec<Vec<f32>>>| {
        sums.map(|sums| sums.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    assert_eq!(bits(sums(2, 4)), bits(sums(0, 4)));
}

/// Eight workers in four racks, every two below an aggregator in the middle.
#[test]
fn three_levels_have_the_bits_of_one() {
    let bits = |sums: Option<Vec<Vec<f32>>>| {
        sums.map(|sums| sums.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    let tree = || LabSpec { racks: 4, levels: 3, ..LabSpec::new(8) };
    assert_eq!(bits(sums_of(tree(), &SumacOptions::default())), bits(sums(0, 8)));
}

#[test]
fn two_racks_of_three() {
    sums(2, 6);
}

#[test]
fn two_racks_of_four() {
    sums(2, 8);
}

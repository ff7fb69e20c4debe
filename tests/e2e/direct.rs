//! Direct jobs: tensors go from worker to worker, without an aggregator, exactly or within a loss bound.

use std::time::Duration;
use sumac_client::{Reduction, Topology};
use sumac_lab::deployment::{Backend, DirectOptions, SumacOptions};

use sumac_lab::run::{Operation, RunOptions, run};
use sumac_lab::units::Probability;
use sumac_lab::{Faults, LabSpec};
use sumac_tests::site::{in_turn, with_sumac};
use sumac_tests::{Crew, exact};

const COUNT: usize = 60_003;

/// One in a hundred of each, in each direction of every cable.
const FAULTS: Faults =
    Faults { loss: Probability(10_000), duplicate: Probability(10_000), reorder: Probability(10_000) };

fn sumac(backend: Backend, topology: Topology) -> SumacOptions {
    let direct = Some(DirectOptions { collective: Some(topology), ..DirectOptions::default() });
    SumacOptions { backend, direct, ..SumacOptions::default() }
}

/// Results that do not depend on the order of additions, through cables that lose, duplicate and reorder.
fn reductions_are_exact(backend: Backend, topology: Topology) {
    let spec = LabSpec { faults: FAULTS, ..LabSpec::new(3) };
    with_sumac(spec, &sumac(backend, topology), |sumac| {
        let crew = Crew::join(sumac, "direct");
        for seed in 0..3 {
            exact::assert_sums("integers", seed, &crew.reduce::<i32>(seed, COUNT, Reduction::Sum));
            exact::assert_sums("the largest", seed, &crew.reduce::<f32>(seed, COUNT, Reduction::Max));
        }
        assert!(crew.counter("resent") > 0, "frames were lost and no chunk was sent again");
        assert_eq!(crew.counter("chunks_lost"), 0, "without a bound nothing is given up");
        crew.leave();
    });
}

#[test]
fn reductions_are_exact_by_owners_over_xdp() {
    reductions_are_exact(Backend::Xdp, Topology::Owners);
}

#[test]
fn reductions_are_exact_around_the_ring_over_udp() {
    reductions_are_exact(Backend::Udp, Topology::Ring);
}

#[test]
fn a_loss_bound_is_used_and_never_exceeded() {
    let faults = Faults { loss: Probability(50_000), ..Faults::default() };
    in_turn(|| {
        for backend in [Backend::Xdp, Backend::Udp] {
            let options = RunOptions {
                lab: LabSpec { faults, ..LabSpec::new(4) },
                sumac: sumac(backend, Topology::Owners),
                operation: Operation { loss_bound: 0.1, ..Operation::sum(400_000) },
                jobs: 1,
                iterations: 2,
                warmup: 0,
                seed: 5,
                limit: Duration::from_secs(60),
                trace: false,
            };
            let report = run(&options).unwrap();
            println!("{report}");
            assert!(report.verified, "{} elements are no sum of any workers", report.wrong_elements);
            let loss = report.loss.unwrap();
            assert!(loss.spent > 0.0 && loss.spent <= loss.budget, "{loss:?}");
        }
    });
}

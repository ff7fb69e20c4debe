//! Hosts with several ranks: each is one worker, whose daemon adds its ranks' tensors as it sends them. Every
//! element of every rank is compared with the reference, bit by bit.

use std::time::Duration;

use sumac_client::{DType, Reduction};
use sumac_lab::capture::CaptureOptions;
use sumac_lab::deployment::{Backend, DirectOptions, DynamicOptions, SumacOptions};
use sumac_lab::run::{Operation, Report, RunOptions, run};
use sumac_lab::units::Probability;
use sumac_lab::{Faults, LabSpec};
use sumac_tests::site::in_turn;

/// One in a hundred of each, in each direction of every cable.
const FAULTS: Faults =
    Faults { loss: Probability(10_000), duplicate: Probability(10_000), reorder: Probability(10_000) };

/// Runs two hosts of three ranks through cables that lose, duplicate and reorder.
fn measured(sumac: SumacOptions, dtype: DType, reduction: Reduction) -> Report {
    measured_with(sumac, Operation { dtype, reduction, ..Operation::sum(100_003) })
}

fn measured_with(sumac: SumacOptions, operation: Operation) -> Report {
    let operation = Operation { ranks_per_host: 3, ..operation };
    let options = RunOptions {
        lab: LabSpec {
            faults: FAULTS,
            parameter_hosts: u16::from(sumac.dynamic.is_some()),
            ..LabSpec::new(2)
        },
        sumac,
        operation,
        jobs: 1,
        iterations: 2,
        warmup: 0,
        seed: 7,
        limit: Duration::from_secs(60),
        trace: false,
        captures: CaptureOptions::default(),
    };
    let report = run(&options).unwrap();
    println!("{report}");
    assert!(report.verified, "{} elements are wrong", report.wrong_elements);
    report
}

#[test]
fn static_sums_of_all_types_are_those_of_all_ranks() {
    in_turn(|| {
        let xdp = SumacOptions { backend: Backend::Xdp, ..SumacOptions::default() };
        assert!(measured(xdp.clone(), DType::Float32, Reduction::Sum).retransmits > 0);
        measured(xdp.clone(), DType::Bfloat16, Reduction::Mean);
        measured(xdp.clone(), DType::Float16, Reduction::Max);
        measured(xdp, DType::Int32, Reduction::Mean);
    });
}

#[test]
fn dynamic_and_direct_sums_are_those_of_all_ranks() {
    in_turn(|| {
        let dynamic = Some(DynamicOptions::default());
        measured(SumacOptions { dynamic, ..SumacOptions::default() }, DType::Float32, Reduction::Sum);
        let direct = Some(DirectOptions::default());
        let udp = SumacOptions { backend: Backend::Udp, direct, ..SumacOptions::default() };
        measured(udp, DType::Float32, Reduction::Mean);
    });
}

/// Of a host that was left out all ranks are.
#[test]
fn losses_are_counted_by_host() {
    in_turn(|| {
        let bound = Operation { loss_bound: 0.5, ..Operation::sum(400_000) };
        for direct in [None, Some(DirectOptions::default())] {
            let report = measured_with(SumacOptions { direct, ..SumacOptions::default() }, bound);
            let loss = report.loss.unwrap();
            // In a static job nothing may be left out. The run compares the elements with what was.
            assert!(loss.spent > 0.0 || direct.is_none(), "{loss:?}");
            assert!(loss.by_worker.len() == 2 && loss.by_worker.iter().all(|spent| *spent <= loss.budget));
        }
    });
}

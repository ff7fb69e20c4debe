//! Every type, reduction and wire format, held to an arithmetic that shares no code with Sumac's.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg |
//! w2 net0 ------ port2 +-----+
//! ```

use sumac_client::{Code, NonFinitePolicy, OpOptions, Reduction, WireFormat, bf16, f16};
use sumac_lab::LabSpec;
use sumac_lab::deployment::SumacOptions;
use sumac_tests::crew::{failure, sum};
use sumac_tests::exact::Value;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::LIMIT;
use sumac_tests::{Crew, exact};

const SEED: u64 = 21;

/// Neither a multiple of a packet nor even.
const COUNT: usize = 5_003;

const REDUCTIONS: [Reduction; 4] = [Reduction::Sum, Reduction::Mean, Reduction::Min, Reduction::Max];

fn assert_reductions<T: Value>(crew: &Crew, what: &str) {
    for reduction in REDUCTIONS {
        let what = format!("{what}, {} of {}", reduction.name(), T::DTYPE.name());
        exact::assert_sums(&what, SEED, &crew.reduce::<T>(SEED, COUNT, reduction));
    }
}

fn assert_types(crew: &Crew, what: &str) {
    assert_reductions::<f32>(crew, what);
    assert_reductions::<f16>(crew, what);
    assert_reductions::<bf16>(crew, what);
    assert_reductions::<i32>(crew, what);
}

#[test]
fn every_type_and_reduction_is_exact_to_the_bit() {
    with_sumac(LabSpec::new(3), &SumacOptions::default(), |sumac| {
        let crew = Crew::join_with(sumac, "block", sumac_client::JobOptions::block);
        assert_types(&crew, "block floating point");
        exact::assert_within_bound("float32", SEED, &crew.reduce::<f32>(SEED, COUNT, Reduction::Sum));
        exact::assert_within_bound("float16", SEED, &crew.reduce::<f16>(SEED, COUNT, Reduction::Sum));
        exact::assert_within_bound("bfloat16", SEED, &crew.reduce::<bf16>(SEED, COUNT, Reduction::Sum));
        crew.leave();
        let crew = Crew::join_with(sumac, "fixed", |options| options.scale(1_000_000.0));
        assert_types(&crew, "fixed scale");
        crew.leave();
        let crew = Crew::join_with(sumac, "halves", |options| options.wire(WireFormat::Int16));
        assert_types(&crew, "16 bits on the wire");
        crew.leave();
    });
}

/// Worker 1's infinity stands here.
const INDEX: usize = 1_234;

#[test]
fn what_is_no_number_is_an_error_or_carried() {
    with_sumac(LabSpec::new(3), &SumacOptions::default(), |sumac| {
        for (name, policy) in [("strict", NonFinitePolicy::Error), ("lenient", NonFinitePolicy::Carry)] {
            let crew = Crew::join_with(sumac, name, |options| options.not_finite(policy));
            let submit = |trainer: &sumac_tests::Trainer| {
                let mut values = trainer.client.tensor::<f32>(COUNT).unwrap();
                values.fill(1.0);
                if trainer.rank == 1 {
                    values[INDEX] = f32::INFINITY;
                }
                trainer.job.allreduce_with(values, OpOptions::named("gradient")).unwrap()
            };
            for (rank, pending) in
                crew.trainers.iter().map(submit).collect::<Vec<_>>().into_iter().enumerate()
            {
                if policy == NonFinitePolicy::Carry {
                    let values = sum(pending);
                    assert!(values[INDEX].is_nan(), "rank {rank}: {}", values[INDEX]);
                    // The whole packet is NaN, and nothing else.
                    let words = usize::from(crew.trainers[0].job.opened().elements);
                    let packet = INDEX / words * words..(INDEX / words + 1) * words;
                    let carried = |(index, value): (usize, &f32)| packet.contains(&index) == value.is_nan();
                    assert!(values.iter().enumerate().all(carried), "rank {rank}");
                    continue;
                }
                let failure = failure(pending, LIMIT);
                println!("rank {rank}: {failure}");
                assert_eq!(failure.code, Code::Saturated, "rank {rank}: {failure}");
                assert_eq!(failure.tensor.as_deref(), Some("gradient"), "rank {rank}: {failure}");
                if rank == 1 {
                    assert_eq!(failure.index, Some(INDEX as u64), "rank {rank}: {failure}");
                }
            }
            // The job goes on.
            exact::assert_sums(name, SEED, &crew.allreduce(SEED, COUNT));
            crew.leave();
        }
    });
}

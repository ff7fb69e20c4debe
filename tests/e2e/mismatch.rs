//! Workers that do not do the same: an error on all of them that names both sides, and no hang.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg |
//! w2 net0 ------ port2 +-----+
//! ```

use sumac_client::{
    ClientError, Code, Element, Failed, Failure, OpOptions, OperationOrder, Pending, Reduction, f16,
};
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_tests::crew::failure;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::LIMIT;
use sumac_tests::{Crew, Trainer, exact};

const COUNT: usize = 3_000;

/// The rank that differs.
const ODD: u16 = 1;

/// Waits for the failure of an operation, whatever its type.
type Waiting = Box<dyn FnOnce() -> Failure>;

fn waiting<T: Element + 'static>(outcome: Result<Pending<T>, Box<Failed<T>>>) -> Waiting {
    match outcome.map_err(|failed| failed.error) {
        Ok(pending) => Box::new(|| failure(pending, LIMIT)),
        // The others had already found out when it was handed in.
        Err(ClientError::Daemon(failure)) => Box::new(|| failure),
        Err(error) => panic!("{error}"),
    }
}

fn allreduce<T: Element + 'static>(trainer: &Trainer, count: usize, options: OpOptions<'_>) -> Waiting {
    waiting(trainer.job.allreduce_with(trainer.client.tensor::<T>(count).unwrap(), options))
}

/// Submits another operation than the sum of 3,000 float32 under the name `layer`.
fn deviate(trainer: &Trainer, how: &str) -> Waiting {
    let layer = OpOptions::named("layer");
    match how {
        "float32[2999]" => allreduce::<f32>(trainer, COUNT - 1, layer),
        "\"other\"" => allreduce::<f32>(trainer, COUNT, OpOptions::named("other")),
        "float16" => allreduce::<f16>(trainer, COUNT, layer),
        "max" => allreduce::<f32>(trainer, COUNT, OpOptions { reduction: Reduction::Max, ..layer }),
        "root 2" => {
            let tensor = trainer.client.tensor::<f32>(COUNT).unwrap();
            waiting(trainer.job.broadcast(2, tensor, layer))
        }
        "urgent" => allreduce::<f32>(trainer, COUNT, OpOptions { priority: 7, ..layer }),
        _ => unreachable!("{how} is not a deviation"),
    }
}

fn assert_named(sumac: &Deployment<'_>, how: &str, order: OperationOrder) {
    let crew = Crew::join_with(sumac, "odd", |options| options.order(order));
    let waiting: Vec<_> = crew
        .trainers
        .iter()
        .map(|trainer| match trainer.rank {
            ODD => deviate(trainer, how),
            _ => allreduce::<f32>(trainer, COUNT, OpOptions::named("layer")),
        })
        .collect();
    for (rank, waiting) in waiting.into_iter().enumerate() {
        let failure = waiting();
        println!("{how}, rank {rank}: {failure}");
        assert_eq!(failure.code, Code::Mismatch, "{how}, rank {rank}: {failure}");
        for side in [how, "rank 1", "sum float32[3000]"] {
            assert!(failure.message.contains(side), "{how}, rank {rank}: {side} is not in {failure}");
        }
    }
}

#[test]
fn whoever_differs_is_named_on_all_workers_with_both_sides() {
    with_sumac(LabSpec::new(3), &SumacOptions::default(), |sumac| {
        for how in ["float32[2999]", "\"other\"", "float16", "max", "root 2", "urgent"] {
            assert_named(sumac, how, OperationOrder::Submission);
        }
        for how in ["float32[2999]", "float16"] {
            assert_named(sumac, how, OperationOrder::Name);
        }
        // None of this is in the way of the next job.
        let crew = Crew::join(sumac, "odd");
        exact::assert_sums("afterwards", 1, &crew.allreduce(1, COUNT));
        crew.leave();
    });
}

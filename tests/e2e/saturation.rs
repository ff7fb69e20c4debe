//! Values that do not fit the wire's fixed point: an error on every worker, which names tensor and element.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg |
//! w2 net0 ------ port2 +-----+
//! ```

use sumac_client::{Code, OpOptions};
use sumac_lab::LabSpec;
use sumac_lab::deployment::SumacOptions;
use sumac_tests::crew::failure;
use sumac_tests::exact;
use sumac_tests::site::with_crew;
use sumac_tests::wait::LIMIT;

const COUNT: usize = 20_000;

/// The rank at fault.
const CULPRIT: u16 = 1;
const INDEX: usize = 12_345;

#[test]
fn what_does_not_fit_is_named_and_ends_nothing_else() {
    // By block floating point every number fits.
    let options = SumacOptions { scale: Some(1_048_576.0), ..SumacOptions::default() };
    with_crew(LabSpec::new(3), &options, |_, crew| {
        for bad in [1e6, f32::NEG_INFINITY, f32::NAN] {
            let tensor = format!("with {bad}");
            let pending: Vec<_> = crew
                .trainers
                .iter()
                .map(|trainer| {
                    let mut values = trainer.client.tensor::<f32>(COUNT).unwrap();
                    if trainer.rank == CULPRIT {
                        values[INDEX] = bad;
                    }
                    trainer.job.allreduce_with(values, OpOptions::named(&tensor)).unwrap()
                })
                .collect();
            for (rank, pending) in (0..).zip(pending) {
                let failure = failure(pending, LIMIT);
                println!("{bad}, rank {rank}: {failure}");
                assert_eq!(failure.code, Code::Saturated, "{bad}, rank {rank}: {failure}");
                assert_eq!(failure.tensor.as_ref(), Some(&tensor), "{bad}, rank {rank}: {failure}");
                if rank == CULPRIT {
                    assert_eq!(failure.index, Some(INDEX as u64), "{bad}, rank {rank}: {failure}");
                } else {
                    // The others know the packet, and know whose value it is.
                    let told = ["rank 1", "12345"].iter().all(|part| failure.message.contains(part));
                    assert!(told, "{bad}, rank {rank}: {failure}");
                }
            }
            // The job goes on.
            exact::assert_sums("the next operation", 5, &crew.allreduce(5, COUNT));
        }
    });
}

//! Workers with different operations: all receive an error that names both operations. See `lab.rs` for the
//! topology.

use crate::kinds::failure;
use crate::lab::Lab;
use sumac_client::{Client, Code, Failure, Job, JobOptions, OpOptions, OperationOrder, Reduction};

/// Runs two workers whose second operations differ; both must receive an error with both operations.
fn differ(
    options: impl Fn(JobOptions) -> JobOptions,
    work: fn(&Client, &Job, u16) -> Failure,
    sides: [&str; 2],
) {
    let lab = Lab::new(2);
    let failures = lab.train("differ", options, move |client, job, rank| {
        let same = OpOptions::named("same");
        job.allreduce_with(client.tensor::<f32>(10).unwrap(), same).unwrap().wait().unwrap();
        work(client, job, rank)
    });
    for (rank, failure) in failures.iter().enumerate() {
        println!("rank {rank}: {failure}");
        assert_eq!(
            (failure.code, &failure.ranks[..]),
            (Code::Mismatch, &[0, 1][..]),
            "rank {rank}: {failure}"
        );
        for (other, side) in sides.iter().enumerate() {
            let words = format!("rank {other} has {side}");
            assert!(failure.message.contains(&words), "rank {rank}: {words:?} is missing in {failure}");
        }
    }
}

fn sum(client: &Client, job: &Job, count: usize, options: OpOptions<'_>) -> Failure {
    failure(job.allreduce_with(client.tensor::<f32>(count).unwrap(), options))
}

#[test]
fn sizes() {
    differ(
        |o| o,
        |client, job, rank| sum(client, job, 1000 - usize::from(rank), OpOptions::default()),
        ["#1 allreduce sum float32[1000]", "#1 allreduce sum float32[999]"],
    );
}

#[test]
fn loss_bounds() {
    differ(
        |o| o,
        |client, job, rank| {
            let loss_bound = [0.1, 0.2][usize::from(rank)];
            sum(client, job, 1000, OpOptions { loss_bound, ..OpOptions::default() })
        },
        ["#1 allreduce sum float32[1000] loss bound 0.1", "#1 allreduce sum float32[1000] loss bound 0.2"],
    );
}

#[test]
fn types() {
    differ(
        |o| o,
        |client, job, rank| match rank {
            0 => sum(client, job, 1000, OpOptions::default()),
            _ => failure(job.allreduce(client.tensor::<i32>(1000).unwrap())),
        },
        ["#1 allreduce sum float32[1000]", "#1 allreduce sum int32[1000]"],
    );
}

#[test]
fn names_and_so_the_order() {
    differ(
        |o| o,
        |client, job, rank| {
            let names = if rank == 0 { ["a", "b"] } else { ["b", "a"] };
            let pending = names.map(|name| {
                // The job may have failed by then.
                job.allreduce_with(client.tensor::<f32>(5000).unwrap(), OpOptions::named(name))
            });
            let [first, second] = pending.map(failure);
            assert_eq!(first, second);
            first
        },
        ["#1 allreduce sum float32[5000] \"a\"", "#1 allreduce sum float32[5000] \"b\""],
    );
}

/// Several lanes, in which the workers detect different mismatches first: all report the same two operations,
/// also the worker that agrees with one of them.
#[test]
fn all_workers_report_the_same_mismatch() {
    let lab = Lab::with(3, "shards = 2\n");
    let failures = lab.train(
        "three",
        |o| o,
        |client, job, rank| {
            let mut names = ["a", "b", "c", "d", "e", "f", "g", "h"];
            if rank == 1 {
                names[3..].reverse();
            }
            let pending: Vec<_> = (0..)
                .zip(names)
                .map(|(at, name)| {
                    let options = OpOptions { priority: (at % 2) * 7, ..OpOptions::named(name) };
                    let count = if name < "e" { 100 } else { 20_000 };
                    job.allreduce_with(client.tensor::<f32>(count).unwrap(), options)
                })
                .collect();
            let failures: Vec<Failure> = pending.into_iter().skip(3).map(failure).collect();
            assert!(failures.windows(2).all(|pair| pair[0] == pair[1]), "{failures:?}");
            failures[0].clone()
        },
    );
    println!("{}", failures[0]);
    assert!(failures.windows(2).all(|pair| pair[0] == pair[1]), "{failures:?}");
    let Failure { code, message, ranks, .. } = &failures[0];
    for side in [
        "#3 allreduce sum float32[100] urgent \"d\"",
        "rank 1 has #3 allreduce sum float32[20000] urgent \"h\"",
    ] {
        assert!(message.contains(side), "{message}");
    }
    // With the third, if the first had not submitted it yet.
    assert!(*code == Code::Mismatch && (ranks == &[0, 1] || ranks == &[1, 2]), "{code:?} {ranks:?}");
}

#[test]
fn kinds_reductions_and_roots() {
    differ(
        |o| o,
        |client, job, rank| match rank {
            0 => failure(job.broadcast(0, client.tensor::<f32>(500).unwrap(), OpOptions::default())),
            _ => failure(job.broadcast(1, client.tensor::<f32>(500).unwrap(), OpOptions::default())),
        },
        ["#1 broadcast float32[500] root 0", "#1 broadcast float32[500] root 1"],
    );
    differ(
        |o| o,
        |client, job, rank| {
            let reduction = if rank == 0 { Reduction::Sum } else { Reduction::Max };
            sum(client, job, 100, OpOptions { reduction, ..OpOptions::default() })
        },
        ["#1 allreduce sum float32[100]", "#1 allreduce max float32[100]"],
    );
}

/// They are in different lanes and have no slot in common.
#[test]
fn urgent_and_not() {
    differ(
        |o| o,
        |client, job, rank| {
            let priority = if rank == 0 { 7 } else { 0 };
            sum(client, job, 1000, OpOptions { priority, ..OpOptions::default() })
        },
        ["#1 allreduce sum float32[1000] urgent", "#1 allreduce sum float32[1000]"],
    );
}

#[test]
fn two_operations_of_one_name() {
    differ(
        |o| o.order(OperationOrder::Name),
        |client, job, rank| sum(client, job, 100 + usize::from(rank), OpOptions::named("layer")),
        ["allreduce sum float32[100] \"layer\"", "allreduce sum float32[101] \"layer\""],
    );
}

/// A worker with fewer operations may still be computing: no mismatch until it leaves.
#[test]
fn fewer_operations_are_no_mismatch() {
    let lab = Lab::new(2);
    let codes = lab.train(
        "less",
        |o| o,
        |client, job, rank| {
            if rank == 1 {
                std::thread::sleep(std::time::Duration::from_millis(1500));
            }
            let failure = (rank == 0).then(|| sum(client, job, 10, OpOptions::default()));
            failure.map(|failure| (failure.code, failure.ranks))
        },
    );
    assert_eq!(codes, [Some((Code::JobFailed, vec![1])), None]);
}

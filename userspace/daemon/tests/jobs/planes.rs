//! Jobs of two control planes on the same hosts. See `lab.rs` for the topology.

use std::thread;
use std::time::Duration;

use sumac_client::{Client, Job, Mode};

use crate::common::scratch;
use crate::kinds::sum;
use crate::lab::{Aggregator, Kind, Lab};

/// Sums in all jobs at once. `jobs`: by job, the trainers of its ranks.
fn sum_in_all(jobs: &[Vec<(Client, Job)>]) {
    const COUNT: usize = 50_000;
    thread::scope(|scope| {
        for (number, ranks) in (1..).zip(jobs) {
            for (rank, (client, job)) in (1..).zip(ranks) {
                scope.spawn(move || {
                    let value = |i: usize| (i as i32 % 1000) * number * rank;
                    let expected: Vec<i32> = (0..COUNT as i32).map(|i| (i % 1000) * number * 3).collect();
                    assert!(sum(client, job, COUNT, value) == expected, "job {number}, rank {}", rank - 1);
                });
            }
        }
    });
}

/// Each control plane numbers its jobs from 1.
#[test]
fn two_control_planes_assign_one_number_to_jobs_of_a_host() {
    let scratch = scratch();
    let second = Aggregator::start(Kind::Host { shared: 0 }, Duration::ZERO, &scratch.path().join("second"));
    let further = second.lines("second");
    let mut lab = Lab::with(2, &further);
    let jobs = [
        lab.open("first", |options| options),
        lab.open("second", |options| options.aggregator("second")),
        lab.open("first of two", |options| options),
        lab.open("direct", |options| options.aggregator("second").mode(Mode::Direct)),
    ];
    let numbers: Vec<_> = jobs.iter().map(|ranks| ranks[0].1.opened().wire_job).collect();
    assert_eq!(numbers, [1, 1, 2, 2]);
    sum_in_all(&jobs);
    // The lanes go on in another daemon, each in its job.
    lab.upgrade(0, &further);
    sum_in_all(&jobs);
    let [first, .., direct] = jobs;
    for (_, job) in first {
        job.close().unwrap();
    }
    sum_in_all(&[direct]);
}

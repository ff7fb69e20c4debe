//! A worker of a dynamic job dies in mid-job, and another takes its place (ATP appendix A.3). See `lab.rs`
//! for the topology; the last host is not in the job at first.

use std::thread;

use crate::lab::{Kind, Lab};
use crate::wait::{LIMIT, eventually};
use sumac_client::{Client, Job, JobOptions, Mode};

const WORLD: u16 = 3;
const OPERATIONS: usize = 20;
/// Sums of such values fit 32 bits, times 1e8.
const FITS: f32 = 1.0 / 256.0;
/// Most of such do not, and go as floats.
const OVERFLOWS: f32 = 1.0 / 64.0;

/// The elements of each operation.
type Counts = fn(usize) -> usize;
const EQUAL: Counts = |_| 50_000;
/// Operations that are divided, and operations that go whole to the least loaded shard.
const UNEQUAL: Counts = |operation| [50_000, 100, 900, 352, 5_000][operation % 5];

fn options(rank: u16, parameter_hosts: u16) -> JobOptions {
    JobOptions::new("replaced", rank, WORLD).mode(Mode::Dynamic).parameter_hosts(parameter_hosts)
}

/// A worker's contribution: multiples of a unit that the scale can tell apart, so that sums are exact.
fn value(unit: f32, rank: u16, operation: usize, i: usize) -> f32 {
    ((i + 7 * operation) % 1009) as f32 * unit - f32::from(rank)
}

fn expected(unit: f32, operation: usize, i: usize) -> f32 {
    (0..WORLD).map(|rank| value(unit, rank, operation, i)).sum()
}

/// Sums once, and checks every element that was written; returns how many were not.
fn sum(
    unit: f32,
    count: usize,
    client: &Client,
    job: &Job,
    rank: u16,
    operation: usize,
) -> Result<usize, String> {
    let mut tensor = client.tensor::<f32>(count).map_err(|error| error.to_string())?;
    for (i, x) in tensor.iter_mut().enumerate() {
        *x = value(unit, rank, operation, i);
    }
    let mut pending = job.allreduce(tensor).map_err(|failed| failed.error.to_string())?;
    let has_ended = pending.wait_timeout(LIMIT).map_err(|failed| failed.error.to_string())?;
    assert!(has_ended, "operation {operation} hangs at rank {rank}");
    let missed = pending.missed().to_vec();
    let sum = pending.wait().map_err(|failed| failed.error.to_string())?;
    let is_missed = |i: usize| missed.iter().any(|(from, to)| (*from..*to).contains(&(i as u64)));
    for (i, found) in sum.iter().enumerate().filter(|(i, _)| !is_missed(*i)) {
        assert_eq!(
            *found,
            expected(unit, operation, i),
            "element {i} of operation {operation} at rank {rank}"
        );
    }
    Ok((0..count).filter(|i| is_missed(*i)).count())
}

fn replaced(kind: Kind, parameter_hosts: u16, further: &str, unit: f32, counts: Counts) {
    let lab = Lab::rejoining(kind, usize::from(WORLD) + 1, usize::from(parameter_hosts), further);
    replaced_in(lab, [0, 1, 2, 3], parameter_hosts, unit, counts);
}

/// `at`: the hosts of the three workers, the last of which dies, and of the newcomer.
fn replaced_in(mut lab: Lab, at: [usize; 4], parameter_hosts: u16, unit: f32, counts: Counts) {
    let trainers: Vec<_> = (0..WORLD)
        .map(|rank| {
            let (client, options) = (lab.client(at[usize::from(rank)]), options(rank, parameter_hosts));
            thread::spawn(move || {
                let job = client.open(&options).unwrap();
                // The one that dies has not been everywhere.
                let operations = if rank == 2 { OPERATIONS / 2 } else { OPERATIONS };
                let sums = (0..operations)
                    .map(|operation| sum(unit, counts(operation), &client, &job, rank, operation));
                let sums: Result<Vec<usize>, String> = sums.collect();
                // Until the newcomer has its last sum, too.
                sums.map(|missed| (missed, client, job))
            })
        })
        .collect();
    let client = lab.client(at[0]);
    let has_summed = || client.stats().unwrap().jobs.iter().any(|job| job.operations_ended > 0);
    eventually("a sum", || has_summed().then_some(()));
    drop(lab.hosts[at[2]].0.take());
    let newcomer = lab.client(at[3]);
    // It may come before the death is known.
    let job = newcomer.open(&options(2, parameter_hosts)).unwrap();
    let terms = job.opened().dynamic.clone().unwrap();
    let first = terms.first_operation as usize;
    assert!(terms.resumed && (1..=OPERATIONS / 2).contains(&first), "{first}: one had ended, and not all");
    let missed: Vec<usize> = (first..OPERATIONS)
        .map(|operation| sum(unit, counts(operation), &newcomer, &job, 2, operation).unwrap())
        .collect();
    assert!(missed[0] < counts(first), "the first was not whole");
    assert!(missed[1..].iter().all(|missed| *missed == 0), "the later ones had not begun");
    let ended: Vec<_> = trainers.into_iter().map(|trainer| trainer.join().unwrap()).collect();
    for (rank, ended) in ended.into_iter().enumerate() {
        match ended {
            // However far it came.
            _ if rank == 2 => {}
            Ok((missed, _client, job)) => {
                assert!(missed.iter().all(|missed| *missed == 0));
                job.close().unwrap();
            }
            Err(error) => panic!("rank {rank}: {error}"),
        }
    }
    job.close().unwrap();
}

#[test]
fn a_dead_workers_place_is_taken_below_an_aggregator() {
    replaced(Kind::Host { shared: 256 }, 1, "", FITS, EQUAL);
}

#[test]
fn a_dead_workers_place_is_taken_where_there_is_no_aggregator() {
    replaced(Kind::None, 1, "", FITS, EQUAL);
}

#[test]
fn a_newcomers_host_or_anothers_is_the_parameter_host() {
    for at in [[1, 2, 3, 0], [0, 1, 2, 3]] {
        for kind in [Kind::Host { shared: 256 }, Kind::None] {
            let lab = Lab::co_located_rejoining(kind, usize::from(WORLD) + 1);
            replaced_in(lab, at, 1, FITS, EQUAL);
        }
    }
}

#[test]
fn every_lane_goes_on_where_its_own_parameter_host_is() {
    replaced(Kind::Host { shared: 256 }, 2, "shards = 2", FITS, EQUAL);
}

#[test]
fn a_newcomers_tensors_go_where_the_others_go() {
    replaced(Kind::Host { shared: 256 }, 1, "shards = 2", FITS, UNEQUAL);
}

#[test]
fn a_dead_workers_place_is_taken_among_sums_that_overflow() {
    replaced(Kind::Host { shared: 256 }, 1, "", OVERFLOWS, EQUAL);
}

//! Dynamic jobs (ATP) through daemons, the UDP backend, a host aggregator and parameter hosts, or without an
//! aggregator. See `lab.rs` for the topology; parameter hosts are daemons as well.

use std::time::Duration;

use serde_json::Value;
use sumac_client::{Client, Code, Job, JobOptions, JobStats, Mode, OpOptions, OpenReply};

use crate::kinds::{self, WORLD, every_type, failure, tensor};
use crate::lab::{Kind, Lab};

const HOSTS: usize = WORLD as usize;

fn dynamic(options: JobOptions) -> JobOptions {
    options.mode(Mode::Dynamic)
}

/// Returns the element `i` of rank `rank`: both signs, with a fraction.
fn value(rank: u16, i: usize) -> f32 {
    (f32::from(rank) + 1.0) * ((i % 1009) as f32 - 500.0) / 1024.0
}

/// Returns the bits of this worker's sum.
fn sum(client: &Client, job: &Job, rank: u16, count: usize) -> Vec<u32> {
    kinds::sum(client, job, count, |i| value(rank, i)).into_iter().map(f32::to_bits).collect()
}

/// Returns a job's part of a daemon's statistics.
fn stats(client: &Client, job: &Job) -> JobStats {
    let mut jobs = client.stats().unwrap().jobs.into_iter();
    jobs.find(|found| found.job == job.opened().wire_job).unwrap()
}

/// Returns the chunks that each lane of a job has sent.
fn sent(client: &Client, job: &Job) -> Vec<u64> {
    let sent = |lane: &Value| lane["engine"]["chunks_sent"].as_u64().unwrap();
    stats(client, job).lanes.iter().map(sent).collect()
}

/// On a busy machine a worker may be late. tools/sim states that nothing is spent without one.
#[test]
fn a_loss_bound_is_reported_alike_and_never_overdrawn() {
    let lab = Lab::dynamic(Kind::Host { shared: 512 }, HOSTS, 1, "");
    let losses = lab.train("bounded", dynamic, |client, job, _| {
        let options = OpOptions { loss_bound: 0.1, ..OpOptions::default() };
        let mut tensor = client.tensor::<f32>(100_000).unwrap();
        tensor.fill(1.0);
        let mut pending = job.allreduce_with(tensor, options).unwrap();
        assert!(pending.wait_timeout(Duration::from_secs(60)).unwrap());
        let loss = pending.loss().cloned().unwrap();
        (loss, pending.wait().unwrap().to_vec())
    });
    let (world, by_worker) = (losses.len(), losses[0].0.by_worker.clone());
    for (loss, sums) in losses {
        assert_eq!((loss.elements, &loss.by_worker), (100_000, &by_worker));
        assert!((9_000..=10_000).contains(&loss.budget), "{}", loss.budget);
        assert!(
            by_worker.len() == world && by_worker.iter().all(|lost| *lost <= loss.budget),
            "{by_worker:?}"
        );
        // Sums of some are scaled to those of all.
        assert!(sums.iter().all(|sum| (*sum - world as f32).abs() < 1e-5));
    }
}

#[test]
fn every_kind_with_every_type() {
    let lab = Lab::dynamic(Kind::Host { shared: 512 }, HOSTS, 1, "");
    lab.train("kinds", dynamic, every_type);
}

#[test]
fn dynamic_jobs_need_no_aggregator() {
    let lab = Lab::dynamic(Kind::None, HOSTS, 1, "");
    lab.train("alone", dynamic, |client, job, rank| {
        let OpenReply { slots, plane, dynamic, .. } = job.opened();
        assert_eq!((*slots, plane.as_str()), (0, "none"));
        assert_eq!(dynamic.as_ref().unwrap().hosts[0].ip().to_string(), "127.0.0.40");
        every_type(client, job, rank);
    });
    // A static job needs slots.
    let refused = lab.client(0).open(&JobOptions::new("static", 0, 1)).unwrap_err();
    assert!(refused.to_string().contains("no aggregator"), "{refused}");
}

#[test]
fn tensors_go_to_the_shard_with_the_smallest_load() {
    let lab = Lab::dynamic(Kind::Host { shared: 256 }, 2, 1, "shards = 2");
    let work = |client: &Client, job: &Job, _rank| {
        // In packets of 100: one, one that is urgent, one, and one that is spread.
        for (count, priority) in [(100, 0), (50, 7), (1, 0), (300, 0)] {
            let options = OpOptions { priority, ..OpOptions::default() };
            let tensor = client.tensor::<f32>(count).unwrap();
            job.allreduce_with(tensor, options).unwrap().wait().unwrap();
        }
        sent(client, job)
    };
    for (name, mode) in [("fixed", Mode::Static), ("shared", Mode::Dynamic)] {
        let options = |o: JobOptions| o.mode(mode).elements(100);
        // Shards have 1 and 0, 1 and 1 (of all classes), 2 and 1, and so 3 and 3.
        for sent in lab.train(name, options, work) {
            assert_eq!(sent, [3, 2, 0, 1], "{name}");
        }
    }
}

#[test]
fn tensors_of_unequal_size_load_all_threads_equally() {
    // In packets; what has fewer than there are shards goes whole to one of them, and so to its thread.
    const TENSORS: [usize; 16] = [3, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1];
    let in_turn = |shard: usize| TENSORS.iter().skip(shard).step_by(4).sum::<usize>();
    assert_eq!([0, 1, 2, 3].map(in_turn), [12, 4, 4, 4]);
    let lab = Lab::dynamic(Kind::Host { shared: 256 }, 2, 1, "shards = 4");
    let work = |client: &Client, job: &Job, _rank| {
        let tensors = client.tensors::<f32>(&TENSORS.map(|packets| 100 * packets)).unwrap();
        let pending: Vec<_> = tensors.into_iter().map(|tensor| job.allreduce(tensor).unwrap()).collect();
        pending.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
        (sent(client, job), client.stats().unwrap().threads.len())
    };
    for (name, mode) in [("fixed", Mode::Static), ("shared", Mode::Dynamic)] {
        for (sent, threads) in lab.train(name, |o| o.mode(mode).elements(100), work) {
            assert_eq!((&sent[..], threads), (&[6, 7, 6, 5, 0, 0, 0, 0][..], 4), "{name}");
        }
    }
}

#[test]
fn a_worker_can_be_its_jobs_parameter_host() {
    for kind in [Kind::None, Kind::Host { shared: 256 }] {
        let lab = Lab::co_located(kind, HOSTS);
        let sums = lab.train("both", dynamic, |client, job, rank| sum(client, job, rank, 20_000));
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{kind:?}");
    }
}

#[test]
fn integer_overflow_fails_on_all_workers() {
    let lab = Lab::dynamic(Kind::Host { shared: 256 }, 2, 1, "");
    lab.train("integers", dynamic, |client, job, rank| {
        let large = if rank == 0 { i32::MAX } else { 1 };
        let failure = failure(job.allreduce(tensor(client, 1000, |i| if i == 500 { large } else { 0 })));
        assert_eq!((failure.code, failure.ranks.len()), (Code::Saturated, 0), "{failure}");
        assert!(failure.index <= Some(500) && failure.index_end > Some(500), "{failure:?}");
        // The job continues.
        assert_eq!(kinds::sum(client, job, 1, |_| -1), [-2]);
    });
}

#[test]
fn a_job_without_a_parameter_host_is_refused() {
    let lab = Lab::dynamic(Kind::Host { shared: 256 }, 1, 0, "");
    let refused =
        lab.client(0).open(&dynamic(JobOptions::new("lonely", 0, 1)).timeout(Duration::from_secs(1)));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("parameter host"), "{refused}");
}

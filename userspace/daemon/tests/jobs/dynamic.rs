//! Dynamic jobs (ATP) through daemons, the UDP backend, a host aggregator and parameter hosts, or without an
//! aggregator. See `lab.rs` for the topology; parameter hosts are daemons as well.

use std::sync::{Arc, Barrier};
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

/// Returns a counter of a daemon's parameter host, summed over its jobs.
fn hosted(client: &Client, counter: &str) -> u64 {
    let stats = client.stats().unwrap();
    stats.parameter_host.iter().flatten().map(|job| job[counter].as_u64().unwrap()).sum()
}

/// Returns a job's part of a daemon's statistics.
fn stats(client: &Client, job: &Job) -> JobStats {
    let mut jobs = client.stats().unwrap().jobs.into_iter();
    jobs.find(|found| found.job == job.opened().wire_job).unwrap()
}

/// Returns a counter of a job's engine.
fn engine(client: &Client, job: &Job, counter: &str) -> u64 {
    stats(client, job).engine[counter].as_u64().unwrap()
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
fn dynamic_and_static_jobs_have_the_same_results() {
    let lab = Lab::dynamic(Kind::Host { shared: 512 }, HOSTS, 1, "");
    // Not a power of two: the sums are rounded, in the same way.
    let sums = |options: fn(JobOptions) -> JobOptions, name: &str| {
        lab.train(
            name,
            move |o| options(o.scale(99_999.0)),
            |client, job, rank| sum(client, job, rank, 50_003),
        )
    };
    // Both at the same time, on one aggregator.
    let (fixed, shared) = std::thread::scope(|scope| {
        let fixed = scope.spawn(|| sums(|o| o, "static"));
        (sums(dynamic, "dynamic"), fixed.join().unwrap())
    });
    assert_eq!(fixed, shared);
    assert!(fixed.iter().all(|sum| *sum == fixed[0]));
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
fn shards_are_spread_over_parameter_hosts() {
    let lab = Lab::dynamic(Kind::None, HOSTS, 2, "shards = 2");
    let sockets: Vec<_> = lab.parameter_hosts.iter().map(|(_, socket)| socket.clone()).collect();
    let sums = lab.train(
        "spread",
        |o| dynamic(o).parameter_hosts(2).elements(352),
        move |client, job, rank| {
            let found = sum(client, job, rank, 50_003);
            for socket in &sockets {
                let host = Client::connect(socket).unwrap();
                // Half of 143 packets each.
                assert!(hosted(&host, "completed") >= 71, "{:?}", host.stats().unwrap().parameter_host);
            }
            found
        },
    );
    assert!(sums.iter().all(|sum| *sum == sums[0]));
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
fn jobs_share_fewer_slots_than_they_need() {
    let lab = Lab::dynamic(Kind::Host { shared: 16 }, 2, 1, "");
    let options = |o| dynamic(o).elements(64).scale(1_048_576.0);
    std::thread::scope(|scope| {
        for name in ["one", "two", "three"] {
            let lab = &lab;
            scope.spawn(move || {
                lab.train(name, options, |client, job, rank| {
                    for _ in 0..5 {
                        let found = sum(client, job, rank, 20_000);
                        let expected: Vec<u32> =
                            (0..20_000).map(|i| (value(0, i) + value(1, i)).to_bits()).collect();
                        assert_eq!(found, expected);
                    }
                    assert!(engine(client, job, "collisions") > 0);
                });
            });
        }
    });
}

#[test]
fn saturated_chunks_travel_as_floats() {
    let lab = Lab::dynamic(Kind::Host { shared: 256 }, HOSTS, 1, "");
    lab.train("large", dynamic, |client, job, rank| {
        assert_eq!((job.opened().max_float, job.opened().max_int), (None, i32::MAX));
        // Beyond the scale in a few packets: 1e8 times 21.5 is more than 2^31.
        let mine =
            |rank: u16, i: usize| if i / 1000 == 3 { 1e20 / (f32::from(rank) + 3.0) } else { value(rank, i) };
        let found = kinds::sum(client, job, 10_000, |i| mine(rank, i));
        for (i, found) in found.iter().enumerate() {
            let exact: f64 = (0..WORLD).map(|rank| f64::from(mine(rank, i))).sum();
            // Rounded once where it went as floats, to a hundred-millionth elsewhere.
            let error = (f64::from(*found) - exact).abs();
            assert!(
                error <= exact.abs() * f64::from(f32::EPSILON) + 3e-8,
                "element {i}: {found} for {exact}"
            );
        }
        let raw = engine(client, job, "raw_chunks");
        // 1,000 elements lie in 3 or 4 packets of 352.
        assert!((3..=4).contains(&raw), "{raw}");
    });
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
fn a_job_continues_without_its_aggregator() {
    let mut lab = Lab::dynamic(Kind::Host { shared: 256 }, 2, 1, "");
    let (before, after) = (Arc::new(Barrier::new(3)), Arc::new(Barrier::new(3)));
    let trainers: Vec<_> = (0..2)
        .map(|rank| {
            let (client, before, after) = (lab.client(usize::from(rank)), before.clone(), after.clone());
            std::thread::spawn(move || {
                let job = client.open(&dynamic(JobOptions::new("survivor", rank, 2))).unwrap();
                let first = sum(&client, &job, rank, 50_000);
                assert_eq!(engine(&client, &job, "direct"), 0);
                before.wait();
                // The aggregator stops, with its control plane.
                after.wait();
                for _ in 0..3 {
                    assert_eq!(sum(&client, &job, rank, 50_000), first);
                }
                assert!(engine(&client, &job, "direct") > 0);
                first
            })
        })
        .collect();
    before.wait();
    lab.aggregator.stop();
    after.wait();
    let sums: Vec<_> = trainers.into_iter().map(|trainer| trainer.join().unwrap()).collect();
    assert_eq!(sums[0], sums[1]);
}

#[test]
fn a_job_fails_with_its_parameter_host() {
    let mut lab = Lab::dynamic(Kind::Host { shared: 256 }, 2, 1, "");
    let client = lab.client(0);
    let trainers: Vec<_> = (0..2)
        .map(|rank| {
            let client = lab.client(usize::from(rank));
            std::thread::spawn(move || {
                let job = client.open(&dynamic(JobOptions::new("orphan", rank, 2))).unwrap();
                loop {
                    let tensor = client.tensor::<f32>(10_000).unwrap();
                    let ended = job.allreduce(tensor).and_then(sumac_client::Pending::wait);
                    if let Err(failed) = ended {
                        return failed.error.to_string();
                    }
                }
            })
        })
        .collect();
    while client.stats().unwrap().jobs.iter().all(|job| job.operations_ended == 0) {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(lab.parameter_hosts[0].0.take());
    for trainer in trainers {
        let error = trainer.join().unwrap();
        assert!(error.contains("parameter host"), "{error}");
    }
}

#[test]
fn a_job_without_a_parameter_host_is_refused() {
    let lab = Lab::dynamic(Kind::Host { shared: 256 }, 1, 0, "");
    let refused =
        lab.client(0).open(&dynamic(JobOptions::new("lonely", 0, 1)).timeout(Duration::from_secs(1)));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("parameter host"), "{refused}");
}

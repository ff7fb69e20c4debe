//! Jobs whose ranks are all at one daemon: no aggregator, no packets. See `lab.rs` for the topology.

use std::time::Duration;

use serde_json::{Value, json};
use sumac_client::{
    Client, ClientError, Code, Failure, Job, JobOptions, Mode, NonFinitePolicy, OperationOrder, RecvOptions,
    SendOptions,
};

use crate::common::{Alone, Raw, code};
use crate::kinds::{WORLD, every_kind, every_type, failure, sum, sums_by_name, tensor};
use crate::lab::Lab;

pub fn refused(opened: Result<Job, ClientError>) -> Failure {
    match opened.unwrap_err() {
        ClientError::Daemon(failure) => failure,
        other => panic!("{other}"),
    }
}

#[test]
fn every_kind_with_every_type_in_every_mode() {
    for mode in [Mode::Static, Mode::Dynamic, Mode::Direct] {
        Lab::of_one_host(WORLD).train("kinds", |o| o.mode(mode), every_type);
    }
}

#[test]
fn a_daemon_without_an_aggregator_has_jobs_of_its_own_ranks() {
    let alone = Alone::new("");
    let client = || Client::connect(&alone.socket).unwrap();
    let trainer = client();
    let single = trainer.open(&JobOptions::new("single", 0, 1).local_world(1)).unwrap();
    assert_eq!((&*single.opened().backend, &*single.opened().plane), ("memory", "none"));
    assert_eq!(sum(&trainer, &single, 3, |at| at as f32), [0.0, 1.0, 2.0]);
    let remote = refused(client().open(&JobOptions::new("remote", 0, 1)));
    assert!(remote.message.contains("aggregator"), "{remote}");
}

/// Values that no common exponent holds, and none but the job's policy.
#[test]
fn floats_are_summed_as_they_are() {
    let lab = Lab::of_one_host(WORLD);
    lab.train(
        "range",
        |o| o.not_finite(NonFinitePolicy::Raw),
        |client, job, rank| {
            let values = [1e30, 1.0, 1e-10, 1e-30, f32::from(rank), 16_777_216.0, f32::INFINITY];
            let sums = sum(client, job, values.len(), |at| values[at]);
            let once = |value: &f32| (3.0 * f64::from(*value)) as f32;
            let expected: Vec<f32> = values.iter().map(once).collect();
            assert_eq!((&sums[..4], &sums[5..]), (&expected[..4], &expected[5..]));
            assert_eq!(sums[4], 3.0);
            let nan = sum(client, job, 2000, |at| if at == 7 && rank == 1 { f32::NAN } else { 1.0 });
            assert!(nan.iter().enumerate().all(|(at, sum)| (at == 7) == sum.is_nan()));
        },
    );
}

#[test]
fn a_value_that_is_not_allowed_names_its_rank_on_all() {
    Lab::of_one_host(WORLD).train(
        "strict",
        |o| o,
        |client, job, rank| {
            let values = tensor(client, 5000, |at| if rank == 2 && at == 4000 { f32::NAN } else { 1.0f32 });
            let error = failure(job.allreduce(values));
            assert_eq!((error.code, &error.ranks[..], error.index), (Code::Saturated, &[2][..], Some(4000)));
            assert!(error.message.starts_with("rank 2: element 4000 is NaN"), "{error}");
            let large = failure(job.allreduce(tensor(client, 3, |_| 1_000_000_000i32)));
            assert_eq!((large.code, large.index), (Code::Saturated, Some(0)), "{large}");
            assert_eq!(sum(client, job, 2, |_| 1.0f32), [3.0, 3.0], "the job goes on");
        },
    );
}

#[test]
fn operations_are_matched_by_name_where_the_job_says_so() {
    Lab::of_one_host(WORLD).train("named", |o| o.order(OperationOrder::Name), sums_by_name);
}

#[test]
fn operations_that_differ_name_both_ranks_on_all() {
    let lab = Lab::of_one_host(WORLD);
    let opened = lab.open("differ", |o| o);
    let counts = [10, 11, 10];
    let submit =
        |((client, job), count): (&(Client, Job), usize)| job.allreduce(tensor(client, count, |_| 1.0f32));
    let pending: Vec<_> = opened.iter().zip(counts).map(submit).collect();
    for pending in pending {
        let error = failure(pending);
        assert_eq!((error.code, &error.ranks[..]), (Code::Mismatch, &[0, 1][..]), "{error}");
        assert!(error.message.contains("rank 1 has allreduce sum float32[11]"), "{error}");
    }
}

#[test]
fn transfers_between_ranks_are_matched_in_order() {
    Lab::of_one_host(WORLD).train(
        "transfers",
        |o| o.mode(Mode::Direct),
        |client, job, rank| {
            let (next, before) = ((rank + 1) % WORLD, (rank + WORLD - 1) % WORLD);
            let send = SendOptions::default();
            let value = |from: u16, number: i32| i32::from(from) * 100 + number;
            let posted: Vec<_> = (0..4)
                .map(|number| {
                    let sent = job.post_send(tensor(client, 3000, |_| value(rank, number)), next, send);
                    let empty = client.tensor::<i32>(3000).unwrap();
                    (number, sent.unwrap(), job.post_recv(empty, before, RecvOptions::default()).unwrap())
                })
                .collect();
            for (number, sent, received) in posted {
                sent.wait().unwrap();
                assert!(received.wait().unwrap().iter().all(|found| *found == value(before, number)));
            }
            every_kind::<f32>(client, job, rank);
        },
    );
}

#[test]
fn transfers_that_differ_fail_at_both_ends() {
    Lab::of_one_host(2).train(
        "sizes",
        |o| o.mode(Mode::Direct),
        |client, job, rank| {
            let error = if rank == 0 {
                failure(job.post_send(tensor(client, 10, |_| 1.0f32), 1, SendOptions::default()))
            } else {
                failure(job.post_recv(client.tensor::<f32>(11).unwrap(), 0, RecvOptions::default()))
            };
            assert_eq!((error.code, &error.ranks[..]), (Code::Mismatch, &[0, 1][..]), "{error}");
            assert!(
                error.message.contains("float32[10]") && error.message.contains("float32[11]"),
                "{error}"
            );
        },
    );
}

/// Ranks that want another job, a place that is taken, or never come.
#[test]
fn ranks_that_do_not_fit_are_refused_by_name() {
    let alone = Alone::new("");
    let client = || Client::connect(&alone.socket).unwrap();
    let asked = |rank, world: u16| JobOptions::new("j", rank, world).local_world(world);
    let some = refused(client().open(&JobOptions::new("j", 0, 4).local_world(3)));
    assert!(some.code == Code::BadField && some.message.contains("local_world 3 of world 4"), "{some}");
    let late = refused(client().open(&asked(1, 3).timeout(Duration::from_millis(200))));
    assert_eq!((late.code, &late.ranks[..]), (Code::RanksMissing, &[0, 2][..]), "{late}");
    let first = std::thread::spawn({
        let client = client();
        let asked = asked(0, 2);
        move || refused(client.open(&asked))
    });
    crate::wait::eventually("the first rank", || {
        let others = client().open(&asked(1, 2).mode(Mode::Direct));
        let error = refused(others);
        (error.code == Code::Refused).then_some(error)
    });
    let error = first.join().unwrap();
    assert_eq!((error.code, error.ranks), (Code::Refused, vec![0, 1]));
    assert!(error.message.contains("rank 0 wants mode static, rank 1 wants direct"), "{}", error.message);
    assert!(client().stats().unwrap().jobs.is_empty());
}

#[test]
fn the_end_of_one_rank_ends_the_others_by_name() {
    let lab = Lab::of_one_host(WORLD);
    let mut opened = lab.open("dies", |o| o);
    let (gone, job) = opened.remove(1);
    let pending: Vec<_> =
        opened.iter().map(|(client, job)| job.allreduce(tensor(client, 10, |_| 1.0f32)).unwrap()).collect();
    drop((job, gone));
    for pending in pending {
        let error = failure(Ok(pending));
        assert_eq!((error.code, &error.ranks[..]), (Code::JobFailed, &[1][..]), "{error}");
        assert!(error.message.contains("rank 1 left: its trainer"), "{error}");
    }
    drop(opened);
    lab.await_no_job(0);
    lab.train("dies", |o| o, |client, job, _| assert_eq!(sum(client, job, 1, |_| 1.0f32), [3.0]));
}

#[test]
fn a_rank_that_is_late_is_named_while_the_others_wait() {
    let lab = Lab::of_one_host(2);
    let mut early = Raw::greeted(&lab.hosts[0].1);
    let mut late = Raw::greeted(&lab.hosts[0].1);
    let open = |rank| json!({"cmd": "open", "job": "late", "rank": rank, "world": 2, "local_world": 2});
    let asked = early.send(open(0), &[]);
    let job = late.ask(open(1))["ok"]["job"].clone();
    assert_eq!(code(&early.reply_to(asked).0), "none");
    let region = early.region(4096);
    let submitted = early.ask(json!({"cmd": "allreduce", "job": job, "region": region, "dtype": "float32",
        "offset": 0, "count": 10}));
    assert_eq!(code(&submitted), "none", "{submitted}");
    let waiting: Value = early.event();
    assert_eq!(waiting["event"], "waiting");
    assert_eq!(waiting["ranks"], json!([1]), "{waiting}");
    assert!(waiting["message"].as_str().unwrap().contains("allreduce sum float32[10]"), "{waiting}");
}

/// The job waits for its ranks also where the time is further ahead than the clock counts.
#[test]
fn a_limit_beyond_the_clock_is_a_limit() {
    let lab = Lab::of_one_host(2);
    let [mut early, mut late] = [0, 1].map(|_| Raw::greeted(&lab.hosts[0].1));
    let open = |rank| {
        json!({"cmd": "open", "job": "patient", "rank": rank, "world": 2, "local_world": 2,
            "timeout_s": 1e19})
    };
    let asked = early.send(open(0), &[]);
    assert_eq!(code(&late.ask(open(1))), "none");
    assert_eq!(code(&early.reply_to(asked).0), "none");
}

#[test]
fn a_job_goes_on_in_another_daemon() {
    let mut lab = Lab::of_one_host(WORLD);
    let opened = lab.open("upgraded", |o| o);
    let submit = |(client, job): &(Client, Job), rank: i32| {
        job.allreduce(tensor::<i32>(client, 50_000, |at| at as i32 + rank)).unwrap()
    };
    let ahead = submit(&opened[0], 0);
    lab.upgrade(0, "");
    let behind: Vec<_> = (1..).zip(&opened[1..]).map(|(rank, opened)| submit(opened, rank)).collect();
    lab.upgrade(0, "");
    for pending in behind.into_iter().chain([ahead]) {
        assert!((0..).zip(pending.wait().unwrap().iter()).all(|(at, sum)| *sum == 3 * at + 3));
    }
    let mut left = opened;
    let (client, job) = left.remove(0);
    job.close().unwrap();
    drop(client);
    let last = failure(left[0].1.allreduce(tensor(&left[0].0, 1, |_| 1.0f32)));
    assert!(last.ranks == [0] && last.message.contains("has left job"), "{last}");
}

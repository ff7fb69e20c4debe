//! Sums through daemons, the UDP backend and a host aggregator. See `lab.rs` for the topology.

use std::time::{Duration, Instant};

use crate::common::{Raw, memfd};
use crate::kinds::{sum, tensor};
use crate::lab::Lab;
use serde_json::json;
use sumac_client::Job;

const DOCUMENT: &str = include_str!("../../../../docs/api.md");

/// Returns the element `i` of rank `rank`: both signs, with a fraction.
fn value(rank: u16, i: usize) -> f32 {
    (f32::from(rank) + 1.0) * ((i % 1009) as f32 - 500.0) / 1024.0
}

#[test]
fn sums_of_floats_are_exact_on_all_workers() {
    let lab = Lab::new(3);
    let count = 100_003;
    let sums = lab.train(
        "floats",
        |o| o.scale(1_048_576.0),
        move |client, job, rank| sum(client, job, count, |i| value(rank, i)),
    );
    // The values are multiples of 1/1024 and the scale is a power of two: nothing is rounded.
    let expected: Vec<f32> = (0..count).map(|i| (0..3).map(|rank| value(rank, i)).sum()).collect();
    for (rank, sum) in sums.iter().enumerate() {
        assert_eq!(*sum, expected, "rank {rank}");
    }
}

#[test]
fn threads_share_a_connection() {
    let lab = Lab::new(2);
    lab.train(
        "shared",
        |o| o,
        |client, job, rank| {
            let tensors = client.tensors::<i32>(&[500; 16]).unwrap();
            let pending: Vec<_> = tensors
                .into_iter()
                .map(|mut tensor| {
                    tensor.fill(i32::from(rank) + 1);
                    job.allreduce(tensor).unwrap()
                })
                .collect();
            std::thread::scope(|scope| {
                for pending in pending {
                    scope.spawn(|| assert_eq!(pending.wait().unwrap()[499], 3));
                }
            });
        },
    );
}

#[test]
fn a_job_can_be_opened_again() {
    let lab = Lab::new(2);
    for round in 0..3u16 {
        let epochs = lab.train(
            "again",
            |o| o,
            |client, job, _| {
                assert_eq!(sum(client, job, 10, |_| 1.0f32), [2.0; 10]);
                job.opened().epoch
            },
        );
        assert_eq!(epochs[0], epochs[1], "round {round}");
    }
}

#[test]
fn counters_match_the_operations() {
    let lab = Lab::new(2);
    let stats = lab.train(
        "counted",
        |o| o.elements(100),
        |client, job, _| {
            let tensor = client.tensor::<f32>(1000).unwrap();
            let (_, duration) = job.allreduce(tensor).unwrap().wait_timed().unwrap();
            assert!(duration > Duration::ZERO);
            client.stats().unwrap()
        },
    );
    for (rank, stats) in stats.iter().enumerate() {
        assert_eq!((stats.backend.as_str(), stats.clients), ("udp", 1));
        let job = &stats.jobs[0];
        assert_eq!((job.name.as_str(), usize::from(job.rank), job.world), ("counted", rank, 2));
        assert_eq!(job.state, "ready");
        assert!(stats.ports[0]["sent"].as_u64().unwrap() >= 10, "{stats:?}");
        for counter in job.engine.as_object().unwrap().keys() {
            assert!(DOCUMENT.contains(&format!("`{counter}`")), "{counter} is not in docs/api.md");
        }
    }
}

/// A trainer without the client library besides one with it, so that every message can be compared.
#[test]
fn messages_are_those_of_the_documentation() {
    let lab = Lab::new(2);
    let client = lab.client(1);
    let partner = std::thread::spawn(move || {
        let job: Job = client.open(&sumac_client::JobOptions::new("worked", 1, 2)).unwrap();
        (0..2).for_each(|_| drop(sum(&client, &job, 8, |_| 2.0f32)));
        job.close().unwrap();
    });
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let (opened, fds) = raw.ask_with(json!({"cmd": "open", "job": "worked", "rank": 0, "world": 2}), &[]);
    let job = opened["ok"]["job"].clone();
    assert_eq!(fds.len(), 1, "{opened}");
    let file = memfd(4096, true);
    let ones: Vec<u8> = std::iter::repeat_n(1.0f32.to_ne_bytes(), 8).flatten().collect();
    rustix::io::pwrite(&file, &ones, 64).unwrap();
    let region = raw.register(&file, 4096)["ok"]["region"].clone();
    let ask = json!({
        "cmd": "allreduce", "job": job, "region": region, "dtype": "float32", "offset": 64, "count": 8,
        "out_offset": 1024, "priority": 1,
    });
    let op = raw.ask(ask.clone())["ok"]["op"].clone();
    let event = raw.event();
    assert_eq!((&event["event"], &event["op"], &event["job"]), (&json!("completed"), &op, &job), "{event}");
    let mut sums = vec![0; 32];
    rustix::io::pread(&file, &mut sums, 1024).unwrap();
    assert_eq!(sums, std::iter::repeat_n(3.0f32.to_ne_bytes(), 8).flatten().collect::<Vec<_>>());
    let op = raw.ask(ask)["ok"]["op"].clone();
    assert!(raw.ask(json!({"cmd": "wait", "op": op}))["ok"]["duration_ns"].is_u64());
    let mut count = [0; 8];
    while rustix::io::read(&fds[0], &mut count) == Err(rustix::io::Errno::AGAIN) {}
    assert!((1..=2).contains(&u64::from_ne_bytes(count)));
    assert!(raw.ask(json!({"cmd": "unregister", "region": region}))["ok"].is_object());
    assert!(raw.ask(json!({"cmd": "close", "job": job}))["ok"].is_object());
    partner.join().unwrap();
}

#[test]
fn a_worker_that_only_polls_sees_the_end() {
    let lab = Lab::new(2);
    lab.train(
        "polls",
        |o| o,
        |client, job, _| {
            let mut pending = job.allreduce(tensor(client, 10, |_| 1.0_f32)).unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            while !pending.wait_timeout(Duration::ZERO).unwrap() {
                assert!(Instant::now() < deadline, "nothing was read");
                std::thread::yield_now();
            }
            assert_eq!(pending.wait().unwrap()[9], 2.0);
        },
    );
}

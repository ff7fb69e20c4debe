//! Completion words, and the times of an operation's steps. See `lab.rs` for the topology.

use std::time::{Duration, Instant};

use crate::common::{Raw, code, memfd};
use crate::kinds::tensor;
use crate::lab::Lab;
use crate::wait::LIMIT;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use sumac_client::{ClientError, Code, OpOptions, Reduction};

const POLLED: OpOptions<'static> = OpOptions {
    reduction: Reduction::Sum,
    name: None,
    priority: 0,
    importance: sumac_client::Importance::None,
    loss_bound: 0.0,
    polled: true,
    timed: false,
};

#[test]
fn a_result_is_in_memory_once_its_word_is_set() {
    let lab = Lab::with(2, "shards = 2");
    lab.train(
        "polled",
        |o| o,
        |client, job, rank| {
            // A fragment for each shard, on two threads.
            let mut tensor = tensor::<i32>(client, 5000, |i| i as i32 + i32::from(rank));
            for round in 0..200 {
                let pending = job.allreduce_with(tensor, POLLED).unwrap();
                let deadline = Instant::now() + LIMIT;
                while !pending.is_ended() {
                    assert!(Instant::now() < deadline, "round {round}");
                    std::thread::yield_now();
                }
                // Without a message: the spin has no time.
                tensor = pending.wait_polled(Duration::ZERO).unwrap();
                for (i, sum) in (0..).zip(tensor.iter_mut()) {
                    assert_eq!(*sum, 2 * i + 1, "round {round}, element {i}");
                    *sum = i + i32::from(rank);
                }
            }
            // Its memory and its handle are free for the next commands too: the job closes at once.
        },
    );
}

#[test]
fn polling_and_waiting_can_be_mixed() {
    let lab = Lab::new(2);
    lab.train(
        "mixed",
        |o| o,
        |client, job, _| {
            let pending = job.allreduce_with(tensor::<f32>(client, 9, |_| 1.0), POLLED).unwrap();
            let sum = pending.wait().unwrap();
            // An operation without a word does not take the former's for its own.
            let pending = job.allreduce(sum).unwrap();
            let sum = pending.wait_polled(LIMIT / 600).unwrap();
            assert_eq!(*sum, [4.0; 9]);
        },
    );
}

#[test]
fn the_word_of_a_failed_operation_leads_to_its_reason() {
    let lab = Lab::new(2);
    let mut opened = lab.open("fails", |o| o);
    let other = opened.pop().unwrap();
    let (client, job) = opened.pop().unwrap();
    let pending = job.allreduce_with(tensor::<f32>(&client, 9, |_| 1.0), POLLED).unwrap();
    assert!(!pending.is_ended());
    drop(other);
    match pending.wait_polled(LIMIT).unwrap_err().error {
        ClientError::Daemon(error) => assert_eq!((error.code, error.ranks), (Code::JobFailed, vec![1])),
        other => panic!("{other}"),
    }
}

#[test]
fn the_steps_of_an_operation_are_in_order() {
    let lab = Lab::new(2);
    let now = || {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    lab.train(
        "timed",
        |o| o,
        move |client, job, _| {
            let begin = now();
            let options = OpOptions { timed: true, polled: false, ..POLLED };
            let mut pending = job.allreduce_with(tensor::<f32>(client, 9, |_| 1.0), options).unwrap();
            assert!(pending.wait_timeout(LIMIT).unwrap());
            let timing = pending.timing().unwrap();
            let steps = [
                begin,
                timing.received_ns,
                timing.taken_ns,
                timing.sent_ns,
                timing.arrived_ns,
                timing.ended_ns,
                now(),
            ];
            assert!(steps.is_sorted(), "{steps:?}");
            let plain = job.allreduce(pending.wait().unwrap()).unwrap();
            plain.wait().unwrap();
        },
    );
}

/// Returns the word at an offset of a file, which no test maps: the daemon needs no mapping but its own.
fn word(file: &std::os::fd::OwnedFd, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::pread(file, &mut bytes, offset).unwrap();
    u64::from_ne_bytes(bytes)
}

#[test]
fn a_client_with_hostile_words_harms_itself_alone() {
    let lab = Lab::new(1);
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let file = memfd(8192, true);
    let region = raw.register(&file, 8192)["ok"]["region"].clone();
    let other = raw.region(4096);
    let job = raw.ask(json!({"cmd": "open", "job": "words", "rank": 0, "world": 1}))["ok"]["job"].clone();
    let sum = |at: Value, further: Value| {
        let mut command = json!({"cmd": "allreduce",
            "job": job, "region": region, "dtype": "float32", "offset": 0, "count": 16});
        command["completion_word"] = at;
        further.as_object().unwrap().iter().for_each(|(key, value)| command[key] = value.clone());
        command
    };
    let reply = raw.ask(sum(json!(4096), json!({"out_region": other})));
    assert_eq!(code(&reply), "out_of_range", "behind the result's region: {reply}");
    // Nothing stays leased or outstanding.
    let reply = raw.ask(sum(json!(4096), json!({})));
    let op = reply["ok"]["op"].as_u64().unwrap();
    while word(&file, 4096) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(word(&file, 4096), 1);
    let event = raw.event();
    assert_eq!(
        (&event["event"], &event["op"], &event["error"]),
        (&json!("completed"), &json!(op), &Value::Null)
    );
    // The file cannot shrink; the connection ends in the middle of operations.
    assert!(rustix::fs::ftruncate(&file, 0).is_err());
    for at in 0..8 {
        raw.send(sum(json!(4096 + 8 * at), json!({"offset": 0, "out_offset": 64 * (at + 1)})), &[]);
    }
    drop(raw);
    assert_eq!(lab.client(0).stats().unwrap().backend, "udp");
}

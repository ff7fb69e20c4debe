//! Jobs whose trainer is interrupted while it opens them. See `lab.rs` for the topology.

use std::time::Duration;

use serde_json::{Value, json};
use sumac_client::{Code, JobOptions};

use crate::common::{Raw, code};
use crate::lab::Lab;

fn open(job: &str, rank: u16, world: u16) -> Value {
    json!({"cmd": "open", "job": job, "rank": rank, "world": world, "slots": 8, "timeout_s": 20})
}

/// Sums over both workers of a job.
fn sum(lab: &Lab, name: &str) {
    let work = |rank: u16| {
        let client = lab.client(rank.into());
        let job = client.open(&JobOptions::new(name, rank, 2)).unwrap();
        let mut tensor = client.tensor::<f32>(100).unwrap();
        tensor.fill(f32::from(rank) + 1.0);
        let sum = job.allreduce(tensor).unwrap().wait().unwrap();
        assert!(sum.iter().all(|value| *value == 3.0));
        job.close().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(0));
        work(1);
    });
}

#[test]
fn an_open_that_waits_is_withdrawn_and_its_rank_is_free() {
    let lab = Lab::new(2);
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let request = raw.send(open("waits", 0, 2), &[]);
    let reply = raw.ask(json!({"cmd": "withdraw", "open": request}));
    assert_eq!(reply["ok"], json!({"withdrawn": true}), "{reply}");
    let (answer, _) = raw.reply_to(request);
    assert_eq!(code(&answer), "cancelled", "{answer}");
    sum(&lab, "waits");
    // Of no request, and of one that was withdrawn: nothing.
    for request in [0, request, 12345] {
        let reply = raw.ask(json!({"cmd": "withdraw", "open": request}));
        assert_eq!(reply["ok"], json!({"withdrawn": false}), "{reply}");
    }
    assert_eq!(code(&raw.ask(json!({"cmd": "withdraw"}))), "bad_field");
}

#[test]
fn an_open_that_was_answered_is_withdrawn_with_its_job() {
    let lab = Lab::new(2);
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let request = raw.send(open("answered", 0, 2), &[]);
    let client = lab.client(1);
    let job = client.open(&JobOptions::new("answered", 1, 2).slots(8)).unwrap();
    let handle = raw.reply_to(request).0["ok"]["job"].clone();
    let waiting = job.allreduce(client.tensor::<f32>(1000).unwrap()).unwrap();
    let reply = raw.ask(json!({"cmd": "withdraw", "open": request}));
    assert_eq!(reply["ok"], json!({"withdrawn": true}), "{reply}");
    assert_eq!(code(&raw.ask(json!({"cmd": "close", "job": handle}))), "unknown_job");
    let error = waiting.wait().unwrap_err().error;
    assert_eq!(error.code(), Some(Code::JobFailed), "{error}");
    assert!(error.to_string().contains("rank 0") && error.to_string().contains("withdrew"), "{error}");
    drop(job);
    sum(&lab, "answered");
}

/// At whatever step of its start a job is withdrawn, neither it nor its handle is left.
#[test]
fn an_open_is_withdrawn_at_any_moment() {
    let lab = Lab::new(1);
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    for round in 0..60 {
        let request = raw.send(open("again", 0, 1), &[]);
        std::thread::sleep(Duration::from_micros(round * 700));
        let reply = raw.ask(json!({"cmd": "withdraw", "open": request}));
        assert_eq!(reply["ok"], json!({"withdrawn": true}), "round {round}: {reply}");
    }
    lab.await_no_job(0);
    // A connection has as many jobs as before.
    for number in 0..16 {
        let reply = raw.ask(open(&format!("later-{number}"), 0, 1));
        assert_eq!(code(&reply), "none", "{reply}");
    }
}

#[test]
fn a_dropped_opening_is_withdrawn() {
    let lab = Lab::new(2);
    let client = lab.client(0);
    let mut opening = client.begin_open(&JobOptions::new("dropped", 0, 2)).unwrap();
    assert!(opening.wait_timeout(Duration::from_millis(50)).unwrap().is_none());
    drop(opening);
    // On the same connection.
    let partner = lab.client(1);
    let other = std::thread::spawn(move || partner.open(&JobOptions::new("dropped", 1, 2)).unwrap().close());
    client.begin_open(&JobOptions::new("dropped", 0, 2)).unwrap().wait().unwrap().close().unwrap();
    other.join().unwrap().unwrap();
}

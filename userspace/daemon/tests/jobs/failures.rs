//! Jobs that fail: all workers receive an error that names the rank, and resources are released. See `lab.rs`
//! for the topology.

use std::time::Duration;

use crate::common::Raw;
use crate::kinds::{failure, sum};
use crate::lab::Lab;
use serde_json::{Value, json};
use sumac_client::{Client, Code, Failure, Job, JobOptions, Pending};

/// Opens a job without the client library on one host and with it on the other.
fn pair(lab: &Lab, name: &str) -> (Raw, Value, Client, Job) {
    let client = lab.client(1);
    let (other, options) = (client.clone(), JobOptions::new(name, 1, 2));
    let partner = std::thread::spawn(move || other.open(&options).unwrap());
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let opened = raw.ask(json!({"cmd": "open", "job": name, "rank": 0, "world": 2}));
    assert!(opened["ok"].is_object(), "{opened}");
    (raw, opened["ok"]["job"].clone(), client, partner.join().unwrap())
}

fn allreduce(job: &Value, region: &Value, offset: u64, count: u64) -> Value {
    json!({"cmd": "allreduce",
        "job": job, "region": region, "dtype": "float32", "offset": offset, "count": count})
}

/// Returns the error of a sum that cannot complete.
fn sum_fails(client: &Client, job: &Job) -> Failure {
    failure(job.allreduce(client.tensor::<f32>(1000).unwrap()))
}

#[test]
fn completions_of_all_operations_fit_the_socket_buffer() {
    let lab = Lab::new(2);
    let (mut raw, job, client, partner) = pair(&lab, "unread");
    let region = raw.region(1 << 20);
    let limits = raw.ask(json!({"cmd": "hello", "version": 4}))["ok"]["limits"].clone();
    let operations = limits["operations"].as_u64().unwrap();
    for number in 0..operations {
        assert!(raw.ask(allreduce(&job, &region, number * 64, 1))["ok"].is_object());
    }
    // All fail at once, with the longest messages; they are read after the last has been sent.
    drop((partner, client));
    std::thread::sleep(Duration::from_millis(200));
    for number in 0..operations {
        let event = raw.event();
        assert_eq!(event["event"], "completed", "{number}: {event}");
    }
    assert_eq!(raw.event()["event"], "job_failed");
}

#[test]
fn a_dead_trainers_job_fails_with_its_rank() {
    let lab = Lab::new(2);
    let (mut raw, job, client, partner) = pair(&lab, "dies");
    let region = raw.region(4096);
    raw.ask(allreduce(&job, &region, 0, 1000));
    // In the middle of an operation; the kernel closes a killed process's socket in the same way.
    drop(raw);
    // The operation that it had submitted may still complete; no later one.
    let _quick = partner.allreduce(client.tensor::<f32>(1000).unwrap()).map(Pending::wait);
    let failure = sum_fails(&client, &partner);
    assert_eq!((failure.code, &failure.ranks[..]), (Code::JobFailed, &[0][..]), "{failure}");
    assert!(failure.message.contains("went away"), "{failure}");
    // The handle is released, and both hosts serve the next job of the same name.
    partner.close().unwrap();
    let sums = lab.train("dies", |o| o, |client, job, _| sum(client, job, 3, |_| 1));
    assert_eq!(sums, [[2; 3]; 2]);
}

#[test]
fn the_job_of_a_trainer_that_does_not_read_fails_with_its_rank() {
    let lab = Lab::new(2);
    let (raw, _, client, partner) = pair(&lab, "deaf");
    let flood = br#"{"id":1,"cmd":"nothing"}"#;
    while raw.channel.send(flood, &[]).is_ok() {}
    let failure = sum_fails(&client, &partner);
    assert_eq!(failure.ranks, [0], "{failure}");
    assert!(failure.message.contains("does not read"), "{failure}");
}

#[test]
fn cancelling_a_completed_operation_has_no_effect() {
    let lab = Lab::new(2);
    let cancelled = lab.train(
        "late",
        |o| o,
        |client, job, _| {
            let mut pending = job.allreduce(client.tensor::<f32>(10).unwrap()).unwrap();
            while !pending.wait_timeout(Duration::from_secs(60)).unwrap() {}
            let cancelled = pending.cancel().unwrap();
            drop(pending.wait().unwrap());
            cancelled
        },
    );
    assert_eq!(cancelled, [false, false]);
}

#[test]
fn a_wrong_secret_is_refused() {
    let lab = Lab::new(1);
    let error =
        lab.client(0).open(&JobOptions::new("secret", 0, 1).secret("not the one it should be")).unwrap_err();
    assert_eq!(error.code(), Some(Code::Refused), "{error}");
}

#[test]
fn a_stopped_daemons_jobs_fail_with_its_rank() {
    let mut lab = Lab::new(2);
    let (mut raw, job, client, partner) = pair(&lab, "stops");
    if let Some(daemon) = lab.hosts[0].0.take() {
        daemon.stop();
    }
    let event = raw.event();
    assert_eq!((&event["event"], &event["job"]), (&json!("job_failed"), &job), "{event}");
    assert_eq!(event["error"]["code"], "shutting_down");
    let failure = sum_fails(&client, &partner);
    assert_eq!((failure.code, &failure.ranks[..]), (Code::JobFailed, &[0][..]), "{failure}");
    partner.close().unwrap();
    lab.hosts[0].0 = lab.daemon("host0", 10, "").0;
    lab.train("stops", |o| o, |client, job, _| sum(client, job, 100, |_| 0.0f32));
}

#[test]
fn a_trainer_that_dies_while_it_joins_releases_its_rank() {
    let lab = Lab::new(2);
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    raw.send(json!({"cmd": "open", "job": "early", "rank": 0, "world": 2}), &[]);
    // By then it has its place; one whose request is still on its way falls free only after two seconds of
    // silence.
    std::thread::sleep(Duration::from_millis(300));
    drop(raw);
    lab.train("early", |o| o, |client, job, _| sum(client, job, 100, |_| 0.0f32));
}

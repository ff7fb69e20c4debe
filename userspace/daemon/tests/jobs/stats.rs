//! Counters of more jobs than a message holds. See `lab.rs` for the topology.

use serde_json::{Value, json};
use sumac_client::{Client, Job, JobOptions};

use crate::common::{Raw, code};
use crate::lab::Lab;

const JOBS: usize = 40;
const SHARDS: usize = 4;

/// Opens the jobs, each with a worker alone; a connection has at most 16.
fn open(lab: &Lab) -> Vec<(Client, Job)> {
    let clients = [lab.client(0), lab.client(0), lab.client(0)];
    let open = |number: usize| {
        let client = &clients[number / 16];
        let options = JobOptions::new(format!("many-{number}"), 0, 1).slots(8);
        (client.clone(), client.open(&options).unwrap())
    };
    (0..JOBS).map(open).collect()
}

#[test]
fn the_counters_of_many_jobs_come_in_pages() {
    let lab = Lab::with(1, &format!("shards = {SHARDS}"));
    let jobs = open(&lab);
    let stats = lab.client(0).stats().unwrap();
    let mut numbers: Vec<_> = jobs.iter().map(|(_, job)| job.opened().wire_job).collect();
    numbers.sort_unstable();
    assert_eq!(stats.jobs.iter().map(|job| job.job).collect::<Vec<_>>(), numbers, "each job once");
    assert_eq!((stats.threads.len(), stats.ports.len()), (SHARDS, SHARDS));
    let lanes = stats.jobs[0].lanes.len();
    assert!(lanes >= SHARDS, "{lanes}");
    for job in &stats.jobs {
        let own: Vec<_> = job.lanes.iter().map(|lane| lane["lane"].as_u64().unwrap()).collect();
        assert_eq!(own, (0..lanes as u64).collect::<Vec<_>>(), "{}", job.name);
    }
    for (_, job) in &jobs {
        let own = job.stats().unwrap().unwrap();
        assert_eq!((own.job, own.lanes.len()), (job.opened().wire_job, lanes));
    }
    assert_eq!(lab.client(0).stats_json().unwrap()["jobs"].as_array().unwrap().len(), JOBS);
}

/// A client of an earlier release, which asks for no further page, reads the first one.
#[test]
fn each_page_is_a_message_and_the_next_follows_it() {
    let lab = Lab::with(1, &format!("shards = {SHARDS}"));
    let jobs = open(&lab);
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let (mut request, mut names) = (json!({"cmd": "stats"}), Vec::new());
    loop {
        let reply = raw.ask(request.clone());
        assert_eq!(code(&reply), "none", "{reply}");
        let page = &reply["ok"];
        assert_eq!(page["clients"], 4, "{page}");
        names.extend(page["jobs"].as_array().unwrap().iter().map(|job| job["name"].clone()));
        match &page["next"] {
            Value::Null => break,
            next => request = json!({"cmd": "stats", "after": next}),
        }
    }
    names.dedup();
    assert_eq!(names.len(), JOBS);
    // Handles are the connection's own.
    assert_eq!(code(&raw.ask(json!({"cmd": "stats", "job": 1}))), "unknown_job");
    assert_eq!(code(&raw.ask(json!({"cmd": "stats", "after": "x"}))), "bad_field");
    assert_eq!(raw.ask(json!({"cmd": "stats", "after": u64::MAX}))["ok"]["jobs"], json!([]));
    drop(jobs);
}

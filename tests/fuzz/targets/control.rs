//! The control plane: messages of both directions, tokens, and the jobs that it assigns to aggregators.

use std::net::Ipv4Addr;

use serde::{Serialize, de::DeserializeOwned};
use sumac_agg_host::HostAggregator;
use sumac_agg_job::{NewJob, endpoint, parents};
use sumac_control::{
    Credential, JoinToken,
    message::{ClientMessage, Hello, ServerMessage},
    plane::{JobInstall, Level, WorkerInstall},
};
use sumac_fuzz::edited;
use sumac_job::JobTerms;

use crate::fuzz;

const MESSAGES: &[&str] = &[
    r#"{"Alive":{"received":3}}"#,
    r#"{"Join":{"secret":"c2VjcmV0","spec":{"job":"a","rank":0,"world":2},"host":{"data_ip":"10.0.0.1","data_port":48700,"mac":[2,0,0,0,0,1],"max_elements":352,"max_shards":1,"checksum":true,"paths":16,"has_udp":false,"user":1000}}}"#,
    r#"{"Posts":{"first":0,"posts":[]}}"#,
    r#"{"Enter":{"secret":"c2VjcmV0","name":"r0","is_parameter_host":false}}"#,
    r#"{"Joined":{"session":7}}"#,
    r#"{"Status":{"Waiting":[0,2]}}"#,
    r#"{"Status":{"Over":"Finished"}}"#,
    r#"{"Denied":{"kind":"Secret","message":"wrong"}}"#,
    r#"{"Command":{"Resize":{"job":3,"slots":64,"reason":"measured"}}}"#,
    r#"{"Completed":{"Ok":"Done"}}"#,
];

/// Returns a message that was understood, after it was written and read again.
fn again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<(T, T)> {
    let first = serde_json::from_slice(bytes).ok()?;
    let second = serde_json::from_slice(&serde_json::to_vec(&first).ok()?).ok()?;
    Some((first, second))
}

fn example_messages() -> Vec<String> {
    let mut examples: Vec<String> = MESSAGES.iter().map(|text| (*text).to_owned()).collect();
    examples.push(serde_json::to_string(&ClientMessage::Hello(Hello::own())).unwrap());
    examples.push(format!(r#"{{"Command":{{"Install":{}}}}}"#, install(true)));
    examples
}

/// A stale example would leave its target with messages that are refused at once.
#[test]
fn examples_are_messages() {
    for example in example_messages() {
        let bytes = example.as_bytes();
        let is_one = again::<ClientMessage>(bytes).is_some() || again::<ServerMessage>(bytes).is_some();
        assert!(is_one, "{example}");
    }
}

#[test]
fn messages() {
    let examples = example_messages();
    fuzz!(|input: &[u8]| {
        let bytes = edited(&examples, input);
        if let Some((first, second)) = again::<ClientMessage>(&bytes) {
            assert_eq!(first, second);
        }
        if let Some((first, second)) = again::<ServerMessage>(&bytes) {
            assert_eq!(first, second);
        }
    });
}

#[test]
fn tokens() {
    let token = format!("sumac1.{}.{}", "A".repeat(43), "c2VjcmV0");
    let examples = [token.as_str(), "a secret"];
    fuzz!(|input: &[u8]| {
        let bytes = edited(&examples, input);
        let _ = Credential::new(&bytes);
        if let Ok(token) = String::from_utf8_lossy(&bytes).parse::<JoinToken>() {
            assert_eq!(token.to_string().parse::<JoinToken>().unwrap(), token);
        }
    });
}

/// A job for an aggregator, as JSON.
fn install(is_dynamic: bool) -> String {
    let mut terms = JobTerms::new(3, 1, 77, 2);
    (terms.elements, terms.slots) = (32, 8);
    if is_dynamic {
        (terms.mode, terms.window) = (sumac_job::Mode::Dynamic, 16);
        terms.parameter_hosts = vec!["10.0.0.9:48700".parse().unwrap()];
    }
    let worker = |last| WorkerInstall {
        ip: Ipv4Addr::new(10, 0, 0, last),
        port: 48700,
        mac: [2, 0, 0, 0, 0, last],
        local_ip: Ipv4Addr::new(10, 0, 0, 1),
        paths: 1,
    };
    let install = JobInstall {
        terms,
        first_slot: 0,
        stealing: true,
        level: Level::Only,
        workers: vec![worker(2), worker(3)],
        ranks: Vec::new(),
        contributors: Vec::new(),
        upstream: Vec::new(),
    };
    serde_json::to_string(&install).unwrap()
}

#[test]
fn assigned_jobs() {
    let examples = [install(false), install(true)];
    fuzz!(|input: &[u8]| {
        let Ok(install) = serde_json::from_slice::<JobInstall>(&edited(&examples, input)) else { return };
        let workers =
            install.workers.iter().map(|worker| std::net::SocketAddrV4::new(worker.ip, worker.port));
        let workers = workers.map(endpoint).collect();
        let parents = parents(&install).iter().copied().map(endpoint).collect();
        let Ok(new) = NewJob::of(&install, workers, parents) else { return };
        let aggregator =
            HostAggregator::of_shard(0, 1, 64, 64).and_then(|aggregator| aggregator.with_dynamic(16));
        let mut aggregator = aggregator.unwrap();
        if aggregator.install(&new).is_ok() {
            assert!(aggregator.job(new.job).is_some(), "it is there");
            assert!(aggregator.install(&new).is_err(), "and not twice");
            aggregator.on_packet(Ipv4Addr::new(10, 0, 0, 2), &mut [0; 100]);
            assert!(aggregator.remove(new.job));
        }
    });
}

//! A daemon whose partner in the job says what the test wants, and when: only the control plane's half of a worker.
//! See `common/lab.rs` for the topology.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod common;

use std::net::Ipv4Addr;
use std::time::Duration;

use common::lab::Lab;
use common::{Raw, SECRET};
use serde_json::{Value, json};
use sumac_control::{JoinSpec, Member, Mode, Notice, OperationOrder, Secret};
use sumac_transport::{NonFinitePolicy, Scale, WireFormat};
use tokio::runtime::Runtime;

/// The kind of notice that tells what a worker has submitted, in a key's upper byte.
const HISTORY: u64 = 4 << 56;

fn partner(job: &str, slots: Option<u32>) -> JoinSpec {
    JoinSpec {
        job: job.into(),
        world: 2,
        rank: 1,
        secret: Secret::new(SECRET).unwrap(),
        data_ip: Ipv4Addr::new(127, 0, 0, 99),
        data_port: 9,
        mac: [0; 6],
        elements: None,
        max_elements: 352,
        slots,
        shards: None,
        max_shards: 1,
        scaling: Scale::Block,
        wire: WireFormat::Int32,
        not_finite: NonFinitePolicy::Error,
        order: OperationOrder::Submission,
        checksum: true,
        mode: Mode::Static,
        deadline: Duration::from_secs(60),
    }
}

/// A client's request to open the job as rank 0, and its partner.
fn pair(lab: &Lab, runtime: &Runtime, slots: Option<u32>) -> (Raw, u64, Member) {
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let mut open = json!({"cmd": "open", "job": "pair", "rank": 0, "world": 2});
    if let Some(slots) = slots {
        open["slots"] = slots.into();
    }
    let request = raw.say(open, &[]);
    let member =
        runtime.block_on(sumac_control::join(lab.aggregator.address, partner("pair", slots))).unwrap();
    (raw, request, member)
}

#[test]
fn a_trainer_that_goes_while_slots_are_measured_is_heard_at_once() {
    let (lab, runtime) = (Lab::new(1), Runtime::new().unwrap());
    let (raw, _request, member) = pair(&lab, &runtime, None);
    // The daemon has measured, or is about to; its partner never does.
    let measured = || {
        let stats = lab.client(0).stats().unwrap();
        stats.jobs.first().is_some_and(|job| job.state == "measured")
    };
    while !measured() {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(raw);
    let failure = runtime.block_on(member.failed());
    assert_eq!(failure.culprit, Some(0), "{failure}");
    assert!(failure.message.contains("its trainer went away"), "{failure}");
}

#[test]
fn a_close_does_not_hide_that_the_workers_differ() {
    let (lab, runtime) = (Lab::new(1), Runtime::new().unwrap());
    let (mut raw, request, mut member) = pair(&lab, &runtime, Some(16));
    let opened = raw.reply_to(request).0;
    let job: &Value = &opened["ok"]["job"];
    assert!(job.is_u64(), "{opened}");
    // It differs from somebody, and the rest of what it has to say is waited for. This daemon has submitted nothing, so that
    // nothing keeps its client from closing.
    let history = json!({"first": 0, "signatures": [7], "left": 1}).to_string();
    member.post(Notice { key: HISTORY, text: history });
    let (rank, answer) = runtime.block_on(member.notices().recv()).unwrap();
    assert_eq!((rank, answer.key), (0, HISTORY));
    let close = raw.say(json!({"cmd": "close", "job": job}), &[]);
    let event = raw.event();
    assert_eq!(
        (&event["event"], &event["error"]["code"]),
        (&json!("job_failed"), &json!("mismatch")),
        "{event}"
    );
    assert!(raw.reply_to(close).0["ok"].is_object());
}

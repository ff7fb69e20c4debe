//! A daemon whose partner in the job states what the test wants, and when: only the control plane's half of a
//! worker. See `lab.rs` for the topology.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::common::Raw;
use crate::lab::Lab;
use crate::wait::eventually;
use serde_json::{Value, json};
use sumac_control::events::{OperationReport, Post};
use sumac_control::{JoinRequest, Member, WorkerHost};
use sumac_job::JobSpec;
use tokio::runtime::Runtime;

fn partner(rank: u16, world: u16, slots: Option<u32>) -> JoinRequest {
    let host = WorkerHost {
        data_ip: Ipv4Addr::new(127, 0, 0, 98 + rank as u8),
        data_port: 9,
        mac: [0; 6],
        max_elements: 352,
        max_shards: 1,
        checksum: true,
        paths: 1,
        has_udp: false,
        user: 0,
    };
    JoinRequest::new(JobSpec { slots, ..JobSpec::new("pair", rank, world) }, host)
}

/// A client's request to open the job as rank 0, and its partners.
fn partners(lab: &Lab, runtime: &Runtime, world: u16, slots: Option<u32>) -> (Raw, u64, Vec<Member>) {
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let mut open = json!({"cmd": "open", "job": "pair", "rank": 0, "world": world});
    if let Some(slots) = slots {
        open["slots"] = slots.into();
    }
    let request = raw.send(open, &[]);
    let endpoint = lab.aggregator.endpoint();
    let joins = (1..world).map(|rank| {
        let endpoint = endpoint.clone();
        runtime
            .spawn(async move { sumac_control::join(&endpoint, partner(rank, world, slots)).await.unwrap() })
    });
    let joins: Vec<_> = joins.collect();
    let members = joins.into_iter().map(|join| runtime.block_on(join).unwrap()).collect();
    (raw, request, members)
}

#[test]
fn a_trainer_that_goes_while_slots_are_measured_is_heard_at_once() {
    let (lab, runtime) = (Lab::new(1), Runtime::new().unwrap());
    let (raw, _request, members) = partners(&lab, &runtime, 2, None);
    // The daemon has measured, or is about to; its partner never does.
    let measured = || {
        let stats = lab.client(0).stats().unwrap();
        stats.jobs.first().is_some_and(|job| job.state == "measured")
    };
    eventually("the measurement", || measured().then_some(()));
    drop(raw);
    let failure = runtime.block_on(members[0].failed());
    assert_eq!(failure.culprit(), Some(0), "{failure}");
    assert!(failure.message.contains("its trainer went away"), "{failure}");
}

#[test]
fn a_close_does_not_hide_that_the_workers_differ() {
    let (lab, runtime) = (Lab::new(1), Runtime::new().unwrap());
    let (mut raw, request, members) = partners(&lab, &runtime, 3, Some(16));
    let opened = raw.reply_to(request).0;
    let job: &Value = &opened["ok"]["job"];
    assert!(job.is_u64(), "{opened}");
    // One differs from somebody, and the report of the third is waited for. This daemon has submitted
    // nothing, so that nothing keeps its client from closing.
    members[0].post(Post::Operations(OperationReport::default()));
    std::thread::sleep(Duration::from_millis(300));
    let close = raw.send(json!({"cmd": "close", "job": job}), &[]);
    let event = raw.event();
    assert_eq!(
        (&event["event"], &event["error"]["code"]),
        (&json!("job_failed"), &json!("mismatch")),
        "{event}"
    );
    assert!(raw.reply_to(close).0["ok"].is_object());
}

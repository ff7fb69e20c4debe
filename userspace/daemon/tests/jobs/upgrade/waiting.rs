//! The states of trainers and operations at a handover: attached clients, queued operations, waits, words and
//! transfers.

use std::time::Duration;

use super::WORLD;
use crate::common::{Raw, code};
use crate::kinds::tensor;
use crate::lab::{Kind, Lab};
use serde_json::{Value, json};
use sumac_client::{JobOptions, Mode, OpOptions, OperationOrder, RecvOptions, SendOptions};
use sumac_daemon::{Daemon, Versions};

fn upgrade_all(lab: &mut Lab) {
    (0..lab.hosts.len()).for_each(|host| lab.upgrade(host, ""));
}

/// One trainer is ahead: its operations have chunks in the aggregator's slots, and in the parameter host.
fn wait_for_the_other(mut lab: Lab, mode: Mode) {
    let opened = lab.open("ahead", |o| o.mode(mode));
    let [(first, early), (second, late)] = &opened[..] else { panic!("two hosts") };
    let count = 60_000;
    let submit = |client, job: &sumac_client::Job, rank: i32| -> Vec<_> {
        (0..3)
            .map(|number| job.allreduce(tensor::<i32>(client, count, |i| i as i32 + rank + number)).unwrap())
            .collect()
    };
    let ahead = submit(first, early, 10);
    std::thread::sleep(Duration::from_millis(50));
    upgrade_all(&mut lab);
    upgrade_all(&mut lab);
    let behind = submit(second, late, 1000);
    for (number, pending) in ahead.into_iter().chain(behind).enumerate() {
        let number = (number % 3) as i32;
        let sum = pending.wait().unwrap();
        assert!((0..).zip(sum.iter()).all(|(i, sum)| *sum == 2 * (i + number) + 1010), "{mode:?}");
    }
    drop(opened);
}

#[test]
fn a_trainer_that_is_ahead_has_its_sums_after_two_handovers() {
    wait_for_the_other(Lab::new(usize::from(WORLD)), Mode::Static);
    wait_for_the_other(Lab::new(usize::from(WORLD)), Mode::Direct);
    wait_for_the_other(Lab::dynamic(Kind::Host { shared: 256 }, usize::from(WORLD), 1, ""), Mode::Dynamic);
}

#[test]
fn attached_clients_and_operations_that_wait_for_their_names_go_on() {
    let mut lab = Lab::new(usize::from(WORLD));
    let opened = lab.open("named", |o| o.order(OperationOrder::Name));
    let attached: Vec<_> = (0..2)
        .map(|host| {
            let client = lab.client(host);
            let job = client.attach("named", None).unwrap();
            (client, job)
        })
        .collect();
    let submit = |host: usize, is_attached: bool, name: &'static str| {
        let (client, job) = if is_attached { &attached[host] } else { &opened[host] };
        let options = OpOptions { polled: true, timed: true, ..OpOptions::named(name) };
        job.allreduce_with(tensor::<i32>(client, 9000, |i| i as i32 + name.len() as i32), options).unwrap()
    };
    // The second host has announced neither, and the first one twice.
    let mut waiting = vec![submit(0, false, "a"), submit(0, true, "bb"), submit(0, true, "bb")];
    upgrade_all(&mut lab);
    waiting.extend([submit(1, true, "bb"), submit(1, false, "a")]);
    lab.upgrade(1, "");
    waiting.push(submit(1, false, "bb"));
    lab.upgrade(0, "");
    let lengths = [1, 2, 2, 2, 1, 2];
    for (pending, length) in waiting.into_iter().zip(lengths) {
        let sum = pending.wait_polled(Duration::from_millis(1)).unwrap();
        assert!((0..).zip(sum.iter()).all(|(i, sum)| *sum == 2 * (i + length)));
    }
    for (_, job) in attached {
        job.close().unwrap();
    }
    // Other clients attach to it in the new daemon.
    let late = lab.client(0);
    late.attach("named", None).unwrap().close().unwrap();
    let stats = late.stats().unwrap();
    assert_eq!((stats.jobs[0].clients, stats.jobs[0].operations_ended), (1, 3));
    let closing = opened.into_iter().map(|(_, job)| std::thread::spawn(move || job.close().unwrap()));
    closing.collect::<Vec<_>>().into_iter().for_each(|closing| closing.join().unwrap());
}

#[test]
fn handles_replies_and_events_go_on_in_order() {
    let mut lab = Lab::new(usize::from(WORLD));
    let mut raws: Vec<Raw> = (0..2).map(|host| Raw::greeted(&lab.hosts[host].1)).collect();
    let regions: Vec<Value> = raws.iter_mut().map(|raw| raw.region(1 << 16)).collect();
    let open = |rank: u16| json!({"cmd": "open", "job": "raw", "rank": rank, "world": 2});
    let requests: Vec<u64> = raws.iter_mut().zip(0..).map(|(raw, rank)| raw.send(open(rank), &[])).collect();
    let jobs: Vec<Value> = raws
        .iter_mut()
        .zip(requests)
        .map(|(raw, request)| raw.reply_to(request).0["ok"]["job"].clone())
        .collect();
    let sum = |at: usize, offset: u64, count: u64| {
        json!({"cmd": "allreduce",
        "job": jobs[at], "region": regions[at], "offset": offset, "count": count, "dtype": "int32"})
    };
    let first = raws[0].ask(sum(0, 0, 5000))["ok"]["op"].clone();
    let second = raws[0].ask(sum(0, 32768, 10))["ok"]["op"].clone();
    let wait = raws[0].send(json!({"cmd": "wait", "op": first}), &[]);
    let late = raws[0].send(json!({"cmd": "wait", "op": second, "timeout_ms": 300}), &[]);
    upgrade_all(&mut lab);
    // The deadline has moved to the new daemon.
    assert_eq!(code(&raws[0].reply_to(late).0), "timeout");
    // So have the memory in use, and the region.
    assert_eq!(code(&raws[0].ask(sum(0, 4, 1))), "range_busy");
    assert_eq!(code(&raws[0].ask(json!({"cmd": "unregister", "region": regions[0]}))), "region_busy");
    assert_eq!(code(&raws[0].ask(json!({"cmd": "close", "job": jobs[0]}))), "job_busy");
    let others = [sum(1, 0, 5000), sum(1, 32768, 10)].map(|sum| raws[1].ask(sum)["ok"]["op"].clone());
    assert!(raws[0].reply_to(wait).0["ok"].is_object());
    for (raw, ops) in raws.iter_mut().zip([[first, second], others]) {
        for op in ops {
            assert_eq!(raw.event()["op"], op, "in the order of submission");
        }
        // Handles of the new daemon do not repeat those of the former.
        assert!(!regions.contains(&raw.region(4096)));
    }
    let closing: Vec<u64> = raws
        .iter_mut()
        .zip(&jobs)
        .map(|(raw, job)| raw.send(json!({"cmd": "close", "job": job}), &[]))
        .collect();
    for (raw, closing) in raws.iter_mut().zip(closing) {
        assert!(raw.reply_to(closing).0["ok"].is_object());
    }
}

#[test]
fn transfers_that_wait_for_their_other_end_go_on() {
    let mut lab = Lab::new(usize::from(WORLD));
    let opened = lab.open("transfers", |o| o.mode(Mode::Direct));
    let [(first, one), (second, other)] = &opened[..] else { panic!("two hosts") };
    let sent = one.post_send(tensor::<i32>(first, 30_000, |i| i as i32), 1, SendOptions::default()).unwrap();
    upgrade_all(&mut lab);
    let received = other.post_recv(second.tensor::<i32>(30_000).unwrap(), 0, RecvOptions::default()).unwrap();
    assert!((0..).zip(received.wait().unwrap().iter()).all(|(i, value)| *value == i));
    sent.wait().unwrap();
    lab.upgrade(0, "");
    // The numbers of the pair's transfers go on.
    let back = other.post_send(tensor::<i32>(second, 10, |_| 7), 0, SendOptions::default()).unwrap();
    let received = one.post_recv(first.tensor::<i32>(10).unwrap(), 1, RecvOptions::default()).unwrap();
    assert_eq!(received.wait().unwrap().to_vec(), [7; 10]);
    back.wait().unwrap();
}

#[test]
fn a_job_that_waits_for_its_workers_is_opened_after_two_handovers() {
    let mut lab = Lab::new(usize::from(WORLD));
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let open = raw.send(json!({"cmd": "open", "job": "early", "rank": 0, "world": 2}), &[]);
    // Commands are read in their order: it waits in the daemon.
    assert!(raw.ask(json!({"cmd": "stats"}))["ok"].is_object());
    lab.upgrade(0, "");
    // A takeover that is given up has it wait on, too.
    drop(Daemon::prepare_takeover(lab.config_of(0, ""), Versions::own()).unwrap());
    lab.upgrade(0, "");
    let job = lab.client(1).open(&JobOptions::new("early", 1, WORLD)).unwrap();
    let (reply, eventfd) = raw.reply_to(open);
    assert_eq!((reply["ok"]["world"].as_u64(), eventfd.len()), (Some(2), 1), "{reply}");
    drop((raw, job));
}

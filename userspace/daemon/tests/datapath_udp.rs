//! The data path over UDP on the loopback interface. Needs no privilege.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{net::Ipv4Addr, time::Duration};

use sumac_daemon::datapath::{AddError, Event, Peer, UdpPort, command::Refusal};
use sumac_transport::{Arithmetic, DType, JobError, JobParams, OpError, Operation};
use support::{
    aggregator::{Aggregator, Faults},
    job::{Counters, Worker, expected, params, values},
};

const COUNT: usize = 20_000;

fn port() -> Box<UdpPort> {
    Box::new(UdpPort::bind(Ipv4Addr::LOCALHOST, 0).unwrap())
}

fn peer(base_port: u16) -> Peer {
    Peer { ip: Ipv4Addr::LOCALHOST, base_port, mac: [0; 6], checksum: true }
}

fn two_workers(faults: Faults) -> (Aggregator, [Worker; 2]) {
    let aggregator = Aggregator::start(Ipv4Addr::LOCALHOST, 0, None, faults);
    let workers = [0, 1].map(|rank| Worker::join("udp", port(), params(rank, 2), peer(aggregator.port)));
    workers.iter().for_each(Worker::ready);
    (aggregator, workers)
}

/// Several operations are outstanding at once; each byte is read once per packet and written once.
#[test]
fn two_workers_sum_and_copy_once() {
    let (_aggregator, workers) = two_workers(Faults::default());
    let counters: Vec<_> = [0, 1]
        .map(|rank| {
            (0..4).map(|tag| workers[rank].submit(tag, &values(rank as u16, COUNT))).collect::<Vec<_>>()
        })
        .into();
    for worker in &workers {
        for tag in 0..4 {
            assert_eq!(worker.sum(), (tag, expected(2, COUNT)), "operation {tag}");
        }
    }
    for (worker, counters) in workers.iter().zip(counters) {
        let stats = worker.path.shutdown().unwrap();
        let engine = &stats.jobs[0].engine;
        let (read, written) = counters.iter().map(Counters::get).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        assert_eq!(read as u64, 4 * engine.elements_sent, "one reading per element sent");
        assert_eq!(written, 4 * 4 * COUNT, "one writing per element");
        assert_eq!(engine.elements_received as usize, 4 * COUNT);
        assert_eq!((stats.port.malformed, stats.port_errors), (0, 0), "{stats:?}");
    }
}

#[test]
fn losses_change_no_bit() {
    let (_aggregator, workers) = two_workers(Faults { lose_every: 37, ..Faults::default() });
    for (rank, worker) in workers.iter().enumerate() {
        worker.submit(1, &values(rank as u16, COUNT));
    }
    for worker in &workers {
        assert_eq!(worker.sum(), (1, expected(2, COUNT)));
        assert!(worker.path.stats().unwrap().jobs[0].engine.retransmits() > 0);
    }
}

#[test]
fn two_jobs_share_a_thread() {
    let aggregator = Aggregator::start(Ipv4Addr::LOCALHOST, 0, None, Faults::default());
    let worker = Worker::start("udp", port());
    for job in [7, 8] {
        worker.path.add_job(JobParams { job, ..params(0, 1) }, peer(aggregator.port)).unwrap();
        worker.ready();
    }
    let operation = |buffer: Vec<u8>| {
        Operation::allreduce(1, DType::I32, Arithmetic::Sum, buffer.len() / 4, Box::new(buffer))
    };
    for job in [7, 8] {
        assert!(worker.path.submit(job, u64::from(job), operation(vec![job as u8; 40_000])).is_ok());
    }
    for _ in 0..2 {
        let Event::Completed { job, tag, completion } = worker.event() else { panic!() };
        completion.result.unwrap();
        assert_eq!(u64::from(job), tag);
        assert_eq!(completion.buffer.input(0, 40_000), vec![job as u8; 40_000]);
    }
}

#[test]
fn a_silent_aggregator_fails_the_job_and_its_operations() {
    let deaf = Faults { is_deaf: true, ..Faults::default() };
    let aggregator = Aggregator::start(Ipv4Addr::LOCALHOST, 0, None, deaf);
    let worker = Worker::join("udp", port(), params(0, 1), peer(aggregator.port));
    worker.submit(5, &values(0, 10));
    let Event::JobFailed { job: 7, error } = worker.event() else { panic!() };
    assert!(matches!(error, JobError::NoReply { .. }), "{error}");
    let Event::Completed { tag: 5, completion, .. } = worker.event() else { panic!() };
    assert_eq!(completion.result, Err(OpError::Job(error)));
    // The thread serves other jobs as before.
    worker.path.remove_job(7);
    worker.path.add_job(params(0, 1), peer(aggregator.port)).unwrap();
}

#[test]
fn a_job_that_is_failed_or_removed_gives_everything_back() {
    let deaf = Faults { is_deaf: true, ..Faults::default() };
    let aggregator = Aggregator::start(Ipv4Addr::LOCALHOST, 0, None, deaf);
    let worker = Worker::join("udp", port(), params(0, 1), peer(aggregator.port));
    worker.submit(1, &values(0, 10));
    let why = JobError::Worker { rank: 2, reason: "(10.77.2.2) stopped answering".to_owned() };
    worker.path.fail_job(7, why.clone());
    assert!(matches!(worker.event(), Event::JobFailed { job: 7, error } if error == why));
    let Event::Completed { tag: 1, completion, .. } = worker.event() else { panic!() };
    assert_eq!(completion.result.unwrap_err().to_string(), "rank 2 (10.77.2.2) stopped answering");
    worker.submit(2, &values(0, 10));
    assert!(
        matches!(worker.event(), Event::Completed { tag: 2, completion, .. } if completion.result.is_err())
    );
    worker.path.remove_job(7);
    worker.submit(3, &values(0, 10));
    let Event::Refused { job: 7, tag: 3, error, operation } = worker.event() else { panic!() };
    assert_eq!((error, operation.count), (Refusal::NoJob { job: 7 }, 10));
}

#[test]
fn jobs_that_cannot_run_are_refused_by_name() {
    let worker = Worker::join("udp", port(), params(0, 1), peer(9));
    let add = |params| worker.path.add_job(params, peer(9)).unwrap_err();
    assert_eq!(add(params(0, 1)), AddError::Exists { job: 7 });
    let shards = add(JobParams { job: 8, shards: 4, ..params(0, 1) });
    assert_eq!(shards, AddError::Shards { asked: 4, given: 1 });
    assert!(matches!(add(JobParams { job: 8, rack_world: 99, ..params(0, 1) }), AddError::Params(_)));
    worker.path.shutdown().unwrap();
    assert_eq!(add(JobParams { job: 8, ..params(0, 1) }), AddError::Stopped);
    assert!(worker.path.stats().is_none() && worker.path.shutdown().is_none());
}

#[test]
fn strangers_reach_no_engine() {
    let (_aggregator, workers) = two_workers(Faults::default());
    let local = workers[0].path.stats().unwrap().port.local.unwrap();
    let stranger = std::net::UdpSocket::bind("127.0.0.2:0").unwrap();
    let mut of_another_job = [0; 56];
    of_another_job[5] = 8;
    let mut of_this_job = [0; 56];
    of_this_job[5] = 7;
    for packet in [&[][..], &[1, 2, 3], &of_another_job, &of_this_job, &[0xff; 5000]] {
        stranger.send_to(packet, local).unwrap();
    }
    let strays = (0..5000)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            workers[0].path.stats().unwrap().strays
        })
        .find(|strays| strays.truncated + strays.unknown_job + strays.wrong_source >= 5)
        .unwrap();
    assert_eq!((strays.truncated, strays.unknown_job, strays.wrong_source), (2, 2, 1));
    for (rank, worker) in workers.iter().enumerate() {
        worker.submit(1, &values(rank as u16, 100));
    }
    assert_eq!(workers[0].sum(), (1, expected(2, 100)));
}

/// A thread without work sleeps: it makes no more rounds however long it is left alone.
#[test]
fn an_idle_thread_sleeps() {
    let (_aggregator, workers) = two_workers(Faults::default());
    let before = workers[0].path.stats().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let after = workers[0].path.stats().unwrap();
    // The two questions themselves, and a straggling answer to a probe.
    assert!(after.rounds - before.rounds <= 6, "{} rounds", after.rounds - before.rounds);
}

//! The data path over UDP on the loopback interface. Needs no privilege.

use std::{
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use sumac_agg_host::HostDataPlane;
use sumac_datapath::{DatapathStats, Event, InstallError, Peer, Rejection, WorkerJob};
use sumac_host::{FragmentKey, OperationKey};
use sumac_transport::{Arithmetic, DType, JobError, JobParams, OpError, Operation};
use sumac_wire::{Header, Kind, Reason};

use crate::{
    aggregator,
    job::{SLOTS, Worker, copied, expected, ios, key, params, peer, plan, values},
};

const COUNT: usize = 20_000;

/// Starts an aggregator and the workers of a job with so many lanes. One of `lose_every` packets is lost; 0:
/// none.
fn workers<const N: usize>(params: &JobParams, lanes: u16, lose_every: u32) -> (HostDataPlane, [Worker; N]) {
    let aggregator = aggregator::start(Ipv4Addr::LOCALHOST, 0, params.shards);
    let workers = [(); N].map(|()| Worker::start("udp", ios(params.shards)));
    aggregator::install(&aggregator, params, workers.iter().map(Worker::local).collect(), lose_every);
    for (rank, worker) in (0..).zip(&workers) {
        let params = JobParams { rank, rack_rank: rank, ..params.clone() };
        worker.path.add_job(plan(params, lanes, peer(aggregator.local().port()))).unwrap();
    }
    workers.iter().for_each(Worker::ready);
    (aggregator, workers)
}

/// Starts a worker whose aggregator answers nothing.
fn unanswered_worker() -> (UdpSocket, Worker, Peer) {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let peer = peer(silent.local_addr().unwrap().port());
    (silent, Worker::join("udp", ios(1), params(0, 1), peer), peer)
}

/// Several operations are outstanding at once; each byte is read once per packet and written once.
#[test]
fn two_workers_sum_and_copy_once() {
    let (_aggregator, workers) = workers::<2>(&params(0, 2), 1, 0);
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
        let [stats] = <[_; 1]>::try_from(worker.path.shutdown().unwrap()).unwrap();
        let engine = &stats.jobs[0].engine;
        let written = 4 * 4 * COUNT;
        assert_eq!(copied(&counters), (4 * engine.elements_sent as usize, written), "once per element");
        assert_eq!(engine.elements_received as usize, 4 * COUNT);
        assert_eq!((stats.port.malformed, stats.port_errors), (0, 0), "{stats:?}");
    }
}

#[test]
fn losses_change_no_bit() {
    let (_aggregator, workers) = workers::<2>(&params(0, 2), 1, 37);
    for (rank, worker) in workers.iter().enumerate() {
        worker.submit(1, &values(rank as u16, COUNT));
    }
    for worker in &workers {
        assert_eq!(worker.sum(), (1, expected(2, COUNT)));
        assert!(worker.path.stats().unwrap()[0].jobs[0].engine.questions > 0);
    }
}

#[test]
fn two_jobs_share_a_thread() {
    let aggregator = aggregator::start(Ipv4Addr::LOCALHOST, 0, 1);
    let worker = Worker::start("udp", ios(1));
    for job in [7, 8] {
        let params = JobParams { job, ..params(0, 1) };
        aggregator::install(&aggregator, &params, vec![worker.local()], 0);
        worker.path.add_job(plan(params, 1, peer(aggregator.local().port()))).unwrap();
        worker.ready();
    }
    sum_in_both(&worker, [7, 8]);
}

/// Control planes number their jobs without knowledge of each other. Each job's results have its token.
#[test]
fn jobs_of_one_number_on_two_aggregators_share_a_thread() {
    let aggregators = [(); 2].map(|()| aggregator::start(Ipv4Addr::LOCALHOST, 0, 1));
    let worker = Worker::start("udp", ios(1));
    for (id, aggregator) in (1..).zip(&aggregators) {
        let params = JobParams { token: id, ..params(0, 1) };
        aggregator::install(aggregator, &params, vec![worker.local()], 0);
        let plan = plan(params, 1, peer(aggregator.local().port()));
        worker.path.add_job(WorkerJob { id, ..plan }).unwrap();
        worker.ready();
    }
    sum_in_both(&worker, [1, 2]);
    let stats = DatapathStats::merge_jobs(&worker.path.stats().unwrap());
    assert_eq!(stats.iter().map(|(job, _)| (job.id, job.job)).collect::<Vec<_>>(), [(1, 7), (2, 7)]);
    // A busy machine may ask twice for a chunk, whose second result is dropped.
    assert!(stats.iter().all(|(job, _)| job.engine.frames.get(Reason::BadToken) == 0), "{stats:?}");
    worker.path.remove_job(1);
    assert!(matches!(worker.event(), Event::JobFailed { job: 1, .. }));
    sum_in_both(&worker, [2, 2]);
}

/// Sums a tensor in each of two jobs at once.
fn sum_in_both(worker: &Worker, jobs: [u64; 2]) {
    let operation = |buffer: Vec<u8>| {
        Operation::allreduce(1, DType::Int32, Arithmetic::Sum, buffer.len() / 4, Box::new(buffer))
    };
    for job in jobs {
        assert!(worker.path.submit(job, 0, key(job), operation(vec![job as u8; 40_000])));
    }
    for _ in jobs {
        let event = worker.event();
        let Event::Completed { job, id, completion, .. } = event else { panic!("{event:?}") };
        completion.result.unwrap();
        assert_eq!(key(job), id);
        assert_eq!(completion.buffer.input(0, 40_000), vec![job as u8; 40_000]);
    }
}

#[test]
fn a_silent_aggregator_fails_the_job_and_its_operations() {
    let (_silent, worker, peer) = unanswered_worker();
    worker.submit(5, &values(0, 10));
    let Event::JobFailed { job: 7, error } = worker.event() else { panic!() };
    assert!(matches!(error, JobError::NoReply { .. }), "{error}");
    let Event::Completed {
        id: FragmentKey { operation: OperationKey { op: 5, .. }, .. }, completion, ..
    } = worker.event()
    else {
        panic!()
    };
    assert_eq!(completion.result, Err(OpError::Job(error)));
    // The thread serves other jobs as before.
    worker.path.remove_job(7);
    worker.path.add_job(plan(params(0, 1), 1, peer)).unwrap();
}

#[test]
fn a_job_that_is_failed_or_removed_gives_everything_back() {
    let (_silent, worker, _) = unanswered_worker();
    worker.submit(1, &values(0, 10));
    let why = JobError::Worker { rank: 2, reason: "(10.77.2.2) stopped answering".to_owned() };
    worker.path.fail_job(7, &why);
    assert!(matches!(worker.event(), Event::JobFailed { job: 7, error } if error == why));
    let Event::Completed {
        id: FragmentKey { operation: OperationKey { op: 1, .. }, .. }, completion, ..
    } = worker.event()
    else {
        panic!()
    };
    assert_eq!(completion.result.unwrap_err().to_string(), "rank 2 (10.77.2.2) stopped answering");
    worker.submit(2, &values(0, 10));
    assert!(
        matches!(worker.event(), Event::Completed { id: FragmentKey { operation: OperationKey { op: 2, .. }, .. }, completion, .. } if completion.result.is_err())
    );
    worker.path.remove_job(7);
    worker.submit(3, &values(0, 10));
    let Event::Rejected {
        job: 7,
        id: FragmentKey { operation: OperationKey { op: 3, .. }, .. },
        error,
        operation,
        ..
    } = worker.event()
    else {
        panic!()
    };
    assert_eq!((error, operation.count), (Rejection::UnknownJob { job: 7 }, 10));
}

#[test]
fn jobs_that_cannot_run_are_refused_by_name() {
    let worker = Worker::join("udp", ios(1), params(0, 1), peer(9));
    let add = |params| worker.path.add_job(plan(params, 1, peer(9))).unwrap_err();
    assert_eq!(add(params(0, 1)), InstallError::InUse { job: 7 });
    let shards = add(JobParams { job: 8, shards: 4, ..params(0, 1) });
    assert_eq!(shards, InstallError::Shards { asked: 4, given: 1 });
    assert!(matches!(add(JobParams { job: 8, rack_world: 99, ..params(0, 1) }), InstallError::Params(_)));
    let gap = plan(params(0, 1), 2, peer(9)).lanes.split_off(1);
    let error = worker
        .path
        .add_job(WorkerJob { id: 7, lanes: gap, peer: Some(peer(9)), ..WorkerJob::default() })
        .unwrap_err();
    assert_eq!(error, InstallError::Lanes { job: 7, given: 1 });
    worker.path.shutdown().unwrap();
    assert_eq!(add(JobParams { job: 8, ..params(0, 1) }), InstallError::Stopped);
    assert!(worker.path.stats().is_none() && worker.path.shutdown().is_none());
}

#[test]
fn strangers_reach_no_engine() {
    let (_aggregator, workers) = workers::<2>(&params(0, 2), 1, 0);
    let local = workers[0].local();
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    let header = |job| Header { kind: Kind::Result as u8, job, ..Header::default() }.to_bytes();
    for packet in [&[][..], &[1, 2, 3], &header(8), &header(7), &[0xff; 5000]] {
        stranger.send_to(packet, local).unwrap();
    }
    let (undelivered, malformed) = (0..5000)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            let stats = workers[0].path.stats().unwrap().remove(0);
            (stats.undelivered, stats.port.malformed)
        })
        .find(|(counts, malformed)| counts.unknown_job + counts.wrong_source + malformed >= 5)
        .unwrap();
    assert_eq!((undelivered.unknown_job, undelivered.wrong_source, malformed), (1, 1, 3));
    for (rank, worker) in workers.iter().enumerate() {
        worker.submit(1, &values(rank as u16, 100));
    }
    assert_eq!(workers[0].sum(), (1, expected(2, 100)));
}

/// A thread without work sleeps: it makes no more rounds however long it is left alone.
#[test]
fn an_idle_thread_sleeps() {
    let (_aggregator, workers) = workers::<2>(&params(0, 2), 1, 0);
    let before = workers[0].path.stats().unwrap().remove(0);
    std::thread::sleep(Duration::from_millis(300));
    let after = workers[0].path.stats().unwrap().remove(0);
    // The two questions themselves, and a straggling answer to a probe.
    assert!(after.rounds - before.rounds <= 6, "{} rounds", after.rounds - before.rounds);
}

/// Two shards are on two threads, in two classes each: lanes have their own slots and their own sockets.
#[test]
fn shards_have_threads_of_their_own() {
    let (_aggregator, workers) = workers::<2>(&JobParams { shards: 2, ..params(0, 2) }, 4, 0);
    for (rank, worker) in workers.iter().enumerate() {
        (0..4).for_each(|lane| drop(worker.submit_to(lane, u64::from(lane), &values(rank as u16, COUNT))));
    }
    for worker in &workers {
        let mut ended: Vec<_> = (0..4).map(|_| worker.sum()).collect();
        ended.sort_by_key(|(tag, _)| *tag);
        for (tag, (got, sum)) in (0..).zip(ended) {
            assert!(got == tag && sum == expected(2, COUNT), "lane {tag}");
        }
        let threads = worker.path.shutdown().unwrap();
        let lanes: Vec<Vec<u16>> =
            threads.iter().map(|thread| thread.jobs.iter().map(|job| job.lane).collect()).collect();
        assert_eq!(lanes, [[2, 0], [3, 1]], "by thread, the urgent one first");
        for thread in &threads {
            assert!(thread.jobs.iter().all(|lane| lane.engine.results > 0), "{thread:?}");
            assert_eq!((thread.undelivered.crossed, thread.undelivered.no_lane), (0, 0));
        }
        let jobs = DatapathStats::merge_jobs(&threads);
        let results: u64 =
            threads.iter().flat_map(|thread| &thread.jobs).map(|lane| lane.engine.results).sum();
        assert_eq!((jobs.len(), jobs[0].1.len(), jobs[0].0.engine.results), (1, 4, results));
    }
}

/// A payload at the wrong port is not lost: it goes to the thread that has its lane.
#[test]
fn payloads_cross_to_the_thread_that_has_their_lane() {
    let params = JobParams { shards: 2, ..params(0, 1) };
    let (_aggregator, [worker]) = workers(&params, 4, 0);
    let first = worker.local();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let header = |lane: u32| Header {
        kind: Kind::Result as u8,
        job: params.job,
        epoch: params.epoch,
        slot: lane * params.slots,
        token: sumac_job::result_token(params.token),
        ..Default::default()
    };
    for lane in [0, 1, 2, 3, 4, 77] {
        sender.send_to(&header(lane).to_bytes(), first).unwrap();
    }
    let arrived = (0..5000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let threads = worker.path.stats().unwrap();
        let frames: u64 =
            threads.iter().flat_map(|thread| &thread.jobs).map(|lane| lane.engine.frames.dropped()).sum();
        let no_lane: u64 = threads.iter().map(|thread| thread.undelivered.no_lane).sum();
        (frames == 4 && no_lane == 2).then_some(threads)
    });
    let threads = arrived.unwrap_or_else(|| panic!("{:#?}", worker.path.stats()));
    // Lanes 1 and 3 are the other thread's, and so would 77 be.
    assert_eq!((threads[0].undelivered.crossed, threads[1].undelivered.crossed), (3, 0));
}

/// The path is measured on one lane, and all wait for the answer to it.
#[test]
fn a_measured_job_waits_for_its_slots() {
    let aggregator = aggregator::start(Ipv4Addr::LOCALHOST, 0, 2);
    let worker = Worker::start("udp", ios(2));
    let params = JobParams { shards: 2, ..params(0, 1) };
    aggregator::install(&aggregator, &params, vec![worker.local()], 0);
    let mut lanes = plan(params, 4, peer(aggregator.local().port()));
    lanes.lanes[0].measure = true;
    worker.path.add_job(lanes).unwrap();
    let Event::JobMeasured { job: 7, measure } = worker.event() else { panic!() };
    assert!(measure.rtt_ns > 0 && measure.bytes_per_s > 0, "{measure:?}");
    worker.path.start_job(7, SLOTS).unwrap();
    worker.ready();
    worker.submit_to(3, 1, &values(0, COUNT));
    assert_eq!(worker.sum(), (1, expected(1, COUNT)));
    assert_eq!(worker.path.start_job(9, 8), Err(InstallError::UnknownJob { job: 9 }));
    assert!(worker.path.start_job(7, 8).is_err(), "chunks have been sent");
}

#[test]
fn one_lanes_failure_is_the_jobs() {
    let aggregator = aggregator::start(Ipv4Addr::LOCALHOST, 0, 1);
    let worker = Worker::start("udp", ios(2));
    aggregator::install(&aggregator, &params(0, 1), vec![worker.local()], 0);
    // Nobody listens at the second shard's port, or somebody who does not know the job.
    let peer = peer(aggregator.local().port());
    worker.path.add_job(plan(JobParams { shards: 2, ..params(0, 1) }, 2, peer)).unwrap();
    worker.submit_to(0, 1, &values(0, 10));
    let mut events = vec![worker.event(), worker.event()];
    events.sort_by_key(|event| matches!(event, Event::Completed { .. }));
    assert!(matches!(events[0], Event::JobFailed { job: 7, .. }), "{events:?}");
}

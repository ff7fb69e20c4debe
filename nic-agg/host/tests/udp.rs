//! The aggregator behind its socket, on loopback, with jobs that come and go while it runs.
//!
//! ```text
//! worker 0 (127.0.0.1) ---+
//! worker 1 (127.0.0.2) ---+--- UDP --- aggregator (127.0.0.1)
//! worker 2 (127.0.0.3) ---+
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use std::{
    collections::HashSet,
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use common::{EPOCH, JOB, SLOTS, TOKEN, contribution, elements, header, packet, read, reference, values};
use sumac_agg_host::HostDataPlane;
use sumac_control::plane::{DataPlane, JobInstall, Level, PlaneKind, WorkerInstall};
use sumac_job::JobTerms;
use sumac_wire::{
    CLASSES, Header, Kind, MAX_JOBS, Reason,
    header::{NO_SLOT, flag},
    result_paths,
};

/// Ends a test that hangs; nothing here takes as long.
const HANGS: Duration = Duration::from_secs(20);

struct Worker {
    rank: u16,
    socket: UdpSocket,
}

impl Worker {
    fn new(rank: u16) -> Worker {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, rank as u8 + 1), 0)).unwrap();
        socket.set_read_timeout(Some(HANGS)).unwrap();
        Worker { rank, socket }
    }

    fn install(&self) -> WorkerInstall {
        let std::net::SocketAddr::V4(local) = self.socket.local_addr().unwrap() else { panic!("no IPv4") };
        WorkerInstall {
            ip: *local.ip(),
            port: local.port(),
            mac: [0; 6],
            local_ip: Ipv4Addr::LOCALHOST,
            paths: 1,
        }
    }

    fn send(&self, plane: &HostDataPlane, packet: &[u8]) {
        self.socket.send_to(packet, plane.local()).unwrap();
    }

    fn receive(&self) -> Vec<u8> {
        self.receive_from().1
    }

    /// The packet, and the port that it comes from.
    fn receive_from(&self) -> (u16, Vec<u8>) {
        let mut buffer = [0; 4096];
        let (len, from) = self.socket.recv_from(&mut buffer).unwrap();
        (from.port(), buffer[..len].to_vec())
    }
}

fn job(epoch: u16, shards: u16, workers: Vec<WorkerInstall>) -> JobInstall {
    let terms = JobTerms::new(JOB, epoch, TOKEN, workers.len() as u16);
    let slots_reason = "asked for".into();
    JobInstall {
        terms: JobTerms { slots: SLOTS, slots_reason, shards, elements: 64, ..terms },
        first_slot: 0,
        stealing: false,
        level: Level::Only,
        workers,
        ranks: Vec::new(),
        contributors: Vec::new(),
        upstream: Vec::new(),
    }
}

fn install(plane: &HostDataPlane, workers: &[Worker], epoch: u16) {
    let job = job(epoch, 1, workers.iter().map(Worker::install).collect());
    let installed = plane.install(&job).unwrap();
    assert_eq!(installed.aggregator_ips, vec![Ipv4Addr::LOCALHOST; workers.len()]);
}

/// Whichever of them comes last, also in one batch with others.
#[test]
fn headers_complete_a_chunk_that_one_worker_has_values_of() {
    let plane = HostDataPlane::start(64, 360, 1, Ipv4Addr::LOCALHOST, 0).unwrap();
    let workers: Vec<Worker> = (0..3).map(Worker::new).collect();
    install(&plane, &workers, EPOCH);
    for seq in 0..60 {
        // The worker with values comes first, in the middle, and last.
        for at in 0..3 {
            let worker = &workers[(at + seq as usize) % 3];
            if worker.rank == 0 {
                worker.send(&plane, &contribution(3, 0, seq));
            } else {
                let header = header(3, worker.rank, seq, 0);
                let header = Header { flags: header.flags | flag::EMPTY, ..header };
                worker.send(&plane, &packet(&header, &[]));
            }
        }
        for worker in &workers {
            let result = worker.receive();
            assert_eq!((read(&result).kind, read(&result).seq), (Kind::Result as u8, seq));
            assert_eq!(elements(&result), values(0, seq, 64), "rank {} chunk {seq}", worker.rank);
        }
    }
}

#[test]
fn all_workers_get_all_sums() {
    let plane = HostDataPlane::start(64, 360, 1, Ipv4Addr::LOCALHOST, 0).unwrap();
    let info = plane.info().unwrap();
    assert_eq!((info.kind, info.slots, info.max_elements), (PlaneKind::Host, 64, 360));
    let workers: Vec<Worker> = (0..3).map(Worker::new).collect();
    install(&plane, &workers, EPOCH);
    for seq in 0..200 {
        for worker in &workers {
            worker.send(&plane, &contribution(3, worker.rank, seq));
        }
        for worker in &workers {
            let result = worker.receive();
            assert_eq!((read(&result).kind, read(&result).seq), (Kind::Result as u8, seq));
            assert_eq!(elements(&result), reference(3, seq, 64), "rank {} chunk {seq}", worker.rank);
        }
    }
    // A worker that lost the last result asks again.
    workers[1].send(&plane, &contribution(3, 1, 199));
    assert_eq!(elements(&workers[1].receive()), reference(3, 199, 64));
    assert_eq!((plane.counter(Reason::Added), plane.counter(Reason::Completed)), (400, 200));
    assert_eq!(plane.counter(Reason::Replied), 1);
    let workers = [0, 1, 2].map(|rank| plane.worker_seen(JOB, rank).counters);
    assert_eq!(workers.iter().map(|worker| worker.last).sum::<u64>(), 200);
    assert_eq!((workers[1].added, workers[1].replies), (200, 1));
}

#[test]
fn all_job_numbers_sum_at_once() {
    const LANE_SLOTS: u32 = 2;
    let lanes = u32::from(CLASSES);
    let plane = HostDataPlane::start(4096, 64, 1, Ipv4Addr::LOCALHOST, 0).unwrap();
    let workers: Vec<Worker> = (0..2).map(Worker::new).collect();
    let numbered = |number: u16| {
        let install = job(EPOCH, 1, workers.iter().map(Worker::install).collect());
        let terms = JobTerms { job: number, slots: LANE_SLOTS, ..install.terms };
        let first_slot = u32::from(number).saturating_sub(1) * LANE_SLOTS * lanes;
        JobInstall { terms, first_slot, ..install }
    };
    let numbers = 1..MAX_JOBS as u16;
    numbers.clone().for_each(|number| drop(plane.install(&numbered(number)).unwrap()));
    let refused = plane.install(&numbered(MAX_JOBS as u16)).unwrap_err().to_string();
    assert!(refused.contains("job number 1024: must be 1 to 1023"), "{refused}");
    let contribution = |number: u16, rank: u16| {
        let header = Header { job: number, ..header(2, rank, 0, 64) };
        packet(&header, &values(rank, u32::from(number), 64))
    };
    for number in numbers.clone() {
        workers[0].send(&plane, &contribution(number, 0));
        // A socket's buffer does not hold all.
        let sent = Instant::now();
        while plane.counter(Reason::Added) < u64::from(number) {
            assert!(sent.elapsed() < HANGS, "job {number}");
            std::thread::yield_now();
        }
    }
    // Every job has a chunk in its slots before the first one is complete.
    for number in numbers {
        workers[1].send(&plane, &contribution(number, 1));
        for worker in &workers {
            let result = worker.receive();
            assert_eq!(read(&result).job, number);
            assert_eq!(elements(&result), reference(2, number.into(), 64), "job {number}");
        }
    }
    assert_eq!(plane.jobs().len(), MAX_JOBS - 1);
}

#[test]
fn results_leave_by_a_port_for_each_path_but_those_to_avoid() {
    let plane = HostDataPlane::start(64, 360, 1, Ipv4Addr::LOCALHOST, 0).unwrap();
    let workers: Vec<Worker> = (0..2).map(Worker::new).collect();
    let installs = workers.iter().zip([16, 1]);
    let installs = installs.map(|(worker, paths)| WorkerInstall { paths, ..worker.install() }).collect();
    plane.install(&job(EPOCH, 1, installs)).unwrap();
    let sum = |seq| {
        workers.iter().for_each(|worker| worker.send(&plane, &contribution(2, worker.rank, seq)));
        [0, 1].map(|rank: usize| {
            let (port, result) = workers[rank].receive_from();
            assert_eq!((read(&result).seq, elements(&result)), (seq, reference(2, seq, 64)));
            port
        })
    };
    let first: Vec<_> = (0..160).map(sum).collect();
    let of_paths: HashSet<_> = first.iter().map(|[port, _]| *port).collect();
    assert_eq!(of_paths.len(), 16, "{first:?}");
    // A chunk's number names its path, eight in a row the same.
    assert!((0..32).all(|seq| first[seq][0] == first[seq + 128][0]), "{first:?}");
    assert!((0..160).all(|seq| first[seq][0] == first[seq & !7][0]), "{first:?}");
    assert!(first.iter().all(|[_, port]| *port == plane.local().port()), "a worker of one path: {first:?}");

    // A probe is answered by the path that it names, and the worker's results avoid those that it names.
    let probe = |survey, path, avoided| {
        let number = result_paths::number(survey, path);
        let header = Header { kind: Kind::Probe as u8, seq: number, ..header(2, 0, 0, 0) };
        let header = Header { slot: NO_SLOT, ..header };
        workers[0].send(&plane, &result_paths::probe(header, path, avoided).to_bytes());
        let (port, report) = workers[0].receive_from();
        assert_eq!(read(&report).kind, Kind::Report as u8);
        port
    };
    let dead = first[3 * 8][0];
    assert_eq!((probe(2, 3, 1 << 3), probe(2, 4, 1 << 3)), (dead, first[4 * 8][0]));
    // One of the survey before, which knew of no dead path, is answered and changes nothing.
    assert_eq!(probe(1, 5, 0), first[5 * 8][0]);
    assert_eq!([0, 1].map(|rank| plane.worker_seen(JOB, rank).avoided_paths), [1, 0]);
    let after: Vec<_> = (160..160 + 256).map(sum).collect();
    assert!(after.iter().all(|[port, _]| *port != dead), "{after:?}");
}

#[test]
fn jobs_come_and_go_while_it_runs() {
    let plane = HostDataPlane::start(64, 360, 1, Ipv4Addr::LOCALHOST, 0).unwrap();
    let instance = plane.instance().unwrap();
    let workers: Vec<Worker> = (0..2).map(Worker::new).collect();
    let probe = |epoch: u16| {
        let header = sumac_wire::Header { kind: Kind::Probe as u8, epoch, ..common::header(2, 0, 0, 64) };
        common::packet(&header, &[0; 64])
    };
    for epoch in 1..4 {
        install(&plane, &workers, epoch);
        workers[0].send(&plane, &probe(epoch));
        let report = workers[0].receive();
        assert_eq!((read(&report).kind, read(&report).epoch), (Kind::Report as u8, epoch));
        plane.remove(JOB).unwrap();
        plane.remove(JOB).unwrap();
        workers[0].send(&plane, &probe(epoch));
        let told = read(&workers[0].receive());
        assert_eq!((told.kind, told.flags), (Kind::Report as u8, flag::UNKNOWN_JOB));
        assert_eq!(plane.counter(Reason::UnknownJob), u64::from(epoch));
    }
    assert_eq!(plane.instance().unwrap(), instance);
    // A datagram longer than any buffer, an empty one, and one from a stranger do no harm.
    workers[0].send(&plane, &[contribution(2, 0, 0), vec![0; 60_000]].concat());
    workers[0].send(&plane, &[]);
    install(&plane, &workers, 9);
    workers[1].send(&plane, &probe(9));
    workers[0].send(&plane, &probe(9));
    assert_eq!(read(&workers[0].receive()).epoch, 9);
    assert_eq!((plane.counter(Reason::BadLength), plane.counter(Reason::WrongSource)), (2, 1));
}

#[test]
fn a_job_is_installed_in_all_shards_or_in_none() {
    let Ok(plane) = HostDataPlane::start(64, 360, 2, Ipv4Addr::LOCALHOST, 0) else {
        return println!(
            "SKIP a_job_is_installed_in_all_shards_or_in_none: the port after a free one is taken"
        );
    };
    let worker = Worker::new(0);
    let good = JobInstall { stealing: true, ..job(EPOCH, 2, vec![worker.install()]) };
    let with_slots = |slots| JobInstall { terms: JobTerms { slots, ..good.terms.clone() }, ..good.clone() };
    let table = [
        ("lanes of twelve", with_slots(12), "12 slots in a lane: must be a power"),
        ("no slots", with_slots(0), "0 slots in a lane: must be a power"),
        ("beyond the pool", JobInstall { first_slot: 60, ..good.clone() }, "slots 60 to"),
    ];
    for (what, job, expected) in table {
        let refused = plane.install(&job).unwrap_err().to_string();
        assert!(refused.contains(expected), "{what}: {refused}");
        assert!(plane.jobs().is_empty(), "{what}");
    }
    plane.install(&good).unwrap();
    assert_eq!(plane.jobs().len(), 1);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let first = HostDataPlane::start(8, 64, 1, Ipv4Addr::LOCALHOST, 0).unwrap();
    let port = first.local().port();
    let error = HostDataPlane::start(8, 64, 1, Ipv4Addr::LOCALHOST, port).err().unwrap().to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
    drop(first);
    assert!(HostDataPlane::start(8, 64, 1, Ipv4Addr::LOCALHOST, port).is_ok(), "a dropped one lets go");
}

#[test]
fn every_shard_has_a_port_and_answers_to_one() {
    let Ok(plane) = HostDataPlane::start(64, 360, 2, Ipv4Addr::LOCALHOST, 0) else {
        return println!(
            "SKIP every_shard_has_a_port_and_answers_to_one: the port after a free one is taken"
        );
    };
    let (first, second) = (Worker::new(0), Worker::new(0));
    let base = plane.local();
    let mut install = first.install();
    // The second shard's results go to the next port.
    let other = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 1), 0)).unwrap();
    install.port = other.local_addr().unwrap().port().wrapping_sub(1);
    drop((first, second));
    let job = JobInstall { first_slot: 4, stealing: true, ..job(EPOCH, 2, vec![install]) };
    plane.install(&job).unwrap();
    assert_eq!(plane.info().unwrap().shards, 2);
    other.set_read_timeout(Some(HANGS)).unwrap();
    let lane_3 = sumac_wire::Header { slot: 3 * SLOTS, ..common::header(1, 0, 0, 64) };
    let packet = common::packet(&lane_3, &common::values(0, 0, 64));
    let mut buffer = [0; 4096];
    other.send_to(&packet, base).unwrap();
    other.send_to(&packet, (*base.ip(), base.port() + 1)).unwrap();
    let (len, from) = other.recv_from(&mut buffer).unwrap();
    assert_eq!(from.port(), base.port() + 1);
    assert_eq!(elements(&buffer[..len]), reference(1, 0, 64));
    while plane.counter(Reason::WrongSlot) < 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    // The second shard holds lane 3's chunk: nobody gives slots back, the first shard neither.
    let refused = plane.resize(JOB, SLOTS / 2, "").unwrap_err().to_string();
    assert!(refused.contains("has contributed already"), "{refused}");
    let lane_2 = sumac_wire::Header { slot: 2 * SLOTS, ..common::header(1, 0, 0, 64) };
    other.send_to(&common::packet(&lane_2, &common::values(0, 0, 64)), base).unwrap();
    while plane.counter(Reason::Completed) < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Another job, of which nothing has come, gives slots back once.
    let next = JobInstall { terms: JobTerms { job: JOB + 1, ..job.terms.clone() }, first_slot: 24, ..job };
    plane.install(&next).unwrap();
    plane.resize(JOB + 1, SLOTS / 2, "measured").unwrap();
    assert_eq!(plane.reasons.all()[&(JOB + 1)], "measured");
    let refused = plane.resize(JOB + 1, SLOTS, "").unwrap_err().to_string();
    assert!(refused.contains("it has 2"), "{refused}");
    let refused = plane.resize(JOB + 2, SLOTS, "").unwrap_err().to_string();
    assert!(refused.contains("not there"), "{refused}");
}

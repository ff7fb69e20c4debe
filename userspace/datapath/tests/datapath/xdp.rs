//! The data path over AF_XDP with the real host program, in a network namespace of the test's own.
//!
//! ```text
//!                     .-- a1 10.0.1.1 ====== w1 10.0.1.2 -- XDP program -- AF_XDP -- worker 0
//!   aggregator -------+
//!                     '-- a2 10.0.2.1 ====== w2 10.0.2.2 -- XDP program -- AF_XDP -- worker 1
//! ```
//!
//! The aggregator is that of `sumac-agg-host`, which can lose packets, or the XDP program of `sumac-agg` on
//! a1 and a2. The kernel knows nothing of the w addresses: what gets through got through the program and the
//! sockets.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sumac_agg_host::HostDataPlane;
use sumac_datapath::frame_io::wait_for;
use sumac_datapath::{
    DatapathStats, FrameIo, Outgoing, ParameterJob, Peer, Route, Transmitted, WorkerJob, XdpConfig,
    XdpFrameIo,
};
use sumac_hostprog::{AttachOptions, Attached, attach, detach};
use sumac_job::result_token;
use sumac_parameter::{HostJob, Worker as Member};
use sumac_transport::{DynamicParams, JobParams};
use sumac_wire::{
    MAX_HOSTS, Reason,
    tables::{HostJobEntry, JobEntry, WorkerEntry, job_flag},
};

use crate::{
    aggregator,
    job::{Counters, Worker, boxed, copied, expected, params, values},
    namespace::{in_namespace, run},
};

const COUNT: usize = 50_000;
const BASE_PORT: u16 = 48700;

/// One worker's cable, its program and its port.
struct Host {
    ifname: String,
    attached: Attached,
    peer: Peer,
    ports: Vec<XdpFrameIo>,
}

fn host(rank: u16, pins: &Path, queues: usize) -> Host {
    host_with(rank, pins, queues, &[])
}

fn host_with(rank: u16, pins: &Path, queues: usize, routes: &[Route]) -> Host {
    let n = rank + 1;
    let ifname = format!("w{n}");
    let (mine, theirs) = (Ipv4Addr::new(10, 0, n as u8, 2), Ipv4Addr::new(10, 0, n as u8, 1));
    let mac = [2, 0, 0, 0, n as u8, 1];
    run("ip link set lo up");
    let many = format!("numrxqueues {queues} numtxqueues {queues}");
    run(&format!(
        "ip link add {ifname} address 02:00:00:00:0{n}:02 {many} type veth peer name a{n} address \
        02:00:00:00:0{n}:01 {many}"
    ));
    run(&format!("ip address add {theirs}/24 dev a{n}"));
    // The program verifies checksums, which a veth leaves to hardware that it does not have.
    run(&format!("ethtool -K a{n} tx off"));
    run(&format!("ip link set {ifname} up"));
    run(&format!("ip link set a{n} up"));
    run(&format!("ip neighbour replace {mine} lladdr 02:00:00:00:0{n}:02 dev a{n} nud permanent"));
    let options = AttachOptions { pin_root: pins.to_owned(), ..AttachOptions::new(&ifname) };
    let mut attached = attach(&options).unwrap();
    let config = XdpConfig { frames: 256, routes: routes.to_vec(), ..XdpConfig::new(mine) };
    let ports = XdpFrameIo::open(&config, &mut attached).unwrap();
    assert!(ports.iter().all(|port| port.mac() == [2, 0, 0, 0, n as u8, 2]));
    assert_eq!(ports.len(), queues);
    let params = params(rank, 2);
    let entry = HostJobEntry {
        token: params.token,
        result_token: result_token(params.token),
        ip: mine.into(),
        aggregator_ip: theirs.into(),
        epoch: params.epoch,
        elements: params.elements,
        world: params.world,
        flags: job_flag::ACTIVE | job_flag::CHECKSUM,
        ..HostJobEntry::default()
    };
    attached.add_job(params.job, entry).unwrap();
    Host { ifname, attached, peer: Peer { ip: theirs, base_port: BASE_PORT, mac, checksum: true }, ports }
}

/// The data path that aggregates.
enum Sum {
    /// The host aggregator, which loses one of so many packets; 0: none.
    Socket(u32),
    Program,
}

/// Keeps an aggregator at work.
enum Adding {
    Socket { _aggregator: HostDataPlane },
    Program { pins: PathBuf },
}

impl Sum {
    fn start(self, pins: &Path) -> Adding {
        match self {
            Sum::Socket(lose_every) => {
                let aggregator = aggregator::start(Ipv4Addr::UNSPECIFIED, BASE_PORT, 1);
                let workers = [1, 2].map(|n| SocketAddrV4::new(Ipv4Addr::new(10, 0, n, 2), BASE_PORT));
                aggregator::install(&aggregator, &params(0, 2), workers.to_vec(), lose_every);
                Adding::Socket { _aggregator: aggregator }
            }
            Sum::Program => {
                let pins = pins.join("agg");
                std::fs::create_dir(&pins).unwrap();
                attach_aggregator(&pins);
                Adding::Program { pins }
            }
        }
    }
}

impl Drop for Adding {
    fn drop(&mut self) {
        if let Adding::Program { pins } = self {
            let _ = sumac_agg::clean(pins, true);
        }
    }
}

fn attach_aggregator(pins: &Path) {
    let ports = ["a1", "a2"];
    let options = sumac_agg::AttachOptions {
        pin_root: pins.to_owned(),
        slots: 64,
        ..sumac_agg::AttachOptions::new(ports.map(str::to_owned).to_vec())
    };
    let aggregator = sumac_agg::attach(&options).unwrap().aggregator;
    let worker = |n: u8| WorkerEntry {
        ip: Ipv4Addr::new(10, 0, n, 2).to_bits(),
        port: BASE_PORT,
        mac: [2, 0, 0, 0, n, 2],
        ifindex: nix::net::if_::if_nametoindex(format!("a{n}").as_str()).unwrap(),
        aggregator_ip: Ipv4Addr::new(10, 0, n, 1).to_bits(),
        aggregator_mac: [2, 0, 0, 0, n, 1],
        ..WorkerEntry::default()
    };
    let params = params(0, 2);
    let entry = JobEntry {
        token: params.token,
        slots: params.slots,
        epoch: params.epoch,
        elements: params.elements,
        flags: job_flag::CHECKSUM,
        shards: 1,
        lane_slots_log2: params.slots.ilog2() as u16,
        ..JobEntry::default()
    };
    let workers = vec![worker(1), worker(2)];
    let job = sumac_agg_job::NewJob { job: params.job, entry, workers, parents: Vec::new() };
    aggregator.add_job(&job).unwrap();
}

/// Two workers sum; every byte is copied once each way; every frame is accounted for at the end.
fn sums(pins: &Path, sum: Sum, queues: usize) {
    sums_over(pins, sum, queues, &[]);
}

fn sums_over(pins: &Path, sum: Sum, queues: usize, routes: &[Route]) {
    let hosts = [0, 1].map(|rank| host_with(rank, pins, queues, routes));
    let _adding = sum.start(pins);
    let mut running = Vec::new();
    for (rank, host) in hosts.into_iter().enumerate() {
        let report = host.ports[0].report();
        assert_eq!((report.backend, report.xdp_mode.as_deref()), ("xdp", Some("driver")));
        assert_eq!(report.routes, routes);
        assert!(!report.sockets[0].bound.zero_copy && report.sockets[0].bound.fallback.is_some());
        let worker = Worker::join("xdp", boxed(host.ports), params(rank as u16, 2), host.peer);
        running.push((host.ifname, host.attached, worker));
    }
    let counters: Vec<Vec<Counters>> = running
        .iter()
        .enumerate()
        .map(|(rank, (_, _, worker))| {
            worker.ready();
            (0..3).map(|tag| worker.submit(tag, &values(rank as u16, COUNT))).collect()
        })
        .collect();
    for (_, _, worker) in &running {
        for tag in 0..3 {
            assert_eq!(worker.sum(), (tag, expected(2, COUNT)), "operation {tag}");
        }
    }
    for ((ifname, attached, worker), counters) in running.into_iter().zip(counters) {
        let threads = worker.path.shutdown().unwrap();
        assert_eq!(threads.len(), queues);
        for thread in &threads {
            let frames = thread.port.frames.unwrap();
            assert!(frames.holds(), "{frames:?}");
            assert_eq!((frames.sent, frames.held, frames.reading), (0, 0, 0), "{frames:?}");
            assert_eq!(
                (thread.port.malformed, thread.port_errors, thread.undelivered.crossed_lost),
                (0, 0, 0)
            );
        }
        let stats = &threads[0];
        for thread in &threads[1..] {
            // One may come before the thread knows the job, or when it knows it no more.
            let undelivered = thread.undelivered;
            let known = undelivered.crossed + undelivered.unknown_job + undelivered.no_lane;
            assert_eq!(
                thread.port.counts.received, known,
                "what came by another queue was handed over: {undelivered:?}"
            );
        }
        let received: u64 = threads.iter().map(|thread| thread.port.counts.received).sum();
        let crossed: u64 = threads.iter().map(|thread| thread.undelivered.crossed).sum();
        let engine = &stats.jobs[0].engine;
        let written = 3 * 4 * COUNT;
        assert_eq!(copied(&counters), (4 * engine.elements_sent as usize, written), "once per element");
        let steered = attached.counters().unwrap().into_iter().find(|(reason, _)| *reason == Reason::Steered);
        assert_eq!(steered.unwrap().1, received, "all that was steered was received");
        println!(
            "{ifname}: {} sent in {} batches, {} received in {}, {} sent again, {} rounds, {} sleeps, \
            {crossed} crossed",
            stats.port.counts.sent,
            stats.port.counts.batches_sent,
            stats.port.counts.received,
            stats.port.counts.batches_received,
            engine.resent,
            stats.rounds,
            stats.sleeps
        );
        detach(&ifname, pins).unwrap();
    }
}

#[test]
fn two_workers_sum_over_the_real_program() {
    in_namespace("xdp-sum", |pins| sums(pins, Sum::Socket(0), 1));
}

#[test]
fn two_workers_sum_in_the_kernel() {
    in_namespace("xdp-kernel", |pins| sums(pins, Sum::Program, 1));
}

/// The aggregator's results keep the tags of the contributions that completed them.
#[test]
fn two_workers_sum_in_vlans() {
    in_namespace("xdp-vlan", |pins| {
        let routes = [101, 102].map(|vlan| Route { mac: None, vlan: Some(vlan) });
        sums_over(pins, Sum::Program, 1, &routes);
    });
}

#[test]
fn losses_change_no_bit() {
    in_namespace("xdp-loss", |pins| sums(pins, Sum::Socket(97), 1));
}

/// Results may arrive on any queue; the one lane's thread gets all of them.
#[test]
fn every_queue_has_a_socket() {
    in_namespace("xdp-queues", |pins| sums(pins, Sum::Socket(0), 2));
}

/// A daemon that comes back opens new sockets under the program that stayed.
#[test]
fn a_port_can_be_opened_again() {
    in_namespace("xdp-again", |pins| {
        let host = host(0, pins, 1);
        let config = XdpConfig { frames: 256, ..XdpConfig::new(Ipv4Addr::new(10, 0, 1, 2)) };
        drop(host.ports);
        let mut attached = Attached::open("w1", pins).unwrap();
        XdpFrameIo::open(&config, &mut attached).unwrap();
        let none = XdpConfig { queues: Some(vec![]), ..config.clone() };
        let error = XdpFrameIo::open(&none, &mut attached).err().unwrap().to_string();
        assert!(error.contains("no queue of w1"), "{error}");
        let far = XdpConfig { queues: Some(vec![9]), ..config };
        let error = XdpFrameIo::open(&far, &mut attached).err().unwrap().to_string();
        assert!(error.contains("queue 9"), "{error}");
    });
}

/// The lane whose packet found no frame may be gone: the thread wakes soon once, and then sleeps as long as
/// it may.
#[test]
fn a_queue_without_free_frames_wakes_the_thread_once() {
    in_namespace("xdp-full", |pins| {
        let mut host = host(0, pins, 1);
        let (port, peer) = (&mut host.ports[0], host.peer);
        let to = SocketAddrV4::new(peer.ip, peer.base_port);
        let mut build = |_: &mut [u8]| {
            Some(Outgoing { len: 64, to, mac: peer.mac, path: 0, dscp_ecn: 0, checksum: false })
        };
        while port.transmit(&mut build).unwrap() == Transmitted::Staged {}
        assert_eq!(port.report().full, 1);
        port.flush().unwrap();
        port.quiesce(Instant::now() + Duration::from_secs(30));
        let (wake, _other) = UnixStream::pair().unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        assert!(!wait_for([&mut *port as &mut dyn FrameIo], Some(late), wake.as_fd()).unwrap());
        assert!(Instant::now() < late, "it slept");
        let deadline = Instant::now() + Duration::from_millis(50);
        assert!(!wait_for([&mut *port as &mut dyn FrameIo], Some(deadline), wake.as_fd()).unwrap());
        assert!(Instant::now() >= deadline, "it woke again");
        let frames = port.report().frames.unwrap();
        assert!(frames.holds() && frames.sent == 0, "{frames:?}");
        detach("w1", pins).unwrap();
    });
}

/// A dynamic job without an aggregator: worker 0 is the parameter host of both, and the kernel between them
/// is a router.
#[test]
fn a_worker_is_the_parameter_host() {
    in_namespace("xdp-hosted", |pins| {
        let hosts = [host(0, pins, 2), host(1, pins, 2)];
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let address = |n: u8| SocketAddrV4::new(Ipv4Addr::new(10, 0, n, 2), BASE_PORT);
        let params = JobParams { dynamic: Some(DynamicParams::new(0).with_window(32)), ..params(0, 2) };
        let job = HostJob {
            job: params.job,
            epoch: params.epoch,
            token: params.token,
            elements: params.elements,
            window: 32,
            slots: 0,
            lanes: 1,
            shards: 1,
            checksum: true,
            congestion_control: true,
            workers: [1, 2].map(|n| Member { address: address(n), rack: 0, bit: n - 1 }).to_vec(),
            upstream: Vec::new(),
        };
        let mut running = Vec::new();
        for (rank, mut host) in (0u16..).zip(hosts) {
            let is_host = rank == 0;
            let mut host_ips = [0; MAX_HOSTS];
            host_ips[0] = u32::from(*address(1).ip());
            let entry = HostJobEntry {
                token: params.token,
                result_token: result_token(params.token),
                ip: (*address(rank as u8 + 1).ip()).into(),
                host_ips,
                epoch: params.epoch,
                elements: params.elements,
                world: 2,
                flags: job_flag::CHECKSUM | if is_host { job_flag::PARAMETER } else { 0 },
                ..HostJobEntry::default()
            };
            host.attached.add_job(params.job, entry).unwrap();
            let router = |n| Peer { ip: *address(n).ip(), ..host.peer };
            let worker = Worker::start("hosted", boxed(host.ports));
            if is_host {
                worker
                    .path
                    .add_parameter_job(ParameterJob { job: job.clone(), peers: vec![router(1), router(2)] })
                    .unwrap();
            }
            let lane = JobParams { rank, rack_rank: rank, ..params.clone() };
            worker
                .path
                .add_job(WorkerJob {
                    id: 7,
                    lanes: vec![lane],
                    peer: None,
                    hosts: vec![router(1)],
                    ..WorkerJob::default()
                })
                .unwrap();
            running.push((host.attached, worker));
        }
        running.iter().for_each(|(_, worker)| worker.ready());
        for (rank, (_, worker)) in running.iter().enumerate() {
            worker.submit(0, &values(rank as u16, COUNT));
        }
        for (_, worker) in &running {
            assert_eq!(worker.sum(), (0, expected(2, COUNT)));
        }
        let threads = running[0].1.path.stats().unwrap();
        let hosted = DatapathStats::merge_hosted(&threads);
        assert_eq!(hosted.job(7).unwrap().completed, COUNT.div_ceil(64) as u64);
        assert!(threads[0].port.own > 0, "its own contributions do not leave");
        for (_, worker) in &running {
            let threads = worker.path.shutdown().unwrap();
            assert!(threads.iter().all(DatapathStats::frames_are_conserved), "{threads:?}");
        }
    });
}

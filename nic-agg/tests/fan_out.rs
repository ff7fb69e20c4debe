//! Results reach the workers over real veths, by both kinds of fan-out and in both modes. Workers are UDP sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::Duration,
};

use sumac_agg::{Aggregator, AttachOptions, attach, job::worker_entry};
use sumac_agg_host::NewJob;
use sumac_control::neighbour;
use sumac_loader::{BoundXdpMode, XdpMode};
use sumac_wire::{DEFAULT_BASE_PORT, Header, Kind, MAX_ELEMENTS, PAGE_ELEMENTS, header::HEADER_LEN};
use support::{
    frames::{header, sum, value},
    job_of,
    net::{FRAME_TIMEOUT, Namespace, Pins, cable},
    privileged,
};

/// The most elements for an MTU of 1500.
const ELEMENTS: u16 = 352;
const WORKER_PORT: u16 = 48700;

/// Sockets of the workers, and the aggregator's job for them.
struct Job {
    new: NewJob,
    sockets: Vec<UdpSocket>,
}

impl Job {
    /// Adds a job for workers that are reachable from `namespace`.
    fn add(
        namespace: &Namespace,
        aggregator: &Aggregator,
        sockets: Vec<UdpSocket>,
        ips: &[Ipv4Addr],
        elements: u16,
    ) -> Job {
        let new = namespace.inside(|| {
            let way = |ip: &Ipv4Addr| {
                let neighbour = neighbour::resolve(*ip).unwrap();
                worker_entry(SocketAddrV4::new(*ip, WORKER_PORT), &neighbour)
            };
            let new = NewJob { workers: ips.iter().map(way).collect(), ..job_of(0, elements) };
            aggregator.add_job(&new).unwrap();
            new
        });
        Job { new, sockets }
    }

    fn send(&self, rank: usize, header: &Header) {
        let values = (0..usize::from(header.elements)).flat_map(|i| value(rank, header.seq, i).to_be_bytes());
        let payload: Vec<u8> = header.to_bytes().into_iter().chain(values).collect();
        let to = SocketAddrV4::new(self.new.workers[rank].aggregator_ip.into(), DEFAULT_BASE_PORT);
        self.sockets[rank].send_to(&payload, to).unwrap();
    }

    fn contribute(&self, rank: usize, seq: u32, elements: u16) {
        self.send(rank, &header(&self.new, rank, seq, elements));
    }

    /// Returns the next packet that a worker's socket receives from the aggregator. The kernel has verified its checksums.
    fn receive(&self, rank: usize) -> (Header, Vec<i32>) {
        let mut bytes = [0; 10_000];
        let (len, from) = self.sockets[rank].recv_from(&mut bytes).expect("no answer");
        assert_eq!(
            from,
            SocketAddrV4::new(self.new.workers[rank].aggregator_ip.into(), DEFAULT_BASE_PORT).into()
        );
        let header = Header::read(&bytes[..len], 0, len).unwrap();
        let values = bytes[HEADER_LEN..len].as_chunks::<4>().0.iter().map(|chunk| i32::from_be_bytes(*chunk));
        (header, values.collect())
    }

    fn expect_result(&self, rank: usize, seq: u32, elements: u16) {
        let (header, values) = self.receive(rank);
        assert_eq!((header.kind, header.seq), (Kind::Result as u8, seq), "rank {rank}");
        assert_eq!(values, sum(0..self.sockets.len(), seq, elements.into()), "rank {rank}, chunk {seq}");
    }

    /// Checks that no more packets arrive: neither a second copy nor another worker's.
    fn expect_silence(&self, rank: usize) {
        self.sockets[rank].set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(self.sockets[rank].recv(&mut [0; 4000]).is_err(), "rank {rank} got more than its results");
        self.sockets[rank].set_read_timeout(Some(FRAME_TIMEOUT)).unwrap();
    }

    /// Runs a job: a probe, chunks of all lengths in any order of ranks, and a retransmission for a lost result.
    fn play(&self) {
        let (world, full) = (self.sockets.len(), self.new.entry.elements);
        for rank in 0..world {
            let probe = Header { kind: Kind::Probe as u8, ..header(&self.new, rank, 0, full) };
            self.send(rank, &probe);
            assert_eq!(self.receive(rank).0, Header { kind: Kind::Report as u8, ..probe });
        }
        for seq in 0..50 {
            let elements = if seq % 3 == 0 { full } else { 1 + seq as u16 * (full / 60) };
            (0..world).for_each(|turn| self.contribute((turn + seq as usize) % world, seq, elements));
            (0..world).for_each(|rank| self.expect_result(rank, seq, elements));
        }
        let elements = 1 + 49 * (full / 60);
        self.contribute(1, 49, elements);
        self.expect_result(1, 49, elements);
        (0..world).for_each(|rank| self.expect_silence(rank));
    }
}

fn attach_to(namespace: &Namespace, pins: &Pins, interfaces: &[&str], mode: XdpMode) -> Aggregator {
    namespace.inside(|| {
        let interfaces = interfaces.iter().map(ToString::to_string).collect();
        let options =
            AttachOptions { slots: 64, mode, pin_root: pins.0.clone(), ..AttachOptions::new(interfaces) };
        let (aggregator, bound) = attach(&options).unwrap();
        let expected = if mode == XdpMode::Generic { BoundXdpMode::Generic } else { BoundXdpMode::Driver };
        assert!(bound.iter().all(|port| port.mode == expected), "{bound:?}");
        aggregator
    })
}

/// ```text
///   [w0]==p0 \
///   [w1]==p1  [aggregator]     an interface each: broadcast to all; p3 has no worker of the job
///   [w2]==p2 /
///   [x ]==p3
/// ```
fn play_behind_ports_of_their_own(mode: XdpMode, elements: u16) {
    let (middle, pins) = (Namespace::new("agg"), Pins::new());
    let (mut namespaces, mut sockets, mut ips) = (Vec::new(), Vec::new(), Vec::new());
    for rank in 0..4u8 {
        let namespace = Namespace::new("w");
        let (own, peer) = (format!("10.77.{rank}.2/24"), format!("10.77.{rank}.1/24"));
        cable((&middle, &format!("p{rank}"), Some(&peer)), (&namespace, "w", Some(&own)));
        if elements > ELEMENTS {
            middle.run(&format!("ip link set p{rank} mtu 9000"));
            namespace.run("ip link set w mtu 9000");
        }
        let ip = Ipv4Addr::new(10, 77, rank, 2);
        sockets.push(namespace.socket(ip, WORKER_PORT));
        ips.push(ip);
        namespaces.push(namespace);
    }
    let stranger = sockets.pop().unwrap();
    let aggregator = attach_to(&middle, &pins, &["p0", "p1", "p2", "p3"], mode);
    let job = Job::add(&middle, &aggregator, sockets, &ips[..3], elements);
    job.play();
    stranger.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(stranger.recv(&mut [0; 4000]).is_err(), "a port without a worker of the job got a result");
    let status = middle.inside(|| aggregator.status().unwrap());
    let count = |reason| status.counters.get(reason).copied().unwrap_or(0);
    assert_eq!((count("completed"), count("replied"), count("probed")), (50, 1, 3), "{status:?}");
    assert_eq!((count("sent"), count("not_for_port")), (150, 50), "{status:?}");
    assert!(status.jobs[0].workers.iter().all(|worker| worker.added == 50), "{status:?}");
}

/// ```text
///   [w0]==\
///   [w1]== [bridge]==p0 [aggregator]     one interface for all: results go to a multicast group
///   [w2]==/
/// ```
fn play_behind_one_port(mode: XdpMode, elements: u16) {
    let (middle, bridge, pins) = (Namespace::new("agg"), Namespace::new("br"), Pins::new());
    bridge.run("ip link add br0 type bridge mcast_snooping 0");
    bridge.run("ip link set br0 up");
    cable((&middle, "p0", Some("10.77.0.1/24")), (&bridge, "agg", None));
    bridge.run("ip link set agg master br0");
    let is_long = elements > ELEMENTS;
    if is_long {
        bridge.run("ip link set agg mtu 9000");
        middle.run("ip link set p0 mtu 9000");
    }
    let (mut namespaces, mut sockets, mut ips) = (Vec::new(), Vec::new(), Vec::new());
    for rank in 0..3u8 {
        let namespace = Namespace::new("w");
        let ip = Ipv4Addr::new(10, 77, 0, 10 + rank);
        cable((&bridge, &format!("b{rank}"), None), (&namespace, "w", Some(&format!("{ip}/24"))));
        bridge.run(&format!("ip link set b{rank} master br0"));
        if is_long {
            bridge.run(&format!("ip link set b{rank} mtu 9000"));
            namespace.run("ip link set w mtu 9000");
        }
        let socket = namespace.socket(Ipv4Addr::UNSPECIFIED, WORKER_PORT);
        namespace.inside(|| socket.join_multicast_v4(&Ipv4Addr::new(239, 77, 0, 5), &ip).unwrap());
        sockets.push(socket);
        ips.push(ip);
        namespaces.push(namespace);
    }
    let aggregator = attach_to(&middle, &pins, &["p0"], mode);
    let job = Job::add(&middle, &aggregator, sockets, &ips, elements);
    job.play();
    let status = middle.inside(|| aggregator.status().unwrap());
    assert_eq!(status.jobs[0].group, Some(Ipv4Addr::new(239, 77, 0, 5)));
    assert_eq!(status.counters.get("sent"), None, "{status:?}");
}

/// ```text
///   [w0]==\
///   [w1]== [bridge]==p0 [aggregator]     two share an interface, which gets one copy to the group
///   [w2]=============p1 /
///   [x ]=============p2
/// ```
fn play_behind_mixed_ports(mode: XdpMode) {
    let (middle, bridge, pins) = (Namespace::new("agg"), Namespace::new("br"), Pins::new());
    bridge.run("ip link add br0 type bridge mcast_snooping 0");
    bridge.run("ip link set br0 up");
    cable((&middle, "p0", Some("10.77.0.1/24")), (&bridge, "agg", None));
    bridge.run("ip link set agg master br0");
    let group = Ipv4Addr::new(239, 77, 0, 5);
    let (mut namespaces, mut sockets, mut ips) = (Vec::new(), Vec::new(), Vec::new());
    for rank in 0..4u8 {
        let namespace = Namespace::new("w");
        let shared = rank < 2;
        let ip = Ipv4Addr::new(10, 77, if shared { 0 } else { rank }, 10 + rank);
        if shared {
            cable((&bridge, &format!("b{rank}"), None), (&namespace, "w", Some(&format!("{ip}/24"))));
            bridge.run(&format!("ip link set b{rank} master br0"));
        } else {
            let (port, own) = (format!("p{}", rank - 1), format!("10.77.{rank}.1/24"));
            cable((&middle, &port, Some(&own)), (&namespace, "w", Some(&format!("{ip}/24"))));
        }
        let socket = namespace.socket(Ipv4Addr::UNSPECIFIED, WORKER_PORT);
        namespace.inside(|| socket.join_multicast_v4(&group, &ip).unwrap());
        sockets.push(socket);
        ips.push(ip);
        namespaces.push(namespace);
    }
    let stranger = sockets.pop().unwrap();
    let aggregator = attach_to(&middle, &pins, &["p0", "p1", "p2"], mode);
    let job = Job::add(&middle, &aggregator, sockets, &ips[..3], ELEMENTS);
    job.play();
    stranger.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(stranger.recv(&mut [0; 4000]).is_err(), "a port without a worker of the job got a result");
    let status = middle.inside(|| aggregator.status().unwrap());
    assert_eq!((status.jobs[0].group, status.jobs[0].is_copied), (Some(group), true));
    let count = |reason| status.counters.get(reason).copied().unwrap_or(0);
    assert_eq!((count("completed"), count("sent"), count("not_for_port")), (50, 100, 50), "{status:?}");
    middle.inside(|| aggregator.remove_job(5).unwrap());
    let tables = middle.inside(|| aggregator.tables().unwrap());
    for rank in 0..5 {
        assert_eq!(tables.worker(5, rank).unwrap().ip, 0, "nothing is left of rank {rank}");
    }
}

#[test]
fn some_workers_share_a_port() {
    if privileged("some_workers_share_a_port") {
        play_behind_mixed_ports(XdpMode::Driver);
    }
}

#[test]
fn some_workers_share_a_port_in_generic_mode() {
    if privileged("some_workers_share_a_port_in_generic_mode") {
        play_behind_mixed_ports(XdpMode::Generic);
    }
}

#[test]
fn each_worker_behind_a_port_of_its_own() {
    if privileged("each_worker_behind_a_port_of_its_own") {
        play_behind_ports_of_their_own(XdpMode::Driver, ELEMENTS);
    }
}

#[test]
fn each_worker_behind_a_port_of_its_own_in_generic_mode() {
    if privileged("each_worker_behind_a_port_of_its_own_in_generic_mode") {
        play_behind_ports_of_their_own(XdpMode::Generic, ELEMENTS);
    }
}

#[test]
fn all_workers_behind_one_port() {
    if privileged("all_workers_behind_one_port") {
        play_behind_one_port(XdpMode::Driver, ELEMENTS);
    }
}

#[test]
fn all_workers_behind_one_port_in_generic_mode() {
    if privileged("all_workers_behind_one_port_in_generic_mode") {
        play_behind_one_port(XdpMode::Generic, ELEMENTS);
    }
}

#[test]
fn long_frames_to_each_worker_behind_a_port_of_its_own() {
    if privileged("long_frames_to_each_worker_behind_a_port_of_its_own") {
        // The longest that the kernel copies to several interfaces.
        play_behind_ports_of_their_own(XdpMode::Driver, PAGE_ELEMENTS as u16);
    }
}

#[test]
fn jumbo_frames_to_all_workers_behind_one_port() {
    if privileged("jumbo_frames_to_all_workers_behind_one_port") {
        play_behind_one_port(XdpMode::Driver, MAX_ELEMENTS as u16);
    }
}

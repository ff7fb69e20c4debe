//! Results reach the workers over real veths, by both kinds of fan-out and in both modes. Workers are UDP
//! sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::Duration,
};

use sumac_agg::{Aggregator, AttachOptions, attach, job::worker_entry};
use sumac_agg_job::{NewJob, status::Status};
use sumac_loader::{BoundXdpMode, XdpMode};
use sumac_netutil::neighbour;
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind, MAX_ELEMENTS, PAGE_ELEMENTS, header::HEADER_LEN, tables::worker_index,
};
use support::{
    frames::{header, sum, value},
    job_of,
    net::{FRAME_TIMEOUT, Namespace, cable, privileged},
    result_token,
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

    /// Returns the next packet that a worker's socket receives from the aggregator. The kernel has verified
    /// its checksums.
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

    /// Runs a job: a probe, chunks of all lengths in any order of ranks, and a retransmission for a lost
    /// result.
    fn play(&self) {
        let (world, full) = (self.sockets.len(), self.new.entry.elements);
        for rank in 0..world {
            let probe = Header { kind: Kind::Probe as u8, ..header(&self.new, rank, 0, full) };
            self.send(rank, &probe);
            assert_eq!(
                self.receive(rank).0,
                Header { kind: Kind::Report as u8, token: result_token(), ..probe }
            );
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

/// The aggregator, its workers' hosts, and the bridge for those that share a port.
struct Lab {
    middle: Namespace,
    _others: Vec<Namespace>,
    sockets: Vec<UdpSocket>,
    ips: Vec<Ipv4Addr>,
    ports: Vec<String>,
}

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 0, 5);

impl Lab {
    /// Makes the hosts of `world` workers, the first `shared` of them behind one port, the others behind a
    /// port each.
    fn new(world: u8, shared: u8, elements: u16) -> Lab {
        let (middle, bridge) = (Namespace::new("agg"), Namespace::new("br"));
        let mtu = if elements > ELEMENTS { 9000 } else { 1500 };
        let join = |a: (&Namespace, &str, Option<&str>), b: (&Namespace, &str, Option<&str>)| {
            cable(a, b);
            for (namespace, end, _) in [a, b] {
                namespace.run(&format!("ip link set {end} mtu {mtu}"));
            }
        };
        let (mut others, mut sockets, mut ips, mut ports) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        if shared > 0 {
            bridge.run("ip link add br0 type bridge mcast_snooping 0");
            bridge.run("ip link set br0 up");
            join((&middle, "p0", Some("10.77.0.1/24")), (&bridge, "agg", None));
            bridge.run("ip link set agg master br0");
            ports.push("p0".to_owned());
        }
        for rank in 0..world {
            let namespace = Namespace::new("w");
            let ip = Ipv4Addr::new(10, 77, if rank < shared { 0 } else { rank }, 10 + rank);
            let own = format!("{ip}/24");
            if rank < shared {
                join((&bridge, &format!("b{rank}"), None), (&namespace, "w", Some(&own)));
                bridge.run(&format!("ip link set b{rank} master br0"));
            } else {
                let port = format!("p{}", ports.len());
                join((&middle, &port, Some(&format!("10.77.{rank}.1/24"))), (&namespace, "w", Some(&own)));
                ports.push(port);
            }
            let socket = namespace.socket(Ipv4Addr::UNSPECIFIED, WORKER_PORT);
            namespace.inside(|| socket.join_multicast_v4(&GROUP, &ip).unwrap());
            sockets.push(socket);
            ips.push(ip);
            others.push(namespace);
        }
        others.push(bridge);
        Lab { middle, _others: others, sockets, ips, ports }
    }

    /// Plays a job of `workers` of the hosts; the one behind the last port gets nothing if it is not among
    /// them.
    fn play(self, workers: usize, mode: XdpMode, elements: u16) -> (Namespace, Aggregator, Status) {
        let Lab { middle, _others, mut sockets, ips, ports } = self;
        let strangers = sockets.split_off(workers);
        let options =
            AttachOptions { slots: 64, mode, pin_root: middle.pins.clone(), ..AttachOptions::new(ports) };
        let attached = middle.inside(|| attach(&options).unwrap());
        let (aggregator, bound) = (attached.aggregator, attached.ports);
        let expected = if mode == XdpMode::Generic { BoundXdpMode::Generic } else { BoundXdpMode::Driver };
        assert!(bound.iter().all(|port| port.mode == expected), "{bound:?}");
        Job::add(&middle, &aggregator, sockets, &ips[..workers], elements).play();
        for stranger in strangers {
            stranger.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            assert!(
                stranger.recv(&mut [0; 4000]).is_err(),
                "a port without a worker of the job got a result"
            );
        }
        let status = middle.inside(|| aggregator.status().unwrap());
        (middle, aggregator, status)
    }
}

fn count(status: &Status, reason: &str) -> u64 {
    status.counters.get(reason).copied().unwrap_or(0)
}

/// ```text
///   [w0]==p0 \
///   [w1]==p1  [aggregator]     an interface each: broadcast to all; p3 has no worker of the job
///   [w2]==p2 /
///   [x ]==p3
/// ```
fn play_behind_ports_of_their_own(mode: XdpMode, elements: u16) {
    let (_, _, status) = Lab::new(4, 0, elements).play(3, mode, elements);
    let counts = ["completed", "replied", "probed", "sent", "not_for_port"].map(|of| count(&status, of));
    assert_eq!(counts, [50, 1, 3, 150, 50], "{status:?}");
    assert!(status.jobs[0].workers.iter().all(|worker| worker.added == 50), "{status:?}");
}

/// ```text
///   [w0]==\
///   [w1]== [bridge]==p0 [aggregator]     one interface for all: results go to a multicast group
///   [w2]==/
/// ```
fn play_behind_one_port(mode: XdpMode, elements: u16) {
    let (_, _, status) = Lab::new(3, 3, elements).play(3, mode, elements);
    assert_eq!(status.jobs[0].group, Some(GROUP));
    assert_eq!(status.counters.get("sent"), None, "{status:?}");
}

/// ```text
///   [w0]==\
///   [w1]== [bridge]==p0 [aggregator]     two share an interface, which gets one copy to the group
///   [w2]=============p1 /
///   [x ]=============p2
/// ```
fn play_behind_mixed_ports(mode: XdpMode) {
    let (middle, aggregator, status) = Lab::new(4, 2, ELEMENTS).play(3, mode, ELEMENTS);
    assert_eq!((status.jobs[0].group, status.jobs[0].is_copied), (Some(GROUP), true));
    let counts = ["completed", "sent", "not_for_port"].map(|of| count(&status, of));
    assert_eq!(counts, [50, 100, 50], "{status:?}");
    middle.inside(|| aggregator.remove_job(5).unwrap());
    let tables = middle.inside(|| aggregator.tables().unwrap());
    assert_eq!(tables.active_jobs().unwrap(), [] as [u16; 0]);
    // Three workers, whom the aggregator tells when they send still, and the entry of the group.
    let known = (0..5).filter(|rank| tables.workers.get(worker_index(5, *rank)).unwrap().ip != 0);
    assert_eq!(known.count(), 4);
}

macro_rules! tests {
    ($($(#[$doc:meta])* $name:ident: $play:expr;)*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                if privileged(stringify!($name)) {
                    $play;
                }
            }
        )*
    };
}

tests! {
    some_workers_share_a_port: play_behind_mixed_ports(XdpMode::Driver);
    some_workers_share_a_port_in_generic_mode: play_behind_mixed_ports(XdpMode::Generic);
    each_worker_behind_a_port_of_its_own: play_behind_ports_of_their_own(XdpMode::Driver, ELEMENTS);
    each_worker_behind_a_port_of_its_own_in_generic_mode:
        play_behind_ports_of_their_own(XdpMode::Generic, ELEMENTS);
    all_workers_behind_one_port: play_behind_one_port(XdpMode::Driver, ELEMENTS);
    all_workers_behind_one_port_in_generic_mode: play_behind_one_port(XdpMode::Generic, ELEMENTS);
    /// The longest that the kernel copies to several interfaces.
    long_frames_to_each_worker_behind_a_port_of_its_own:
        play_behind_ports_of_their_own(XdpMode::Driver, PAGE_ELEMENTS as u16);
    jumbo_frames_to_all_workers_behind_one_port: play_behind_one_port(XdpMode::Driver, MAX_ELEMENTS as u16);
}

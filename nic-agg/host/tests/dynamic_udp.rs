//! A dynamic job through the host aggregator's sockets, on loopback: where sums and results go, and ECN both
//! ways.
//!
//! ```text
//! worker 0 (127.0.0.1) ---+
//!                         +--- aggregator (127.0.0.1) ---- parameter host (127.0.0.9)
//! worker 1 (127.0.0.2) ---+
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use std::{
    io::IoSliceMut,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    os::fd::AsRawFd,
    time::Duration,
};

use common::{ELEMENTS, EPOCH, JOB, TOKEN, elements, packet, read, shared};
use nix::{
    cmsg_space,
    sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt},
};
use shared::{contribution, reference, result, values};
use sumac_agg_host::HostDataPlane;
use sumac_control::plane::{DataPlane, Installed, JobInstall, Level, PlaneError, WorkerInstall};
use sumac_job::{JobTerms, Mode};
use sumac_wire::{Header, Kind, Reason, header::flag};

/// Ends a test that hangs; nothing here takes as long.
const HANGS: Duration = Duration::from_secs(20);
const SLOTS: u32 = 8;
/// ECN bits: can be marked, and was marked.
const CAPABLE: u8 = 0xa2;
const MARKED: i32 = 0xa3;

struct Socket(UdpSocket);

impl Socket {
    fn new(number: u8) -> Socket {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, number), 0)).unwrap();
        socket.set_read_timeout(Some(HANGS)).unwrap();
        setsockopt(&socket, sockopt::IpRecvTos, &true).unwrap();
        Socket(socket)
    }

    fn address(&self) -> SocketAddrV4 {
        match self.0.local_addr().unwrap() {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(address) => panic!("{address}"),
        }
    }

    fn send(&self, plane: &HostDataPlane, tos: i32, header: &Header, values: &[i32]) {
        setsockopt(&self.0, sockopt::Ipv4Tos, &tos).unwrap();
        self.0.send_to(&packet(header, values), plane.local()).unwrap();
    }

    /// A packet, and its TOS.
    fn receive(&self) -> (Vec<u8>, u8) {
        let mut buffer = [0; 4096];
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let mut space = cmsg_space!(u8);
        let fd = self.0.as_raw_fd();
        let message = recvmsg::<SockaddrIn>(fd, &mut slices, Some(&mut space), MsgFlags::empty()).unwrap();
        let tos = message.cmsgs().unwrap().find_map(|message| match message {
            ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
            _ => None,
        });
        let (len, tos) = (message.bytes, tos.unwrap());
        (buffer[..len].to_vec(), tos)
    }
}

fn install(
    plane: &HostDataPlane,
    workers: &[Socket],
    slots: u32,
    hosts: Vec<SocketAddrV4>,
) -> Result<Installed, PlaneError> {
    let worker = |socket: &Socket| {
        let address = socket.address();
        WorkerInstall {
            ip: *address.ip(),
            port: address.port(),
            mac: [0; 6],
            local_ip: Ipv4Addr::LOCALHOST,
            // A dynamic job's results leave by the own port alone.
            paths: 16,
        }
    };
    let terms = JobTerms {
        mode: Mode::Dynamic,
        slots,
        elements: ELEMENTS,
        window: 8,
        parameter_hosts: hosts,
        ..JobTerms::new(JOB, EPOCH, TOKEN, workers.len() as u16)
    };
    plane.install(&JobInstall {
        terms,
        first_slot: 0,
        stealing: false,
        level: Level::Only,
        workers: workers.iter().map(worker).collect(),
        ranks: Vec::new(),
        contributors: Vec::new(),
        upstream: Vec::new(),
    })
}

fn plane() -> HostDataPlane {
    let plane = HostDataPlane::start(16, 360, 1, Ipv4Addr::LOCALHOST, 0).unwrap();
    plane.with_dynamic(SLOTS, Duration::from_secs(600)).unwrap()
}

#[test]
fn sums_go_up_and_results_down_and_marks_with_them() {
    let plane = plane();
    assert_eq!(plane.info().unwrap().dynamic_slots, SLOTS);
    let (workers, host) = ([Socket::new(1), Socket::new(2)], Socket::new(9));
    let installed = install(&plane, &workers, SLOTS, vec![host.address()]).unwrap();
    assert_eq!(installed.host_sides, [Ipv4Addr::LOCALHOST]);
    for seq in 0..50 {
        // Every fifth contribution comes marked, and every seventh result.
        let tos = |nth: u32| if seq % nth == 0 { MARKED } else { i32::from(CAPABLE) };
        let echo = |nth: u32| if seq % nth == 0 { flag::ECN_ECHO } else { 0 };
        workers[0].send(&plane, tos(5), &contribution(2, 0, seq), &values(0, seq, ELEMENTS));
        workers[1].send(&plane, CAPABLE.into(), &contribution(2, 1, seq), &values(1, seq, ELEMENTS));
        let (sum, got) = host.receive();
        let header = read(&sum);
        assert_eq!((got, header.flags, header.seq), (CAPABLE, flag::LEVEL | echo(5), seq));
        assert_eq!(elements(&sum), reference(2, seq, ELEMENTS));
        host.send(&plane, tos(7), &result(&header), &elements(&sum));
        for worker in &workers {
            let (down, got) = worker.receive();
            let header = read(&down);
            assert_eq!((got, header.kind, header.seq), (CAPABLE, Kind::Result as u8, seq));
            assert_eq!(header.flags & flag::ECN_ECHO, echo(7), "chunk {seq}");
            assert_eq!(elements(&down), reference(2, seq, ELEMENTS));
        }
    }
    assert_eq!(
        (plane.counter(Reason::Forwarded), plane.counter(Reason::Concluded), plane.held()),
        (50, 50, 0)
    );
}

/// The clock of the slots is the thread's: a chunk that nobody completes is taken back.
#[test]
fn a_silent_jobs_slot_is_taken_back() {
    let plane = HostDataPlane::start(16, 360, 1, Ipv4Addr::LOCALHOST, 0).unwrap();
    let plane = plane.with_dynamic(SLOTS, Duration::from_millis(1)).unwrap();
    let (workers, host) = ([Socket::new(1), Socket::new(2)], Socket::new(9));
    install(&plane, &workers, SLOTS, vec![host.address()]).unwrap();
    let send = |seq| workers[0].send(&plane, 0, &contribution(2, 0, seq), &values(0, seq, ELEMENTS));
    let mut seq = 0;
    while plane.counter(Reason::Reclaimed) == 0 {
        send(seq);
        seq += SLOTS;
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(plane.held(), 1);
}

#[test]
fn what_a_dynamic_job_needs_is_checked() {
    let plane = plane();
    let (workers, host) = ([Socket::new(1)], Socket::new(9));
    let hosts = |count| vec![host.address(); count];
    for (what, slots, hosts, expected) in [
        ("no slots", 0, hosts(1), "0 slots of each shard for a dynamic job: this aggregator has 8"),
        ("too many slots", 9, hosts(1), "9 slots of each shard for a dynamic job: this aggregator has 8"),
        ("no parameter host", 8, hosts(0), "0 parameter hosts"),
        ("five parameter hosts", 8, hosts(5), "5 parameter hosts"),
    ] {
        let refused = install(&plane, &workers, slots, hosts).unwrap_err().to_string();
        assert!(refused.contains(expected), "{what}: {refused}");
        assert!(plane.jobs().is_empty(), "{what}");
    }
    install(&plane, &workers, 8, hosts(4)).unwrap();
    let refused = plane.resize(JOB, 1, "").unwrap_err().to_string();
    assert!(refused.contains("not there"), "slots that are shared are nobody's to give back: {refused}");
    let bare = HostDataPlane::start(16, 360, 1, Ipv4Addr::LOCALHOST, 0).unwrap();
    let refused = install(&bare, &workers, 1, hosts(1)).unwrap_err().to_string();
    assert!(refused.contains("--dynamic-slots"), "{refused}");
}

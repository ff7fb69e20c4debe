//! Attaching, replacing and removing the host program on real interfaces, with traffic.
//!
//! ```text
//!   namespace "peer"                        namespace "host"
//!   [p0 10.77.0.1]==========veth==========[h0 10.77.0.2]   the program is on h0
//! ```

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by failing")]

mod support;
#[path = "../../../tests/src/wait.rs"]
mod wait;

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use sumac_hostprog::{
    AttachError, AttachOptions, Attached, HostMode, OpenError, attach, clean, detach,
    status::{State, status},
};
use sumac_loader::{AttachError as LoaderError, BoundXdpMode, Interface, Variant};
use sumac_wire::{Header, Reason, header::offset, tables::HostJobEntry};
use sumac_xsk::{QueueConfig, XskQueue};
use support::{
    AGGREGATOR, ENTRY, HOST, JOB, PORT, header,
    net::{Namespace, needs_privileges},
    payload,
};
use wait::eventually;

/// The two namespaces of the picture above; the calling thread is inside "host".
struct Lab {
    host: Namespace,
    peer: Namespace,
}

impl Lab {
    fn new() -> Self {
        let lab = Self { host: Namespace::new("host"), peer: Namespace::new("peer") };
        lab.connect();
        lab.host.enter();
        lab
    }

    fn connect(&self) {
        self.host.run(&format!("ip link add h0 type veth peer name p0 netns {}", self.peer.name));
        for (namespace, end, address) in [(&self.host, "h0", HOST), (&self.peer, "p0", AGGREGATOR)] {
            namespace.run(&format!("ip addr add {}/24 dev {end}", Ipv4Addr::from_bits(address)));
            namespace.run(&format!("ip link set {end} up"));
        }
    }

    fn options(&self) -> AttachOptions {
        AttachOptions { pin_root: self.host.pins.clone(), ..AttachOptions::new("h0") }
    }
}

/// The XDP programs on h0.
fn programs() -> Vec<u32> {
    Interface::by_name("h0").unwrap().xdp.iter().map(|program| program.id).collect()
}

fn count(attached: &Attached, reason: Reason) -> u64 {
    attached.counters().unwrap().iter().find(|(found, _)| *found == reason).unwrap().1
}

#[test]
fn what_is_attached_outlives_its_handle_and_leaves_nothing() {
    needs_privileges!("what_is_attached_outlives_its_handle_and_leaves_nothing");
    let lab = Lab::new();
    let root = &lab.host.pins;
    assert!(matches!(Attached::open("h0", root), Err(OpenError::NotAttached { .. })));
    drop(attach(&lab.options()).unwrap());

    let mut again = Attached::open("h0", root).unwrap();
    assert_eq!((again.mode(), again.requested_mode()), (BoundXdpMode::Driver, HostMode::Auto));
    assert_eq!((programs(), again.ports(), again.queues()), (vec![again.program_id()], (PORT, 1), vec![0]));
    again.add_job(JOB, ENTRY).unwrap();
    drop(again);

    let found = status(root).unwrap();
    let [interface] = &found.interfaces[..] else { panic!("{found:?}") };
    let State::Attached(details) = &interface.state else { panic!("{found:?}") };
    assert_eq!((details.mode, details.fell_back, details.jobs.len()), (BoundXdpMode::Driver, false, 1));

    let removed = detach("h0", root).unwrap();
    assert_eq!(removed.len(), 10, "{removed:?}");
    assert_eq!(programs(), Vec::<u32>::new());
    assert!(!root.exists(), "pins are left");
    assert!(detach("h0", root).unwrap_err().to_string().contains("no host program on h0"));
}

#[test]
fn replacing_under_traffic_loses_no_frame() {
    needs_privileges!("replacing_under_traffic_loses_no_frame");
    const REPLACEMENTS: u32 = 25;
    let lab = Lab::new();
    let mut attached = attach(&lab.options()).unwrap();
    // What an ordinary socket sends over a veth has half a checksum.
    attached.add_job(JOB, HostJobEntry { flags: 0, ..ENTRY }).unwrap();
    let mut socket = XskQueue::open(&QueueConfig::new("h0", 0)).unwrap();
    attached.set_socket(0, socket.as_fd()).unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let arrived = Arc::new(AtomicU32::new(0));
    let sender = {
        let (stop, arrived) = (stop.clone(), arrived.clone());
        lab.peer.spawn(move || {
            let from = UdpSocket::bind((Ipv4Addr::from_bits(AGGREGATOR), 0)).unwrap();
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                let packet = payload(&Header { seq: sent, ..header(64) });
                from.send_to(&packet, (Ipv4Addr::from_bits(HOST), PORT)).unwrap();
                sent += 1;
                // A window, so that no ring runs over: what is lost then was lost by the program.
                while sent - arrived.load(Ordering::Relaxed) > 64 && !stop.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            }
            sent
        })
    };
    let replacing = {
        let (options, stop, arrived) = (lab.options(), stop.clone(), arrived.clone());
        lab.host.spawn(move || {
            let mut ids = Vec::new();
            for shards in 1..=REPLACEMENTS {
                let before = arrived.load(Ordering::Relaxed);
                let options = AttachOptions { shards: shards as u16, ..options.clone() };
                ids.push(attach(&options).unwrap().program_id());
                eventually("traffic after a replacement", || {
                    (arrived.load(Ordering::Relaxed) > before + 100).then_some(())
                });
            }
            stop.store(true, Ordering::Relaxed);
            ids
        })
    };
    let mut next = 0;
    let mut take = |socket: &mut XskQueue| {
        socket.receive(64, |frame| {
            let seq = &frame[42 + offset::SEQ..][..4];
            assert_eq!(u32::from_be_bytes(seq.try_into().unwrap()), next, "a frame was lost");
            next += 1;
        });
        arrived.store(next, Ordering::Relaxed);
        next
    };
    while !replacing.is_finished() {
        take(&mut socket);
    }
    let (sent, ids) = (sender.join().unwrap(), replacing.join().unwrap());
    eventually("the last frames", || (take(&mut socket) == sent).then_some(()));

    assert_eq!(programs(), [*ids.last().unwrap()], "the last program is the one that stays");
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "every attachment brought a new program: {ids:?}");
    let attached = Attached::open("h0", &lab.host.pins).unwrap();
    assert_eq!(attached.ports(), (PORT, REPLACEMENTS as u16));
    assert_eq!(count(&attached, Reason::Steered), u64::from(sent), "counters are kept");
    assert_eq!(count(&attached, Reason::NoSocket), 0, "the socket is kept");
}

#[test]
fn foreign_traffic_goes_on_through_everything() {
    needs_privileges!("foreign_traffic_goes_on_through_everything");
    let lab = Lab::new();
    let here = Ipv4Addr::from_bits(HOST);
    let (tcp, udp) = (TcpListener::bind((here, 7001)).unwrap(), UdpSocket::bind((here, 7002)).unwrap());
    udp.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    // The one who answers ends after the one who asks, who would wait for an answer.
    let (stop, hush) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let echo_tcp = thread::spawn(move || {
        let (mut stream, _) = tcp.accept().unwrap();
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut bytes) {
            stream.write_all(&bytes[..n]).unwrap();
        }
    });
    let echo_udp = {
        let hush = hush.clone();
        thread::spawn(move || {
            let mut bytes = [0; 2048];
            while !hush.load(Ordering::Relaxed) {
                if let Ok((n, from)) = udp.recv_from(&mut bytes) {
                    udp.send_to(&bytes[..n], from).unwrap();
                }
            }
        })
    };
    let rounds = Arc::new(AtomicU32::new(0));
    let traffic = {
        let (stop, rounds) = (stop.clone(), rounds.clone());
        lab.peer.spawn(move || {
            let mut stream = TcpStream::connect((here, 7001)).unwrap();
            let datagrams = UdpSocket::bind((Ipv4Addr::from_bits(AGGREGATOR), 0)).unwrap();
            datagrams.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let mut got = [0; 3000];
            for round in 0u32.. {
                let sent = [round as u8; 3000];
                stream.write_all(&sent).unwrap();
                stream.read_exact(&mut got).unwrap();
                assert_eq!(got, sent, "TCP, round {round}");
                // Asked again when no answer comes: a veth empties its ring when its mode changes.
                let answer = (0..100).find_map(|_| {
                    datagrams.send_to(&sent[..999], (here, 7002)).unwrap();
                    datagrams.recv(&mut got).ok()
                });
                assert_eq!(answer, Some(999), "UDP, round {round}");
                rounds.fetch_add(1, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        })
    };
    let flows = |after: &str| {
        let before = rounds.load(Ordering::Relaxed);
        eventually(after, || (rounds.load(Ordering::Relaxed) > before + 50).then_some(()));
    };
    flows("traffic without the program");
    drop(attach(&lab.options()).unwrap());
    flows("traffic with the program and no daemon");
    let socket = XskQueue::open(&QueueConfig::new("h0", 0)).unwrap();
    attach(&lab.options()).unwrap().set_socket(0, socket.as_fd()).unwrap();
    flows("traffic beside a socket");
    drop(socket);
    flows("traffic after the daemon died");
    let generic = attach(&AttachOptions { mode: HostMode::Generic, ..lab.options() }).unwrap();
    assert_eq!((generic.mode(), generic.fallback()), (BoundXdpMode::Generic, None));
    flows("traffic through generic mode");
    assert_eq!(attach(&lab.options()).unwrap().mode(), BoundXdpMode::Driver);
    flows("traffic back in driver mode");
    let attached = Attached::open("h0", &lab.host.pins).unwrap();
    assert!(count(&attached, Reason::Foreign) > 100);
    assert_eq!(count(&attached, Reason::Steered), 0);
    drop(attached);
    detach("h0", &lab.host.pins).unwrap();
    flows("traffic after the program is gone");
    stop.store(true, Ordering::Relaxed);
    traffic.join().unwrap();
    hush.store(true, Ordering::Relaxed);
    for thread in [echo_udp, echo_tcp] {
        thread.join().unwrap();
    }
}

#[test]
fn the_mode_is_what_the_driver_can() {
    needs_privileges!("the_mode_is_what_the_driver_can");
    let lab = Lab::new();
    lab.host.run("ip link add b0 type bridge");
    let on_bridge = AttachOptions { ifname: "b0".to_owned(), ..lab.options() };
    let error = attach(&AttachOptions { mode: HostMode::Copy, ..on_bridge.clone() }).unwrap_err().to_string();
    assert!(error.contains("b0 in driver mode") && error.contains("--mode generic"), "{error}");
    assert!(!lab.host.pins.exists(), "a failed attachment left pins");

    let fell_back = attach(&on_bridge).unwrap();
    assert_eq!((fell_back.mode(), fell_back.requested_mode()), (BoundXdpMode::Generic, HostMode::Auto));
    assert!(fell_back.fallback().unwrap().contains("no XDP"), "{:?}", fell_back.fallback());
    let details = sumac_hostprog::status::details(&fell_back).unwrap();
    assert!(details.fell_back, "status reports it");

    for (end, namespace) in [("h0", &lab.host), ("p0", &lab.peer)] {
        namespace.run(&format!("ip link set {end} mtu 9000"));
    }
    let jumbo = attach(&AttachOptions { mode: HostMode::Copy, ..lab.options() }).unwrap();
    assert_eq!((jumbo.mode(), programs()), (BoundXdpMode::Driver, vec![jumbo.program_id()]));
    // Less than a page again: another program, in its place.
    for (end, namespace) in [("h0", &lab.host), ("p0", &lab.peer)] {
        namespace.run(&format!("ip link set {end} mtu 3506"));
    }
    let plain = attach(&lab.options()).unwrap();
    assert_eq!((plain.mode(), programs()), (BoundXdpMode::Driver, vec![plain.program_id()]));
    assert_ne!(plain.program_id(), jumbo.program_id());
    clean(&lab.host.pins).unwrap();
}

#[test]
fn a_program_of_somebody_else_stays() {
    needs_privileges!("a_program_of_somebody_else_stays");
    let lab = Lab::new();
    let mut foreign = sumac_hostprog::program::load(Variant::Plain).unwrap();
    let program = sumac_hostprog::program::xdp(&mut foreign, Variant::Plain).unwrap();
    program.attach("h0", aya::programs::XdpMode::Driver).unwrap();
    let id = program.info().unwrap().id();
    match attach(&lab.options()) {
        Err(AttachError::Attach(LoaderError::Occupied { id: found, mode, .. })) => {
            assert_eq!((found, mode), (id, BoundXdpMode::Driver));
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("attached over a foreign program"),
    }
    assert_eq!(programs(), [id]);
    drop(foreign);
    eventually("the foreign program leaves", || programs().is_empty().then_some(()));
    attach(&lab.options()).unwrap();
}

#[test]
fn pins_of_an_interface_that_is_gone_are_reported_and_replaced() {
    needs_privileges!("pins_of_an_interface_that_is_gone_are_reported_and_replaced");
    let lab = Lab::new();
    attach(&lab.options()).unwrap().add_job(JOB, ENTRY).unwrap();
    lab.host.run("ip link del h0");
    let broken = |root| matches!(&status(root).unwrap().interfaces[..], [one] if matches!(one.state, State::Broken { .. }));
    assert!(broken(&lab.host.pins), "the interface is gone");
    lab.connect();
    assert!(broken(&lab.host.pins), "another interface has its name");
    assert!(matches!(Attached::open("h0", &lab.host.pins), Err(OpenError::Detached { .. })));
    let attached = attach(&lab.options()).unwrap();
    assert_eq!((programs(), attached.jobs().unwrap()), (vec![attached.program_id()], vec![]));
}

#[test]
fn a_handle_knows_when_its_program_is_another() {
    needs_privileges!("a_handle_knows_when_its_program_is_another");
    let lab = Lab::new();
    let handle = attach(&lab.options()).unwrap();
    drop(attach(&lab.options()).unwrap());
    handle.check_current().unwrap();
    detach("h0", &lab.host.pins).unwrap();
    assert!(matches!(handle.check_current(), Err(OpenError::NotAttached { .. })));
    let renewed = attach(&lab.options()).unwrap();
    assert!(matches!(handle.check_current(), Err(OpenError::Renewed { .. })));
    renewed.check_current().unwrap();
}

#[test]
fn another_releases_maps_are_refused_and_replaced_by_version() {
    needs_privileges!("another_releases_maps_are_refused_and_replaced_by_version");
    let lab = Lab::new();
    let mut handle = attach(&lab.options()).unwrap();
    handle.add_job(JOB, ENTRY).unwrap();
    let abi = handle.pin_path().join("abi");
    std::fs::remove_file(&abi).unwrap();
    std::os::unix::fs::symlink("77", &abi).unwrap();
    let refused = Attached::open("h0", &lab.host.pins).unwrap_err();
    assert!(matches!(&refused, OpenError::OtherAbi { found, .. } if found == "77"), "{refused}");
    let renewed = attach(&lab.options()).unwrap();
    assert_eq!(
        (programs(), renewed.jobs().unwrap()),
        (vec![renewed.program_id()], vec![]),
        "maps of this release"
    );
    assert!(
        matches!(handle.check_current(), Err(OpenError::Renewed { .. })),
        "no more writes to the former maps"
    );
}

#[test]
fn a_claimed_program_has_one_owner() {
    needs_privileges!("a_claimed_program_has_one_owner");
    let lab = Lab::new();
    let mut first = attach(&lab.options()).unwrap();
    first.claim().unwrap();
    let mut second = Attached::open("h0", &lab.host.pins).unwrap();
    let refused = second.claim().unwrap_err().to_string();
    assert!(refused.contains(&format!("h0 is in use by process {}", std::process::id())), "{refused}");
    drop(first);
    second.claim().unwrap();
}

#[test]
fn cleaning_reaches_every_namespace() {
    needs_privileges!("cleaning_reaches_every_namespace");
    let lab = Lab::new();
    let options = lab.options();
    drop(attach(&options).unwrap());
    let at_peer = AttachOptions { ifname: "p0".to_owned(), ..options.clone() };
    lab.peer.spawn(move || drop(attach(&at_peer).unwrap())).join().unwrap();

    let found = status(&options.pin_root).unwrap();
    let elsewhere =
        found.interfaces.iter().filter(|one| matches!(one.state, State::ElsewhereAttached { .. }));
    assert_eq!((found.interfaces.len(), elsewhere.count()), (2, 1));
    let removed = clean(&options.pin_root).unwrap();
    assert_eq!(removed.iter().filter(|path| path.ends_with("link")).count(), 2, "{removed:?}");
    let left = lab.peer.spawn(|| Interface::by_name("p0").unwrap().xdp);
    assert_eq!((programs(), left.join().unwrap()), (vec![], vec![]));
    assert_eq!(clean(&options.pin_root).unwrap(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn two_that_attach_at_once_agree() {
    needs_privileges!("two_that_attach_at_once_agree");
    let lab = Lab::new();
    let attaching: Vec<_> = (0..4)
        .map(|_| {
            let options = lab.options();
            // Threads start in the namespace of the one that starts them.
            thread::spawn(move || attach(&options).map(|attached| attached.program_id()).map_err(Box::new))
        })
        .collect();
    let ids: Vec<_> = attaching.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
    let [stays] = programs()[..] else { panic!("{:?}", programs()) };
    assert!(ids.contains(&stays), "{stays} of {ids:?}");
    assert_eq!(Attached::open("h0", &lab.host.pins).unwrap().program_id(), stays);
}

#[test]
fn a_burst_of_bad_tokens_is_reported_once() {
    needs_privileges!("a_burst_of_bad_tokens_is_reported_once");
    let lab = Lab::new();
    let mut attached = attach(&lab.options()).unwrap();
    attached.add_job(JOB, ENTRY).unwrap();
    lab.peer
        .spawn(|| {
            let from = UdpSocket::bind((Ipv4Addr::from_bits(AGGREGATOR), 0)).unwrap();
            for _ in 0..100 {
                let packet = payload(&Header { token: 1, ..header(8) });
                from.send_to(&packet, (Ipv4Addr::from_bits(HOST), PORT)).unwrap();
            }
        })
        .join()
        .unwrap();
    eventually("all are counted", || (count(&attached, Reason::BadToken) == 100).then_some(()));

    let text = Captured::default();
    let writer = text.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        attached.log().unwrap().flush();
    });
    let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("job 3: 1 packet(s) with a wrong token, the last from 10.77.0.1"), "{text}");
    let lines = text.lines().count();
    assert!((1..20).contains(&lines), "{lines} messages about 100 packets:\n{text}");
}

#[test]
fn a_follower_ends_when_it_is_dropped() {
    needs_privileges!("a_follower_ends_when_it_is_dropped");
    let lab = Lab::new();
    let attached = attach(&lab.options()).unwrap();
    let follower = attached.log().unwrap().follow().unwrap();
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim() == "sumac-events").count()
    };
    eventually("the thread starts", || (threads() == 1).then_some(()));
    drop(follower);
    eventually("the thread ends", || (threads() == 0).then_some(()));
}

/// Captures log messages.
#[derive(Clone, Default)]
struct Captured(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

//! The cables' effect on plain UDP and TCP between two hosts.
//!
//! ```text
//! w0 net0 --[cable]-- port0 agg port1 --[cable]-- net0 w1
//! ```

#![expect(clippy::unwrap_used, reason = "a test says why it failed by panicking")]

use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use sumac_lab::namespace::Namespace;
use sumac_lab::spec::Faults;
use sumac_lab::units::{Probability, Rate};
use sumac_lab::{Lab, LabSpec, Topology};

/// A lab, or none when this machine cannot have one, which REQUIRE_PRIVILEGED=1 turns into a failure.
fn lab(test: &str, change: impl FnOnce(&mut LabSpec)) -> Option<Lab> {
    let mut spec = LabSpec::new(2);
    spec.name = format!("cab{}{test}", std::process::id());
    change(&mut spec);
    if nix::unistd::geteuid().is_root() {
        return Some(Lab::up(spec).unwrap());
    }
    assert!(std::env::var_os("REQUIRE_PRIVILEGED").is_none_or(|v| v != "1"), "{test} needs root");
    println!("SKIP {test}: network namespaces need root");
    None
}

/// Has w1 print a line for each datagram and w0 send them, by Python; returns the lines. They are sent in
/// bursts that overtake each other, and slowly: a veth drops what comes while its NAPI thread waits for a
/// busy CPU and 256 frames are there already. A ping resolves every neighbour first: datagrams that wait for
/// that are overtaken by those after it.
fn datagrams<T: FromStr>(lab: &Lab, receive: &str, send: &str, count: u32, ecn: u8) -> Vec<T> {
    let receiver = format!(
        "import socket,struct
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET,33,1<<24)
s.setsockopt(socket.IPPROTO_IP,13,1); s.bind(('0.0.0.0',9)); s.settimeout(2); print('ready',flush=True)
try:
  while True: print({receive})
except socket.timeout: pass"
    );
    let sender = format!(
        "import socket,struct,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET,32,1<<24)
s.setsockopt(socket.IPPROTO_IP,socket.IP_TOS,{ecn})
for i in range({count}):
  s.sendto({send},('{}',9))
  if i%20==19: time.sleep(0.006)",
        lab.spec().worker_ip(1)
    );
    let python = |script: &str| {
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-c", script]);
        python
    };
    let mut ping = lab.worker(0).command("ping");
    // Until one is answered: cables may lose some.
    ping.args(["-c", "1", "-w", "30", "-i", "0.1", &lab.spec().worker_ip(1).to_string()]);
    sumac_lab::command::output(&mut ping).unwrap();
    // The log of a name is appended to.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let what = format!("receiver{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let mut receiver = lab.start(lab.worker(1), &what, &mut python(&receiver)).unwrap();
    let log = receiver.log().to_owned();
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    receiver.wait_until("its socket", Duration::from_secs(10), || said().starts_with("ready")).unwrap();
    let mut sender = lab.start(lab.worker(0), "sender", &mut python(&sender)).unwrap();
    sender.wait_success("the end of its datagrams", Duration::from_secs(60)).unwrap();
    receiver.wait_success("the silence after the last", Duration::from_secs(60)).unwrap();
    said().lines().filter_map(|line| line.parse().ok()).collect()
}

/// Sends numbered datagrams from w0 to w1 and returns the numbers in the order of their arrival.
fn numbers(lab: &Lab, count: u32) -> Vec<u32> {
    datagrams(lab, "struct.unpack('!I',s.recv(2000)[:4])[0]", "struct.pack('!I',i)+bytes(1100)", count, 0)
}

/// Sends a burst of 1000-byte datagrams from w0 to w1 much faster than the cables' rate, each with this ECN
/// field, and returns the ECN fields that arrive, in order.
fn fields(lab: &Lab, count: u32, ecn: u8) -> Vec<u8> {
    datagrams(lab, "s.recvmsg(2000,100)[1][0][2][0]&3", "bytes(958)", count, ecn)
}

/// Of a test that a busy machine can spoil.
const ATTEMPTS: usize = 3;

fn iperf(lab: &Lab, options: &[&str]) -> Value {
    let mut server = lab
        .start(lab.worker(1), "iperf3-server", Command::new("iperf3").args(["-s", "-1", "--forceflush"]))
        .unwrap();
    let log = server.log().to_owned();
    let listening = || std::fs::read_to_string(&log).unwrap_or_default().contains("listening");
    server.wait_until("listening", Duration::from_secs(10), listening).unwrap();
    let mut client = lab.worker(0).command("iperf3");
    client.args(["-J", "-t", "1", "-c", &lab.spec().worker_ip(1).to_string()]).args(options);
    sumac_lab::command::json(&mut client).unwrap()
}

#[test]
fn loss_is_what_was_asked_for_and_counted() {
    let faults = Faults { loss: Probability(100_000), ..Faults::default() };
    let Some(lab) = lab("loss", |spec| spec.faults = faults) else { return };
    let send = |attempt| {
        let before = lab.injected().unwrap();
        let arrived = numbers(&lab, 20_000).len() as u64;
        let after = lab.injected().unwrap();
        let lost = after.up.lost + after.down.lost - before.up.lost - before.down.lost;
        println!("attempt {attempt}: {arrived} arrived, {lost} lost");
        // The hosts' neighbour discovery passes the cables too, and is lost too: a handful of frames.
        let is_all = (20_000u64).abs_diff(arrived + lost) < 20;
        is_all.then_some((arrived, after.up.frames - before.up.frames))
    };
    // The veths of a busy machine drop frames, too.
    let (arrived, seen) = (0..ATTEMPTS).find_map(send).expect("frames that nobody has counted as lost");
    assert!((20_000..20_100).contains(&seen), "{seen} entered");
    // Two cables of 10 %: 19 %, and six standard deviations are below one.
    assert!((3_600..4_000).contains(&(20_000 - arrived)), "{} lost", 20_000 - arrived);
}

#[test]
fn frames_arrive_twice() {
    let faults = Faults { duplicate: Probability(100_000), ..Faults::default() };
    let Some(lab) = lab("dup", |spec| spec.faults = faults) else { return };
    let mut arrived = numbers(&lab, 5_000);
    let all = arrived.len();
    arrived.sort_unstable();
    arrived.dedup();
    assert_eq!(arrived.len(), 5_000, "none may be lost");
    let twice = lab.injected().unwrap();
    assert!(all > 5_000 && twice.up.duplicated > 0 && twice.down.duplicated > 0, "{all}, {twice:?}");
}

#[test]
fn later_frames_overtake() {
    let faults = Faults { reorder: Probability(50_000), ..Faults::default() };
    let Some(lab) = lab("reo", |spec| spec.faults = faults) else { return };
    let arrived = numbers(&lab, 10_000);
    assert_eq!(arrived.len(), 10_000, "none may be lost, none arrive twice");
    let overtaken = arrived.windows(2).filter(|pair| pair[1] < pair[0]).count();
    let held_up = lab.injected().unwrap();
    let held_up = held_up.up.reordered + held_up.down.reordered;
    println!("{held_up} held up, {overtaken} overtaken");
    assert!(held_up > 500 && overtaken * 5 > held_up as usize, "{held_up} held up, {overtaken} overtaken");
}

#[test]
fn without_faults_everything_arrives_in_order() {
    for topology in [Topology::PerPort, Topology::OneArm] {
        let Some(lab) = lab("order", |spec| {
            spec.topology = topology;
            spec.rate = Some(Rate(1_000_000_000));
        }) else {
            return;
        };
        let arrived = numbers(&lab, 10_000);
        let overtaken: Vec<_> = arrived.windows(2).filter(|pair| pair[1] != pair[0] + 1).collect();
        assert!(
            arrived.len() == 10_000 && overtaken.is_empty(),
            "{topology:?}: {}, {overtaken:?}",
            arrived.len()
        );
    }
}

#[test]
fn racks_reach_each_other_with_jumbo_frames_and_several_queues() {
    let Some(lab) = lab("rack", |spec| {
        (spec.workers, spec.racks, spec.queues, spec.mtu) = (4, 2, 2, 9000);
        spec.rate = Some(Rate(1_000_000_000));
    }) else {
        return;
    };
    assert_eq!((lab.racks().len(), lab.cables().len()), (2, 6));
    // Ethernet's payload: 20 bytes of IPv4 and 8 of ICMP around the ping's.
    let mut ping = lab.worker(0).command("ping");
    ping.args(["-c", "1", "-W", "5", "-M", "do", "-s", "8972", &lab.spec().worker_ip(3).to_string()]);
    sumac_lab::command::output(&mut ping).unwrap();
    for host in [lab.worker(3), lab.aggregator_of(3)] {
        let mut show = host.command("ip");
        let links =
            sumac_lab::command::json(show.args(["-j", "-d", "link", "show", "type", "veth"])).unwrap();
        for link in links.as_array().unwrap() {
            assert_eq!((&link["num_rx_queues"], &link["num_tx_queues"]), (&2.into(), &2.into()), "{link}");
        }
    }
}

#[test]
fn marks_come_above_a_backlog_and_not_below() {
    const ECT: u8 = 2;
    const CE: u8 = 3;
    let Some(lab) = lab("ecn", |spec| {
        (spec.rate, spec.ecn_threshold_kb) = (Some(Rate(10_000_000)), Some(64));
    }) else {
        return;
    };
    let marked = || lab.injected().unwrap().up.marked + lab.injected().unwrap().down.marked;
    // What an idle shaper lets pass at once and the threshold are 327 frames of 1000 bytes.
    let below = fields(&lab, 300, ECT);
    assert!(below.iter().all(|field| *field == ECT), "the backlog stayed below the threshold: {below:?}");
    assert_eq!((below.len(), marked()), (300, 0), "{:?}", lab.injected().unwrap());
    // The first bucket fills again in 0.3 s; the receiver's silence was longer.
    let burst = (0..ATTEMPTS).map(|_| fields(&lab, 700, ECT)).find(|burst| burst.contains(&CE));
    // A busy machine may send no faster than the cable does.
    let burst = burst.expect("marks above the threshold");
    let first = burst.iter().position(|field| *field == CE).unwrap_or(burst.len());
    let count = burst.iter().filter(|field| **field == CE).count();
    println!("{} of 700 arrived, {count} marked, the first is number {first}", burst.len());
    assert_eq!(burst.len(), 700, "marks come before the queue is full");
    // However slowly the sender ran, the virtual queue held the first 327; each mark is excess.
    assert!((327..700).contains(&first), "{count} marked, the first is number {first}");
    assert_eq!(marked(), count as u64, "what was marked is counted");
    // Whoever does not say that it minds is not marked, whatever waits.
    assert_eq!(fields(&lab, 700, 0), vec![0; 700]);
    assert_eq!(marked(), count as u64);
}

#[test]
fn parameter_hosts_are_reached_from_everywhere() {
    for topology in [Topology::PerPort, Topology::OneArm] {
        let Some(lab) = lab("ph", |spec| {
            (spec.topology, spec.parameter_hosts) = (topology, 2);
            spec.rate = Some(Rate(1_000_000_000));
        }) else {
            return;
        };
        assert_eq!((lab.parameter_hosts().len(), lab.cables().len()), (2, 4));
        ping(lab.worker(0), lab.spec().host_ip(1));
        ping(&lab.parameter_hosts()[0], lab.spec().worker_ip(1));
    }
    let Some(lab) = lab("phr", |spec| {
        (spec.workers, spec.racks, spec.beside_root, spec.parameter_hosts) = (6, 2, 2, 1);
    }) else {
        return;
    };
    for rank in [0, 3, 5] {
        ping(lab.worker(rank), lab.spec().host_ip(0));
        ping(&lab.parameter_hosts()[0], lab.spec().worker_ip(rank));
    }
    ping(lab.worker(5), lab.spec().worker_ip(0));
}

fn ping(from: &Namespace, to: std::net::Ipv4Addr) {
    let mut ping = from.command("ping");
    sumac_lab::command::output(ping.args(["-c", "1", "-W", "5", &to.to_string()])).unwrap();
}

#[test]
fn a_rate_is_a_ceiling() {
    let Some(lab) = lab("rate", |spec| spec.rate = Some(Rate(100_000_000))) else { return };
    let report = iperf(&lab, &[]);
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap();
    println!("{bits:.0} bit/s of TCP through 100 Mbit/s");
    // The burst of an idle bucket passes unshaped; how much comes through is the machine's affair.
    assert!(bits < 130e6, "{bits}");
}

#[test]
fn nothing_is_left() {
    let Some(lab) = lab("left", |spec| spec.rate = Some(Rate(1_000_000_000))) else { return };
    let name = lab.spec().name.clone();
    let mut sleep = lab.start(lab.worker(0), "sleep", Command::new("sleep").arg("60")).unwrap();
    let record = sumac_lab::record::Record::load(&name).unwrap();
    assert_eq!(record.processes.len(), 1);
    assert!(lab.worker(0).exists());
    lab.down().unwrap();
    assert!(sleep.ended().is_some(), "the program outlived its lab");
    assert!(!sumac_lab::namespace::all().unwrap().iter().any(|n| n.starts_with(&name)));
    assert!(!sumac_lab::record::Record::path(&name).exists());
    assert!(!sumac_lab::record::Record::folder(&name).exists());
}

//! What cables do to frames, seen by plain UDP and TCP between two hosts.
//!
//! ```text
//! w0 net0 --[cable]-- port0 agg port1 --[cable]-- net0 w1
//! ```

#![expect(clippy::unwrap_used, reason = "a test says why it failed by panicking")]

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
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

/// Sends numbered datagrams from w0 to w1 and returns the numbers in the order of their arrival.
fn numbers(lab: &Lab, count: u32) -> Vec<u32> {
    const RECEIVER: &str = "import socket,struct,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET,33,1<<24)
s.bind(('0.0.0.0',9)); s.settimeout(2); print('ready',flush=True)
try:
  while True: print(struct.unpack('!I',s.recv(2000)[:4])[0])
except socket.timeout: pass";
    const SENDER: &str = "import socket,struct,sys,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
for i in range(int(sys.argv[2])):
  s.sendto(struct.pack('!I',i)+bytes(1100),(sys.argv[1],9))
  if i%20==19: time.sleep(0.0005)";
    let mut receiver = lab
        .start(lab.worker(1), "receiver", Command::new("/usr/bin/python3").args(["-c", RECEIVER]))
        .unwrap();
    let log = receiver.log().to_owned();
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    receiver.wait_until("its socket", Duration::from_secs(10), || said().starts_with("ready")).unwrap();
    let to = lab.spec().worker_ip(1).to_string();
    let mut sender = Command::new("/usr/bin/python3");
    sender.args(["-c", SENDER, &to, &count.to_string()]);
    let mut sender = lab.start(lab.worker(0), "sender", &mut sender).unwrap();
    sender.wait_success("the end of its datagrams", Duration::from_secs(60)).unwrap();
    receiver.wait_success("the silence after the last", Duration::from_secs(60)).unwrap();
    said().lines().filter_map(|line| line.parse().ok()).collect()
}

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
    let before = lab.injected().unwrap();
    let arrived = numbers(&lab, 20_000).len() as u64;
    let after = lab.injected().unwrap();
    let lost = after.up.lost + after.down.lost - before.up.lost - before.down.lost;
    let seen = after.up.frames - before.up.frames;
    // The hosts' neighbour discovery passes the cables too, and is lost too: a handful of frames.
    assert!((20_000u64).abs_diff(arrived + lost) < 20, "{arrived} arrived, {lost} lost");
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
        assert!(arrived.is_sorted() && arrived.len() == 10_000, "{topology:?}: {} arrived", arrived.len());
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

//! Foreign traffic between two workers' hosts goes on through everything that Sumac does on their interfaces.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg |     iperf3, TCP and UDP: w0 -- agg (which forwards) -- w1
//!                      +-----+
//! ```

use std::process::Command;

use nix::sys::signal::Signal;
use std::net::Ipv4Addr;
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_lab::namespace::Namespace;
use sumac_tests::traffic::{Kind, Traffic};
use sumac_tests::wait::LIMIT;
use sumac_tests::{Crew, Site, exact, stats};

const COUNT: usize = 200_000;

#[test]
fn tcp_and_udp_go_on_through_attach_sum_kill_and_detach() {
    let Some(site) = Site::up(LabSpec::new(2)) else { return };
    let mut traffic = [Kind::Tcp, Kind::Udp].map(|kind| Traffic::start(&site, kind, 0, 1));
    let mut assert_flow = |when: &str| traffic.iter_mut().for_each(|traffic| traffic.assert_flows(when));

    let mut sumac = Deployment::start(&site, &SumacOptions::default()).unwrap();
    assert_flow("after attach");
    let crew = Crew::join(&sumac, "beside");
    exact::assert_sums("beside foreign traffic", 1, &crew.allreduce(1, COUNT));
    let pending = crew.submit(2, COUNT);
    assert_flow("during a sum");
    exact::assert_sums("beside foreign traffic", 2, &crew.results(pending));
    assert!(stats::at_host(&crew.trainers[1].client)["foreign"] > 0, "the traffic passed the program");
    assert!(stats::at_aggregator(&sumac)["foreign"] > 0, "the traffic passed the aggregator's program");

    sumac.daemon(1).unwrap().signal(Signal::SIGKILL);
    drop(crew);
    sumac.stop_daemon(1);
    assert_flow("with the daemon dead");
    for rank in 0..2 {
        sumac.sumac(rank, &["detach", site.worker_interface()]).unwrap();
    }
    assert_flow("after the workers' detach");
    sumac.sumac_agg(&["detach", "--all"]).unwrap();
    assert_flow("after the aggregator's detach");

    traffic.into_iter().for_each(Traffic::end);
    drop(sumac);
    site.leave_nothing();
}

/// Prints how many of 100 datagrams have arrived at its port, as fast as they come.
const RECEIVE: &str = "\
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', int(sys.argv[1])))
s.settimeout(3)
print('bound', flush=True)
got = 0
try:
    while got < 100:
        s.recv(4096)
        got += 1
except socket.timeout:
    pass
print('got', got, flush=True)";

/// Sends 100 datagrams, in the form of packets of a job that nobody has or in another.
const SEND: &str = "\
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
alike = bytes([0x21, 0, 0, 0, 0, 9, 0, 1]) + bytes(11) + bytes([34])
header = alike if sys.argv[3] == 'alike' else b'hello, world'
for _ in range(100):
    s.sendto(header + bytes(200 - len(header)), (sys.argv[1], int(sys.argv[2])))
    time.sleep(0.002)";

/// The datagrams of 100 that arrive from worker 0's host at another's, at Sumac's own port.
fn arrived(sumac: &Deployment<'_>, to: &Namespace, ip: Ipv4Addr, form: &str) -> usize {
    let port = sumac_wire::DEFAULT_BASE_PORT.to_string();
    let lab = sumac.lab();
    let mut receiver = Command::new("/usr/bin/python3");
    receiver.args(["-c", RECEIVE, &port]);
    // A name, and so a log, of its own.
    let what = format!("receiver-{}-{form}", to.name());
    let mut receiver = lab.start(to, &what, &mut receiver).unwrap();
    let log = receiver.log().to_owned();
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    receiver.wait_until("bound", LIMIT, || text().contains("bound")).unwrap();
    let mut sender = Command::new("/usr/bin/python3");
    sender.args(["-c", SEND, &ip.to_string(), &port, form]);
    lab.start(lab.worker(0), "sender", &mut sender).unwrap().wait_success("the sender", LIMIT).unwrap();
    receiver.wait_success("the receiver", LIMIT).unwrap();
    text().rsplit("got ").next().and_then(|count| count.trim().parse().ok()).unwrap()
}

#[test]
fn datagrams_of_other_programs_to_our_port_arrive() {
    let Some(site) = Site::up(LabSpec::new(2)) else { return };
    let sumac = Deployment::start(&site, &SumacOptions::default()).unwrap();
    // With a number of slots, since the measurement of a path fills its queues.
    let crew = Crew::join_with(&sumac, "beside", |options| options.slots(64));
    let spec = site.spec();
    for form in ["foreign", "alike"] {
        let routed = arrived(&sumac, site.worker(1), spec.worker_ip(1), form);
        let at_aggregator = arrived(&sumac, site.aggregator(), spec.aggregator_ip(0), form);
        println!(
            "{form}: {routed} of 100 through the aggregator to another host, {at_aggregator} at the \
            aggregator's"
        );
        assert_eq!((routed, at_aggregator), (100, 100), "{form}");
    }
    exact::assert_sums("beside them", 1, &crew.allreduce(1, COUNT));
    crew.leave();
    drop(sumac);
    site.leave_nothing();
}

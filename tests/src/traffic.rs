//! Foreign traffic through a lab: iperf3, watched from its receiving end.

use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use sumac_lab::Lab;
use sumac_lab::process::Process;

use crate::wait::{LIMIT, eventually};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    Udp,
}

/// One iperf3 from a worker's host to another's, until it is signalled to end.
#[derive(Debug)]
pub struct Traffic {
    kind: Kind,
    client: Process,
    server: Process,
}

impl Traffic {
    /// Starts it, and waits until it flows.
    pub fn start(lab: &Lab, kind: Kind, from: u16, to: u16) -> Traffic {
        // A hundredth of what the machine can: the allreduce beside it needs its share.
        Traffic::start_at(lab, kind, from, to, &["-b", "20M"])
    }

    /// Starts a stream that takes what it gets and yields to congestion as this kind of TCP does, `reno` or
    /// `cubic` (RFC 5681, RFC 9438; this machine's own choice, BBR, does not mind marks).
    pub fn start_greedy(lab: &Lab, from: u16, to: u16, control: &str) -> Traffic {
        Traffic::start_at(lab, Kind::Tcp, from, to, &["-b", "0", "-C", control])
    }

    fn start_at(lab: &Lab, kind: Kind, from: u16, to: u16, how: &[&str]) -> Traffic {
        let port = match kind {
            Kind::Tcp => "5201",
            Kind::Udp => "5202",
        };
        let mut serve = Command::new("iperf3");
        serve.args(["-s", "-1", "-p", port, "-i", "0.2", "--forceflush"]);
        let mut server = lab.start(lab.worker(to), &format!("iperf3-{kind:?}-server"), &mut serve).unwrap();
        let log = server.log().to_owned();
        server.wait_until("listening", LIMIT, || read(&log).contains("listening")).unwrap();

        let mut send = Command::new("iperf3");
        let address = lab.spec().worker_ip(to).to_string();
        send.args(["-c", &address, "-p", port, "-t", "600", "--forceflush"]).args(how);
        if kind == Kind::Udp {
            send.args(["-u", "-l", "1200"]);
        }
        let client = lab.start(lab.worker(from), &format!("iperf3-{kind:?}-client"), &mut send).unwrap();
        let mut traffic = Traffic { kind, client, server };
        traffic.assert_flows("at first");
        traffic
    }

    /// Asserts that it goes on: the receiver has bytes in intervals that are still to come.
    pub fn assert_flows(&mut self, when: &str) {
        let log = self.server.log().to_owned();
        let before = intervals_with_bytes(&read(&log));
        eventually(&format!("{:?} traffic {when}", self.kind), || {
            for end in [&mut self.client, &mut self.server] {
                let status = end.ended();
                assert!(status.is_none(), "{} {when} ended with {status:?}: {}", end.what(), end.log_tail());
            }
            // The first new interval may have begun before what the test did.
            (intervals_with_bytes(&read(&log)) >= before + 3).then_some(())
        });
    }

    /// Bytes that have arrived, as the receiver last said.
    pub fn bytes(&self) -> f64 {
        read(&self.server.log().to_owned()).lines().filter_map(interval_bytes).sum()
    }

    /// Ends it as a user would, and asserts that it ends of nothing else.
    pub fn end(mut self) {
        self.client.signal(Signal::SIGINT);
        eventually("the end of iperf3", || self.client.ended());
        let said = read(&self.client.log().to_owned());
        let complaints: Vec<_> = said.lines().filter(|line| line.starts_with("iperf3:")).collect();
        assert_eq!(complaints, ["iperf3: interrupt - the client has terminated"], "{:?}", self.kind);
        eventually("the end of the server", || self.server.ended());
    }
}

/// Counts the report's intervals with bytes.
fn intervals_with_bytes(report: &str) -> usize {
    report.lines().filter_map(interval_bytes).filter(|bytes| *bytes > 0.0).count()
}

/// The bytes of an interval: "[  5]   0.20-0.40   sec   488 KBytes  20.0 Mbits/sec".
fn interval_bytes(line: &str) -> Option<f64> {
    let mut words = line.split_whitespace().skip_while(|word| *word != "sec").skip(1);
    let (number, unit) = (words.next()?.parse::<f64>().ok()?, words.next()?);
    let factor = match unit {
        "KBytes" => 1024.0,
        "MBytes" => 1024.0 * 1024.0,
        "GBytes" => 1024.0 * 1024.0 * 1024.0,
        _ => 1.0,
    };
    Some(number * factor)
}

fn read(log: &PathBuf) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

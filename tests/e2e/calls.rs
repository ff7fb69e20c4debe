//! System calls per MB: of a worker's daemon, and of the aggregator where it is a process.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//!                      | agg |
//! w1 net0 ------ port1 +-----+
//! ```
//!
//! The kernel counts them (perf, the tracepoint `raw_syscalls:sys_enter`). A MB is one of each worker's
//! tensor, with its way out and the sum's way back: 710 packets each way. Under load packets go in longer
//! runs, so an idle machine has most calls. Bounds are about three times what it has.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use sumac_client::Reduction;
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Backend, Deployment, SumacOptions};
use sumac_tests::site::with_sumac;
use sumac_tests::{Crew, exact};

const COUNT: usize = 1_000_000;
const SUMS: u64 = 4;
const MB: f64 = SUMS as f64 * COUNT as f64 * 4.0 / 1e6;

/// A count of a process's system calls that goes on.
struct Counting {
    perf: Child,
}

impl Counting {
    fn start(pid: u32) -> Counting {
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", &pid.to_string(), "--"]);
        // perf counts while this command runs, which begins when all threads are counted.
        perf.args(["sh", "-c", "echo counting; read _"]);
        perf.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut perf = perf.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(perf.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "counting\n");
        Counting { perf }
    }

    /// Ends it, and returns the number of calls.
    fn end(mut self) -> u64 {
        drop(self.perf.stdin.take());
        let output = self.perf.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| line.contains("raw_syscalls:sys_enter"));
        let count = line.and_then(|line| line.split(',').next()).and_then(|count| count.parse().ok());
        count.unwrap_or_else(|| panic!("perf: {text}"))
    }
}

/// System calls per MB, of worker 0's daemon and of the aggregator.
fn calls_per_mb(sumac: &mut Deployment<'_>, crew: &Crew) -> [f64; 2] {
    exact::assert_sums("before the count", 0, &crew.allreduce(0, COUNT));
    let pids = [sumac.daemon(0).unwrap().pid(), sumac.aggregator().unwrap().pid()];
    // Making values and asking for terms are calls too.
    let tensors: Vec<_> = (1..=SUMS).map(|seed| crew.prepare::<f32>(seed, COUNT)).collect();
    let counting = pids.map(Counting::start);
    let sum = |tensors| crew.results(crew.hand_in(tensors, Reduction::Sum));
    let sums: Vec<_> = tensors.into_iter().map(sum).collect();
    let calls = counting.map(|counting| counting.end() as f64 / MB);
    for (seed, sums) in (1..).zip(&sums) {
        exact::assert_sums(&format!("sum {seed}"), seed, sums);
    }
    calls
}

/// Whether perf can count calls here. Prints the reason if not.
fn can_count(test: &str) -> bool {
    let perf = Command::new("perf").args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "true"]).output();
    let why = match perf {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "),
        Err(error) => error.to_string(),
    };
    println!("SKIP {test}: perf counts no system calls here: {why}");
    false
}

/// `most`: calls per MB of a daemon, and of an aggregator that packets pass through.
fn assert_calls(backend: Backend, most: [Option<f64>; 2]) {
    let options = SumacOptions { backend, ..SumacOptions::default() };
    with_sumac(LabSpec::new(2), &options, |sumac| {
        let crew = Crew::join(sumac, "crew");
        let calls = calls_per_mb(sumac, &crew);
        crew.leave();
        for ((name, calls), most) in ["daemon", "aggregator"].into_iter().zip(calls).zip(most) {
            let what = format!("{}: {name}: {calls:.1} system calls per MB", backend.name());
            println!("{what}");
            assert!(most.is_none_or(|most| calls <= most), "{what}, more than {most:?}");
        }
    });
}

#[test]
fn over_udp_a_call_moves_many_packets() {
    if !can_count("over_udp_a_call_moves_many_packets") {
        return;
    }
    assert_calls(Backend::Udp, [Some(200.0), Some(200.0)]);
}

#[test]
fn over_xdp_a_call_moves_many_packets() {
    if !can_count("over_xdp_a_call_moves_many_packets") {
        return;
    }
    // The aggregator's process reads its maps now and then.
    assert_calls(Backend::Xdp, [Some(200.0), None]);
}

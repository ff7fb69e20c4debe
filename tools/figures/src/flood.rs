//! `sumac-figures flood`: the time of an allreduce beside connections that flood a worker's daemon with
//! `stats`.

use std::fmt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde::Serialize;
use sumac_lab::Lab;
use sumac_lab::clock::{Times, monotonic};
use sumac_lab::cpu::CpuTime;
use sumac_lab::cpu::{MachineTime, of_process};
use sumac_lab::deployment::{Backend, Deployment};
use sumac_lab::interrupt;
use sumac_lab::options::MeasureArguments;
use sumac_lab::run::contents::Contents;
use sumac_lab::run::{RunOptions, Trainers};

const EXAMPLES: &str = "\
Examples:
  sumac-figures flood --workers 2 --elements 65536 --iterations 300
  sumac-figures flood --connections 10 --backend udp --json

Measures --iterations allreduces without and with the flood, --rounds times in turns. The flooding
connections are of the trainers' own user, and wait for each reply before the next request.
Exit codes: 0 all sums right, 1 wrong or failed, 2 wrong usage, 130 interrupted.";

/// The time after which a flood's burst is over, and its daemon delays it.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Flood {
    #[command(flatten)]
    measure: MeasureArguments,
    /// Connections to worker 0's daemon that flood it
    #[arg(long, default_value_t = 100)]
    connections: u32,
    /// Pairs of measurements without and with the flood
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The backend: xdp or udp
    #[arg(long, value_enum, default_value_t = Backend::Udp)]
    backend: Backend,
}

/// Allreduces, and what the machine did meanwhile.
#[derive(Clone, Debug, Default, Serialize)]
struct Phase {
    times: Vec<f64>,
    seconds: f64,
    /// Of worker 0's daemon, in seconds.
    daemon: f64,
    /// Of the whole machine.
    machine: f64,
    replies: u64,
}

#[derive(Debug, Serialize)]
struct Row {
    connections: u32,
    times: Times,
    /// Seconds of worker 0's daemon for each allreduce.
    daemon_cpu: f64,
    /// Busy CPUs of the machine.
    busy: f64,
    replies_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    elements: usize,
    iterations: u32,
    rounds: u32,
    alone: Row,
    beside: Row,
    /// Of the medians.
    ratio: f64,
}

impl Flood {
    pub fn run(self) -> Result<ExitCode> {
        let options = self.measure.options(self.backend);
        let lab = Lab::up(options.lab.clone())?;
        let deployment = Deployment::start(&lab, &options.sumac)?;
        let report = self.measure_in(&deployment, &options);
        drop(deployment);
        let report = report?;
        lab.down()?;
        if self.measure.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{report}");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn measure_in(&self, deployment: &Deployment<'_>, options: &RunOptions) -> Result<Report> {
        let mut trainers = Trainers::<f32>::join(deployment, "flooded", options.operation)?;
        let daemon = deployment.processes().find(|process| process.what() == "daemon0");
        let daemon = daemon.context("a deployment has daemons")?.pid();
        let contents = Contents { seed: options.seed, iteration: 0 };
        trainers.fill(contents)?;
        trainers.operate(options.limit)?;
        ensure!(trainers.compare(contents)?.wrong == 0, "the sums are wrong before the flood");
        let (mut alone, mut beside) = (Phase::default(), Phase::default());
        for _ in 0..self.rounds {
            let none = AtomicU64::new(0);
            alone.measure(&mut trainers, options, daemon, &none)?;
            let (stop, replies) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| {
                let floods: Vec<_> = (0..self.connections)
                    .map(|_| scope.spawn(|| flood(deployment, &stop, &replies)))
                    .collect();
                std::thread::sleep(SETTLE);
                let measured = beside.measure(&mut trainers, options, daemon, &replies);
                stop.store(true, Ordering::Relaxed);
                for flood in floods {
                    flood.join().map_err(|_| anyhow!("a flooding connection panicked"))??;
                }
                measured
            })?;
        }
        trainers.leave()?;
        let (alone, beside) = (alone.row(0), beside.row(self.connections));
        let ratio = beside.times.median / alone.times.median;
        let (elements, iterations) = (options.operation.elements, options.iterations);
        Ok(Report { elements, iterations, rounds: self.rounds, alone, beside, ratio })
    }
}

/// Requests statistics of worker 0's daemon until `stop`.
fn flood(deployment: &Deployment<'_>, stop: &AtomicBool, replies: &AtomicU64) -> Result<()> {
    let client = deployment.client(0)?;
    while !stop.load(Ordering::Relaxed) {
        client.stats_json()?;
        replies.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

impl Phase {
    fn measure(
        &mut self,
        trainers: &mut Trainers<f32>,
        options: &RunOptions,
        daemon: u32,
        replies: &AtomicU64,
    ) -> Result<()> {
        let cpu = || of_process(daemon).unwrap_or_default();
        let total = |time: CpuTime| time.user + time.system;
        let (begin, before, machine) = (monotonic(), total(cpu()), MachineTime::now());
        let answered = replies.load(Ordering::Relaxed);
        for _ in 0..options.iterations {
            interrupt::check()?;
            trainers.fill(Contents { seed: options.seed, iteration: 0 })?;
            let (start, end) = trainers.operate(options.limit)?;
            self.times.push(end - start);
        }
        self.seconds += monotonic() - begin;
        self.daemon += total(cpu()) - before;
        self.machine += MachineTime::now().since(machine).total();
        self.replies += replies.load(Ordering::Relaxed) - answered;
        Ok(())
    }

    fn row(&self, connections: u32) -> Row {
        Row {
            connections,
            times: Times::of(&self.times),
            daemon_cpu: self.daemon / self.times.len().max(1) as f64,
            busy: self.machine / self.seconds,
            replies_per_second: self.replies as f64 / self.seconds,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { elements, iterations, rounds, ratio, .. } = self;
        writeln!(f, "{elements} elements, {rounds} x {iterations} allreduces with and without the flood\n")?;
        writeln!(
            f,
            "| flooding connections | median | p99 | daemon's CPU for one | busy CPUs | replies/s |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- |")?;
        for row in [&self.alone, &self.beside] {
            let Row { connections, times, daemon_cpu, busy, replies_per_second } = row;
            let [median, p99, cpu] = [times.median, times.p99, *daemon_cpu].map(|seconds| seconds * 1e3);
            writeln!(
                f,
                "| {connections} | {median:.2} ms | {p99:.2} ms | {cpu:.2} ms | {busy:.2} | \
                {replies_per_second:.0} |"
            )?;
        }
        write!(f, "\nBeside the flood {ratio:.2} x the time without it.")
    }
}

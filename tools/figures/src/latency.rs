//! `sumac-figures latency`: the time of a small sum from worker to worker, and the parts of it.

use std::fmt;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, value_parser};
use serde::Serialize;
use sumac_client::{Job, JobOptions, OpOptions, Tensor, Timing};
use sumac_lab::clock::{Times, monotonic};
use sumac_lab::deployment::{Backend, Deployment, SumacOptions};
use sumac_lab::parallel::in_parallel;
use sumac_lab::{Lab, LabSpec, interrupt};

const EXAMPLES: &str = "\
Examples:
  sumac-figures latency
  sumac-figures latency --workers 4 --mtu 9000 --backends xdp --json

Each sum is timed by the worker whose packets leave last: they complete the sum, so that its parts have no
wait for another worker. Parts: submit (the call, to the daemon's reading of the command), wake (to the data
path's thread), send (to the first packets' leaving), network (to the wake-up for the last result: cables
and aggregator), receive (to the result in memory), notify (to the client's knowing it, by its socket or by
the completion word).
Exit codes: 0 all sums right, 1 wrong or failed, 2 wrong usage, 130 interrupted.";

/// The time after which a sum is given up.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Latency {
    /// Number of worker hosts
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u16).range(2..=32))]
    workers: u16,
    /// MTU of every interface
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Elements of each worker's tensor; by default those of one packet, and 1,024
    #[arg(long, value_delimiter = ',', value_parser = value_parser!(u32).range(1..))]
    elements: Vec<u32>,
    /// Measured sums of each size and kind
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u32).range(1..))]
    iterations: u32,
    /// Sums before them that are not measured
    #[arg(long, default_value_t = 20)]
    warmup: u32,
    /// Microseconds for which a client polls the completion word before it sleeps
    #[arg(long, default_value_t = 200, value_name = "MICROSECONDS")]
    spin: u64,
    /// The backends
    #[arg(long, value_enum, value_delimiter = ',', default_value = "xdp,udp")]
    backends: Vec<Backend>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The way in which a client learns of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Notice {
    /// The event on the socket.
    Event,
    /// The completion word, which it polls.
    Word,
}

/// A sum of one worker: its call's begin and its end in seconds, and the daemon's times in between.
#[derive(Clone, Copy, Debug)]
struct Sample {
    begin: f64,
    end: f64,
    timing: Timing,
}

impl Sample {
    /// The parts' names, in the order of [`Sample::parts`].
    const PARTS: [&str; 6] = ["submit", "wake", "send", "network", "receive", "notify"];

    fn parts(&self) -> [f64; 6] {
        let Timing { received_ns, taken_ns, sent_ns, arrived_ns, ended_ns } = self.timing;
        let daemon = [received_ns, taken_ns, sent_ns, arrived_ns, ended_ns].map(|ns| ns as f64 * 1e-9);
        let [received, taken, sent, arrived, ended] = daemon;
        [
            received - self.begin,
            taken - received,
            sent - taken,
            arrived - sent,
            ended - arrived,
            self.end - ended,
        ]
    }
}

#[derive(Debug, Serialize)]
struct Row {
    backend: &'static str,
    elements: u32,
    notice: Notice,
    /// Seconds from the call to the client's having the sum, of the worker that was last.
    last_s: Times,
    /// Seconds from the first worker's call to the last worker's having the sum.
    all_s: Times,
    /// Medians of the parts of `last_s`, in seconds, by name.
    parts_s: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Serialize)]
struct Report {
    workers: u16,
    mtu: u32,
    iterations: u32,
    rows: Vec<Row>,
}

impl Latency {
    pub fn run(self) -> Result<ExitCode> {
        let lab = Lab::up(LabSpec { mtu: self.mtu, ..LabSpec::new(self.workers) })?;
        let mut rows = Vec::new();
        for backend in &self.backends {
            let deployment =
                Deployment::start(&lab, &SumacOptions { backend: *backend, ..SumacOptions::default() })?;
            rows.extend(self.measure(&deployment, *backend)?);
        }
        lab.down()?;
        let report = Report { workers: self.workers, mtu: self.mtu, iterations: self.iterations, rows };
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{report}");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self, deployment: &Deployment<'_>, backend: Backend) -> Result<Vec<Row>> {
        let workers =
            (0..self.workers).map(|rank| Ok((rank, deployment.client(rank)?))).collect::<Result<Vec<_>>>()?;
        let start = Barrier::new(workers.len());
        let of_workers = in_parallel(workers, |(rank, client)| {
            let options = JobOptions::new("latency", rank, self.workers).timeout(LIMIT);
            let job = client.open(&deployment.in_its_mode(options));
            let job = job.map_err(|error| anyhow!("worker {rank}, joining the job: {error}"))?;
            let mut samples = Vec::new();
            for (elements, notice) in self.cases(&job) {
                let tensor = client.tensor::<f32>(elements as usize)?;
                let worker = Worker {
                    job: &job,
                    world: self.workers,
                    start: &start,
                    notice,
                    spin: Duration::from_micros(self.spin),
                };
                let measured = worker.measure(tensor, self.warmup, self.iterations);
                samples.push((elements, notice, measured.with_context(|| format!("worker {rank}"))?));
            }
            job.close()?;
            Ok(samples)
        })?;
        let cases = of_workers.first().map_or(0, Vec::len);
        Ok((0..cases).map(|case| Row::new(backend, &of_workers, case)).collect())
    }

    fn cases(&self, job: &Job) -> Vec<(u32, Notice)> {
        let packet = job.opened().elements.into();
        let sizes = if self.elements.is_empty() { vec![packet, 1024] } else { self.elements.clone() };
        sizes.into_iter().flat_map(|size| [(size, Notice::Event), (size, Notice::Word)]).collect()
    }
}

struct Worker<'a> {
    job: &'a Job,
    world: u16,
    start: &'a Barrier,
    notice: Notice,
    /// The time for which it polls before it sleeps.
    spin: Duration,
}

impl Worker<'_> {
    /// Comes to the barrier before every sum, also after an error: the other workers wait there.
    fn measure(&self, tensor: Tensor<f32>, warmup: u32, iterations: u32) -> Result<Vec<Sample>> {
        let (mut samples, mut state) = (Vec::new(), Ok(tensor));
        for iteration in 0..warmup + iterations {
            self.start.wait();
            state = state.and_then(|tensor| {
                interrupt::check()?;
                let (sample, tensor) = self.sum(tensor)?;
                samples.extend((iteration >= warmup).then_some(sample));
                Ok(tensor)
            });
        }
        state.map(|_| samples)
    }

    fn sum(&self, mut tensor: Tensor<f32>) -> Result<(Sample, Tensor<f32>)> {
        tensor.fill(1.0);
        let options = OpOptions { polled: self.notice == Notice::Word, timed: true, ..OpOptions::default() };
        let begin = monotonic();
        let mut pending = self.job.allreduce_with(tensor, options).map_err(|failed| anyhow!(failed.error))?;
        if self.notice == Notice::Word {
            let deadline = Instant::now() + self.spin;
            while !pending.is_ended() && Instant::now() < deadline {
                std::thread::yield_now();
            }
        }
        if !pending.is_ended() {
            pending.wait_timeout(LIMIT).map_err(|failed| anyhow!(failed.error))?;
        }
        let end = monotonic();
        // The message has the times.
        let is_ended = pending.wait_timeout(LIMIT).map_err(|failed| anyhow!(failed.error))?;
        ensure!(is_ended, "no result after {} s", LIMIT.as_secs());
        let timing = pending.timing().context("the daemon does not report the times of the steps")?;
        let tensor = pending.wait().map_err(|failed| anyhow!(failed.error))?;
        ensure!(tensor.iter().all(|sum| *sum == f32::from(self.world)), "a sum is wrong");
        Ok((Sample { begin, end, timing }, tensor))
    }
}

type OfWorker = Vec<(u32, Notice, Vec<Sample>)>;

impl Row {
    /// The `case`-th of all workers.
    fn new(backend: Backend, of_workers: &[OfWorker], case: usize) -> Row {
        let (elements, notice, ref first) = of_workers[0][case];
        let (mut last, mut all) = (Vec::new(), Vec::new());
        for number in 0..first.len() {
            let samples: Vec<Sample> = of_workers.iter().map(|cases| cases[case].2[number]).collect();
            let begin = samples.iter().map(|sample| sample.begin).fold(f64::INFINITY, f64::min);
            let end = samples.iter().map(|sample| sample.end).fold(0.0, f64::max);
            all.push(end - begin);
            last.extend(samples.into_iter().max_by_key(|sample| sample.timing.sent_ns));
        }
        let parts = Sample::PARTS.iter().enumerate().map(|(part, name)| {
            let times: Vec<f64> = last.iter().map(|sample| sample.parts()[part]).collect();
            ((*name).to_owned(), Times::of(&times).median.into())
        });
        Row {
            backend: backend.name(),
            elements,
            notice,
            last_s: Times::of(&last.iter().map(|sample| sample.end - sample.begin).collect::<Vec<_>>()),
            all_s: Times::of(&all),
            parts_s: parts.collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { workers, mtu, iterations, rows } = self;
        writeln!(f, "{workers} workers, MTU {mtu}, medians of {iterations} sums in microseconds")?;
        write!(f, "{:<8}{:>9}{:>8}", "backend", "elements", "end by")?;
        Sample::PARTS.iter().try_for_each(|part| write!(f, "{part:>9}"))?;
        writeln!(f, "{:>9}{:>9}{:>9}{:>9}{:>9}", "last", "p99", "all", "p99", "min")?;
        for row in rows {
            let notice = if row.notice == Notice::Event { "event" } else { "word" };
            write!(f, "{:<8}{:>9}{notice:>8}", row.backend, row.elements)?;
            for part in Sample::PARTS {
                let median = row.parts_s.get(part).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
                write!(f, "{:>9.1}", median * 1e6)?;
            }
            let Row { last_s, all_s, .. } = row;
            for time in [last_s.median, last_s.p99, all_s.median, all_s.p99, all_s.min] {
                write!(f, "{:>9.1}", time * 1e6)?;
            }
            writeln!(f)?;
        }
        write!(
            f,
            "last: of the worker whose packets left last; all: from the first worker's call to the last \
            one's sum"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole_and_of_the_worker_that_was_last() {
        let sample = |begin, sent_ns, end| Sample {
            begin,
            end,
            timing: Timing {
                received_ns: 2_000_000_000,
                taken_ns: 2_500_000_000,
                sent_ns,
                arrived_ns: 5_000_000_000,
                ended_ns: 5_500_000_000,
            },
        };
        let early = sample(0.5, 2_600_000_000, 6.5);
        let late = sample(1.0, 3_000_000_000, 6.0);
        assert_eq!(late.parts(), [1.0, 0.5, 0.5, 2.0, 0.5, 0.5]);
        let workers = [vec![(8, Notice::Word, vec![late])], vec![(8, Notice::Word, vec![early])]];
        let row = Row::new(Backend::Udp, &workers, 0);
        assert_eq!((row.last_s.median, row.all_s.median), (5.0, 6.0));
        let sum: f64 = row.parts_s.values().filter_map(serde_json::Value::as_f64).sum();
        assert_eq!((sum, row.parts_s["network"].as_f64()), (5.0, Some(2.0)));
    }
}

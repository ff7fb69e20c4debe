//! `sumac-figures exchange`: the distribution of an allreduce's time with and without a loss bound.
//!
//! Both jobs have the same daemons and aggregator, and sum in turns, so that whatever else the machine does
//! meets both. Gloo sums in the same lab before: attached XDP programs would be in the way of its TCP.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use sumac_client::Reduction;
use sumac_lab::capture::CaptureOptions;
use sumac_lab::clock::Times;
use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_lab::run::contents::Contents;
use sumac_lab::run::{Operation, RunOptions, Trainers};
use sumac_lab::units::{Probability, Rate};
use sumac_lab::{Faults, Lab, LabSpec, interrupt};

use super::straggler::Straggler;
use crate::compare::library::{Library, Ran};
use crate::compare::offloads::TcpOffloads;

const EXAMPLES: &str = "\
Examples:
  sumac-figures exchange --elements 65536 --gloo
  sumac-figures exchange --elements 1048576 --rate 100mbit --loss 0 --straggler none,slow,pauses --rounds 2 --iterations 3

Four workers, static mode with 64 slots: an exact mean of float32 and one with the loss bound, in turns.
Exit codes: 0 all sums right, 1 wrong or failed, 2 wrong usage, 130 interrupted.";

const SLOTS: u32 = 64;
/// A loss so small that cables exist, and lose nothing.
const HARDLY: Probability = Probability(1);
const LIMIT: Duration = Duration::from_secs(120);
/// Sums before the first measured one: the path's round trip is known then.
const WARMUP: u32 = 3;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Exchange {
    /// Elements of each worker's tensor
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
    elements: u32,
    /// Rounds over all cases, so that all of them meet what else the machine does
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measured allreduces of each job in each case of a round
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Parts of the frames lost in every direction of every cable: a case each
    #[arg(long, value_delimiter = ',', default_value = "0,0.01%,0.1%,1%")]
    loss: Vec<Probability>,
    /// Stragglers: a case each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "none")]
    straggler: Vec<Straggler>,
    /// The fraction of its elements that each worker may be left out with
    #[arg(long, default_value_t = 0.1)]
    loss_bound: f32,
    /// Rate of every cable, each way; by default as fast as the machine can
    #[arg(long)]
    rate: Option<Rate>,
    /// Measure Gloo too, where no worker is a straggler
    #[arg(long)]
    gloo: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    elements: u32,
    rate: Option<Rate>,
    loss_bound: f32,
    /// Whether all of Sumac was built without optimisation.
    debug_build: bool,
    #[serde(rename = "runs")]
    rows: Vec<Row>,
}

/// One job, or Gloo, in one case.
#[derive(Debug, Serialize)]
struct Row {
    loss: Probability,
    straggler: Straggler,
    contender: String,
    tat_s: Times,
    /// The median and the 99th percentile as multiples of those of the same contender in the first case.
    ratios: Option<(f64, f64)>,
    /// The mean fraction of the workers' elements that was left out.
    spent: f64,
    /// Seconds of each allreduce, from the first worker's start to the last one's sum, ascending.
    times_s: Vec<f64>,
}

impl Exchange {
    pub fn run(self) -> Result<ExitCode> {
        if self.straggler.contains(&Straggler::Slow) && self.rate.is_none() {
            bail!("--straggler slow: a tenth of which rate? Give --rate");
        }
        let faults = Faults { loss: HARDLY, ..Faults::default() };
        let lab = Lab::up(LabSpec { faults, rate: self.rate, ..LabSpec::new(4) })?;
        let mut rows = Vec::new();
        if self.gloo {
            self.gloo(&lab, &mut rows)?;
        }
        let sumac = SumacOptions { slots: Some(SLOTS), ..SumacOptions::default() };
        let deployment = Deployment::start(&lab, &sumac)?;
        let measured = self.sumac(&lab, &deployment, &mut rows);
        drop(deployment);
        measured?;
        lab.down()?;
        set_ratios(&mut rows);
        let Exchange { elements, rate, loss_bound, .. } = self;
        let report = Report { elements, rate, loss_bound, debug_build: cfg!(debug_assertions), rows };
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{report}");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn gloo(&self, lab: &Lab, rows: &mut Vec<Row>) -> Result<()> {
        TcpOffloads::default().set(lab)?;
        for loss in &self.loss {
            lose(lab, *loss)?;
            let options = RunOptions {
                lab: lab.spec().clone(),
                sumac: SumacOptions::default(),
                operation: Operation::sum(self.elements as usize),
                jobs: 1,
                iterations: self.rounds * self.iterations,
                warmup: WARMUP,
                seed: 1,
                limit: LIMIT,
                trace: false,
                captures: CaptureOptions::default(),
            };
            interrupt::check()?;
            match Library::Gloo.run(lab, &options)? {
                Ran::Measured(library, measured) => {
                    ensure!(measured.verified, "{library}: wrong sums");
                    rows.push(Row::new(*loss, Straggler::None, library, measured.times_s, 0.0));
                }
                Ran::Missing => bail!("Gloo is not installed: {}", Library::Gloo.install()),
            }
        }
        Ok(())
    }

    fn sumac(&self, lab: &Lab, deployment: &Deployment<'_>, rows: &mut Vec<Row>) -> Result<()> {
        let mean = Operation { reduction: Reduction::Mean, ..Operation::sum(self.elements as usize) };
        lose(lab, Probability(0))?;
        let join = |loss_bound, name| Trainers::join(deployment, name, Operation { loss_bound, ..mean });
        let mut jobs = [join(0.0, "exact")?, join(self.loss_bound, "bounded")?];
        let mut measured = vec![Default::default(); self.loss.len() * self.straggler.len()];
        for _ in 0..self.rounds {
            let mut cases = measured.iter_mut();
            for loss in &self.loss {
                lose(lab, *loss)?;
                for (straggler, measured) in self.straggler.iter().zip(&mut cases) {
                    straggler.beside(lab, deployment, || self.turns(&mut jobs, measured))?;
                }
            }
        }
        let cases =
            self.loss.iter().flat_map(|loss| self.straggler.iter().map(move |straggler| (*loss, *straggler)));
        for ((loss, straggler), jobs) in cases.zip(measured) {
            for (bound, (times, spent)) in [0.0, self.loss_bound].into_iter().zip(jobs) {
                let contender = format!("p = {} %", (f64::from(bound) * 1e4).round() / 100.0);
                let spent = spent / times.len() as f64;
                rows.push(Row::new(loss, straggler, contender, times, spent));
            }
        }
        jobs.into_iter().try_for_each(Trainers::leave)
    }

    /// Lets the jobs sum in turns, and adds for each its times and the fractions that were left out.
    fn turns(&self, jobs: &mut [Trainers<f32>; 2], measured: &mut [(Vec<f64>, f64); 2]) -> Result<()> {
        let contents = Contents { seed: 1, iteration: 0 };
        for turn in 0..WARMUP + self.iterations {
            for (trainers, (times, spent)) in jobs.iter_mut().zip(measured.iter_mut()) {
                interrupt::check()?;
                if turn == 0 {
                    trainers.fill(contents)?;
                }
                // A mean in place of a mean: the values stay in range.
                let (start, end) = trainers.operate(LIMIT)?;
                if turn == 0 {
                    ensure!(trainers.compare(contents)?.wrong == 0, "wrong sums");
                }
                if turn >= WARMUP {
                    times.push(end - start);
                    *spent += trainers.loss().map_or(0.0, |loss| {
                        let all = loss.elements as f64 * loss.by_worker.len() as f64;
                        loss.by_worker.iter().sum::<u64>() as f64 / all
                    });
                }
            }
        }
        Ok(())
    }
}

/// Has all cables lose this part of the frames.
fn lose(lab: &Lab, loss: Probability) -> Result<()> {
    lab.cables().iter().try_for_each(|cable| cable.set_faults(Faults { loss, ..Faults::default() }))
}

fn set_ratios(rows: &mut [Row]) {
    let firsts: Vec<(String, Times)> = rows.iter().map(|row| (row.contender.clone(), row.tat_s)).collect();
    for row in rows {
        let first = firsts.iter().find(|(contender, _)| *contender == row.contender);
        row.ratios = first.map(|(_, times)| (row.tat_s.median / times.median, row.tat_s.p99 / times.p99));
    }
}

impl Row {
    fn new(
        loss: Probability,
        straggler: Straggler,
        contender: String,
        mut times: Vec<f64>,
        spent: f64,
    ) -> Row {
        times.sort_by(f64::total_cmp);
        let tat_s = Times::of(&times);
        // More digits are noise.
        times.iter_mut().for_each(|time| *time = (*time * 1e5).round() / 1e5);
        Row { loss, straggler, contender, tat_s, ratios: None, spent, times_s: times }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let build = if self.debug_build { "debug build" } else { "release build" };
        writeln!(f, "{} float32 elements, 4 workers, {SLOTS} slots, {build}\n", self.elements)?;
        writeln!(
            f,
            "| loss | straggler | | median | p99 | longest | median, p99 to the first case | left out |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- | --- |")?;
        for row in &self.rows {
            let Row { loss, straggler, contender, tat_s, ratios, spent, .. } = row;
            let [median, p99, max] = [tat_s.median, tat_s.p99, tat_s.max].map(|seconds| seconds * 1e3);
            let ratios = ratios.map_or_else(String::new, |(median, p99)| format!("{median:.2}, {p99:.2}"));
            let straggler = format!("{straggler:?}").to_lowercase();
            writeln!(
                f,
                "| {loss} | {straggler} | {contender} | {median:.1} ms | {p99:.1} ms | {max:.1} ms | \
                {ratios} | {:.2} % |",
                spent * 100.0
            )?;
        }
        Ok(())
    }
}

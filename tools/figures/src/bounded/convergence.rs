//! `sumac-figures convergence`: trainings over a lab whose cables lose data, within loss bounds (MLT's
//! figures 3, 4 and 18).
//!
//! Jobs are direct ones with block owners. What is missing was lost by the cables, or cut off by the stop
//! that follows when all but the bound has arrived: nothing is set to zero by the trainers.

use std::fmt;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use sumac_lab::cable::Lossy;
use sumac_lab::demo::{Trained, check_python, train};
use sumac_lab::deployment::{Deployment, DirectOptions, SumacOptions};
use sumac_lab::units::Probability;
use sumac_lab::{Faults, Lab, LabSpec, interrupt};

const EXAMPLES: &str = "\
Examples:
  sumac-figures convergence --data digits
  sumac-figures convergence --data breast-cancer --epochs 10 --bounds 0,0.1

For each bound p two trainings: cables that lose the part p of all data packets, and cables that lose 4 p,
at most half, of those without the mark of importance. Chunks have it from the median magnitude of their
tensor on, most of them here.
Exit codes: 0 trained, 1 failed, 2 wrong usage, 130 interrupted.";

/// Words of a packet: a hundredth of a block of the small networks is a packet at least.
const CHUNK: u16 = 32;
/// Unimportant packets lose this much more than all: they are fewer.
const UNIMPORTANT: f32 = 4.0;
/// The largest loss: where more is unimportant than may be lost, packets that are sent again must arrive
/// soon.
const MOST: f32 = 0.5;
/// A training has converged with the first epoch whose accuracy is this close to the best one without loss.
const CLOSE: f64 = 0.01;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Convergence {
    /// Data set and network: digits or breast-cancer
    #[arg(long, default_value = "digits")]
    data: String,
    /// Passes over the training data
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Loss bounds
    #[arg(long, value_delimiter = ',', default_value = "0,0.01,0.1,0.2,0.3")]
    bounds: Vec<f32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The choice of the packets that cables lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Dropping {
    None,
    Random,
    Selective,
}

#[derive(Debug, Serialize)]
struct Report {
    data: String,
    workers: u16,
    /// Words of a packet.
    chunk: u16,
    #[serde(rename = "runs")]
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    bound: f32,
    dropping: Dropping,
    /// The part of the values on the way that did not arrive, by the completions.
    lost: f64,
    /// Frames that the cables lost, and all frames.
    frames_lost: u64,
    frames: u64,
    /// The accuracy on the test data after each epoch, the mean of all workers'.
    accuracy: Vec<f64>,
    /// The first epoch whose accuracy is within 1 % of the best one of the first training; none: no epoch.
    converged: Option<usize>,
    /// Whether all workers ended with the same weights.
    equal: bool,
}

impl Convergence {
    pub fn run(self) -> Result<ExitCode> {
        check_python()?;
        // A loss so small that cables exist, and lose nothing.
        let faults = Faults { loss: Probability(1), ..Faults::default() };
        let lab = Lab::up(LabSpec { faults, ..LabSpec::new(4) })?;
        let direct = Some(DirectOptions::default());
        let deployment = Deployment::start(&lab, &SumacOptions { direct, ..SumacOptions::default() })?;
        let rows = self.trainings(&lab, &deployment);
        drop(deployment);
        let rows = rows?;
        lab.down()?;
        let report = Report { data: self.data, workers: 4, chunk: CHUNK, rows };
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{report}");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn trainings(&self, lab: &Lab, deployment: &Deployment<'_>) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = Vec::new();
        for bound in &self.bounds {
            let both = [Dropping::Random, Dropping::Selective];
            let droppings = if *bound == 0.0 { &[Dropping::None][..] } else { &both[..] };
            for dropping in droppings {
                interrupt::check()?;
                let mut row = self.train(lab, deployment, *bound, *dropping)?;
                let best = rows.first().unwrap_or(&row).accuracy.iter().copied().fold(0.0, f64::max);
                row.converged =
                    row.accuracy.iter().position(|accuracy| *accuracy >= best - CLOSE).map(|at| at + 1);
                rows.push(row);
            }
        }
        Ok(rows)
    }

    fn train(&self, lab: &Lab, deployment: &Deployment<'_>, bound: f32, dropping: Dropping) -> Result<Row> {
        let millionths = |part: f32| Probability((part.min(MOST) * 1e6) as u32);
        let (loss, lossy) = match dropping {
            Dropping::None => (Probability(0), Lossy::Data),
            Dropping::Random => (millionths(bound), Lossy::Data),
            Dropping::Selective => (millionths(UNIMPORTANT * bound), Lossy::Unimportant),
        };
        lab.cables().iter().try_for_each(|cable| cable.lose(loss, lossy))?;
        let job = format!("{}-{bound}-{dropping:?}", self.data);
        let arguments = [
            "--data",
            &self.data,
            "--mode",
            "direct",
            "--loss-bound",
            &bound.to_string(),
            "--job",
            &job,
            "--elements",
            &CHUNK.to_string(),
        ];
        let all = train(deployment, self.epochs, &arguments)?;
        // The counters began with the cables' new rules.
        let injected = lab.injected()?;
        let epochs = self.epochs as usize;
        ensure!(all.iter().all(|one| one.epochs.len() == epochs), "a trainer ended early");
        let mean = |of: &dyn Fn(&Trained) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        let lost = |one: &Trained| {
            one.epochs.iter().filter_map(|epoch| epoch.lost).fold(0.0, |sum, lost| sum + lost) / epochs as f64
        };
        Ok(Row {
            bound,
            dropping,
            lost: mean(&lost),
            frames_lost: injected.up.lost + injected.down.lost,
            frames: injected.up.frames + injected.down.frames,
            accuracy: (0..epochs).map(|at| mean(&|one| one.epochs[at].accuracy)).collect(),
            converged: None,
            equal: all.iter().all(|one| one.weights_sha256 == all[0].weights_sha256),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, {} workers, direct mode, packets of {} words\n",
            self.data, self.workers, self.chunk
        )?;
        writeln!(
            f,
            "| p | dropping | values lost | frames lost | accuracy | epochs to within 1 % | equal replicas |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- |")?;
        for row in &self.rows {
            let Row { bound, dropping, lost, frames_lost, frames, accuracy, converged, equal } = row;
            let dropping = format!("{dropping:?}").to_lowercase();
            let (last, converged) =
                (accuracy.last().copied().unwrap_or(0.0), converged.map_or("-".into(), |at| at.to_string()));
            let frames = *frames_lost as f64 / (*frames).max(1) as f64;
            let equal = if *equal { "yes" } else { "no" };
            writeln!(
                f,
                "| {:.0} % | {dropping} | {:.1} % | {:.1} % | {:.1} % | {converged} | {equal} |",
                bound * 100.0,
                lost * 100.0,
                frames * 100.0,
                last * 100.0
            )?;
        }
        Ok(())
    }
}

//! The trainings: in one process, and by one trainer per worker.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::options::DemoOptions;
use super::results::Trained;
use super::story;
use crate::checkout::script;
use crate::command;
use crate::deployment::Deployment;
use crate::process::Process;
use crate::units::Probability;

/// Debian's Python, which has Debian's packages.
pub(super) const PYTHON: &str = "/usr/bin/python3";

/// The timeout of one training. It takes seconds, but machines differ.
const LIMIT: Duration = Duration::from_secs(600);

/// Checks that Python has what the trainers need.
pub fn check_python() -> Result<()> {
    let mut import = Command::new(PYTHON);
    import.args(["-c", "import numpy, sklearn.datasets"]);
    command::output(&mut import).map(|_| ()).map_err(|error| {
        let text = error.to_string();
        let why = text.lines().last().unwrap_or_default();
        anyhow!(
            "the trainers need numpy and scikit-learn's digits in {PYTHON}: {why}; apt-get install \
            python3-numpy python3-sklearn"
        )
    })
}

/// Trains in one process, `how` being `--single` (with the integers of all workers) or `--plain` (with
/// floats), and what else `train.py` is told.
pub(super) fn alone(folder: &Path, options: &DemoOptions, how: &[&str]) -> Result<Trained> {
    let out = folder.join("alone.json");
    let mut train = trainer(options, &out)?;
    command::output(train.args(how))?;
    read(&out)
}

/// Trains with one trainer per worker, prints the first one's progress beside that of `single`, and returns
/// all results.
pub(super) fn together(
    deployment: &Deployment<'_>,
    options: &DemoOptions,
    single: &Trained,
    arguments: &[&str],
) -> Result<Vec<Trained>> {
    let lab = deployment.lab();
    let (mut trainers, outs) = start(deployment, options, |rank, train| {
        lab.start_piped(lab.worker(rank), &format!("trainer{rank}"), train.args(arguments))
    })?;
    let speakers: Vec<_> = trainers
        .iter_mut()
        .filter_map(Process::take_stdout)
        .zip(0..)
        .map(|(out, rank)| {
            let single = single.clone();
            std::thread::spawn(move || speak(out, rank, &single))
        })
        .collect();
    for trainer in &mut trainers {
        trainer.wait_success("the end of its training", LIMIT)?;
    }
    for speaker in speakers {
        // It ends with the trainer's output; what it could not print is no reason to fail.
        let _ = speaker.join();
    }
    outs.iter().map(|out| read(out)).collect()
}

/// Trains with one trainer per worker, with these further arguments of `train.py`, and returns all results.
pub fn train(deployment: &Deployment<'_>, epochs: u32, arguments: &[&str]) -> Result<Vec<Trained>> {
    let lab = deployment.lab();
    let options =
        DemoOptions { workers: lab.spec().workers, epochs, loss: Probability::default(), p4: false };
    let (mut trainers, outs) = start(deployment, &options, |rank, train| {
        lab.start(lab.worker(rank), &format!("trainer{rank}"), train.args(arguments))
    })?;
    for trainer in &mut trainers {
        trainer.wait_success("the end of its training", LIMIT)?;
    }
    outs.iter().map(|out| read(out)).collect()
}

/// Starts one trainer per worker by `spawn`. Returns them and the files of their results.
fn start(
    deployment: &Deployment<'_>,
    options: &DemoOptions,
    spawn: impl Fn(u16, &mut Command) -> Result<Process>,
) -> Result<(Vec<Process>, Vec<PathBuf>)> {
    let folder = deployment.lab().folder();
    let outs: Vec<PathBuf> =
        (0..options.workers).map(|rank| folder.join(format!("trained{rank}.json"))).collect();
    let mut trainers = Vec::new();
    for (rank, out) in (0..options.workers).zip(&outs) {
        let mut train = trainer(options, out)?;
        train.args(["--rank", &rank.to_string(), "--socket"]).arg(deployment.socket(rank));
        train.arg("--secret-file").arg(deployment.secret_file());
        trainers.push(spawn(rank, &mut train)?);
    }
    Ok((trainers, outs))
}

/// Prints the first trainer's lines, each with the accuracy that one process had then; the others say nothing
/// new.
fn speak(out: ChildStdout, rank: u16, single: &Trained) {
    let mut epochs = single.epochs.iter();
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if rank == 0 && line.starts_with("epoch ") {
            story::epoch(&line, epochs.next());
        }
    }
}

fn trainer(options: &DemoOptions, out: &Path) -> Result<Command> {
    let mut train = Command::new(PYTHON);
    // No caches of compiled Python in the checkout: the demo leaves nothing behind.
    train.arg("-B").arg(script("demo/train.py")?);
    train.args(["--world", &options.workers.to_string(), "--epochs", &options.epochs.to_string(), "--out"]);
    train.arg(out);
    Ok(train)
}

fn read(path: &Path) -> Result<Trained> {
    let what = || format!("reading the result of a training, {}", path.display());
    let text = std::fs::read_to_string(path).with_context(what)?;
    serde_json::from_str(&text).with_context(what)
}

//! A trainer that sums without end and checks every sum, as a process that can be killed.

use std::io::Write;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};
use sumac_client::{Client, ClientError, Code, Failed, Job, JobOptions, Mode, Pending, Reduction, Tensor};

use crate::clock::monotonic;
use crate::options::by_name;
use crate::run::contents::Contents;
use crate::run::reference_sum::ReferenceSum;

/// The time for all ranks to join: the orchestrator starts a killed process within it.
const JOIN_LIMIT: Duration = Duration::from_secs(30);

/// The pause before a failed connection or job is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// The options of a trainer.
#[derive(Clone, Debug, Args)]
pub struct TrainerOptions {
    #[arg(long)]
    pub socket: PathBuf,
    #[arg(long)]
    pub job: String,
    #[arg(long)]
    pub rank: u16,
    #[arg(long)]
    pub world: u16,
    #[arg(long, value_parser = by_name::<Mode>)]
    pub mode: Mode,
    /// Parameter hosts of a dynamic job
    #[arg(long, default_value_t = 1)]
    pub parameter_hosts: u16,
    #[arg(long)]
    pub elements: usize,
    #[arg(long)]
    pub seed: u64,
}

/// One line of a trainer's output. Times are of the clock that all processes share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The job is open.
    Opened { at: f64, epoch: u16 },
    /// A sum arrived; `wrong` elements have other bits than the reference.
    Sum { at: f64, wrong: u64 },
    /// A call failed.
    Failed { at: f64, doing: Doing, code: Option<Code>, ranks: Vec<u16>, message: String },
}

/// The call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    Connect,
    Open,
    Sum,
}

/// Sums until the orchestrator closes the standard output.
pub fn train(options: &TrainerOptions) -> Result<()> {
    loop {
        match Client::connect(&options.socket) {
            Ok(client) => serve(options, &client)?,
            Err(error) => say(&failed(Doing::Connect, &error))?,
        }
        sleep(RETRY);
    }
}

/// Opens one job after the other until the connection is lost.
fn serve(options: &TrainerOptions, client: &Client) -> Result<()> {
    let mut spec = JobOptions::new(&options.job, options.rank, options.world).timeout(JOIN_LIMIT);
    spec = spec.mode(options.mode);
    if options.mode == Mode::Dynamic {
        spec = spec.parameter_hosts(options.parameter_hosts);
    }
    loop {
        let (doing, error) = match client.open(&spec) {
            Err(error) => (Doing::Open, error),
            Ok(job) => {
                say(&Event::Opened { at: monotonic(), epoch: job.opened().epoch })?;
                let error = sum(options, client, &job)?;
                // Returns the job's own error once more; the job's memory in the daemon goes with it.
                let _ = job.close();
                (Doing::Sum, error)
            }
        };
        say(&failed(doing, &error))?;
        if matches!(error, ClientError::Lost(_) | ClientError::Socket(_)) {
            return Ok(());
        }
        sleep(RETRY);
    }
}

/// Sums until an operation fails; returns its error.
fn sum(options: &TrainerOptions, client: &Client, job: &Job) -> Result<ClientError> {
    let opened = job.opened();
    let reference = ReferenceSum::of(opened, Reduction::default(), 0.0);
    let mut tensor: Tensor<f32> = match client.tensor(options.elements) {
        Ok(tensor) => tensor,
        Err(error) => return Ok(error),
    };
    // All ranks know the job's incarnation, and a value of an earlier one is wrong.
    let incarnation = u64::from(opened.epoch) << 16 | u64::from(opened.wire_job);
    let seed = options.seed ^ incarnation.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for iteration in 0.. {
        let contents = Contents { seed, iteration };
        contents.fill(options.rank, &mut tensor);
        tensor = match job.allreduce(tensor).and_then(Pending::wait) {
            Ok(tensor) => tensor,
            Err(failed) => {
                let Failed { error, .. } = *failed;
                return Ok(error);
            }
        };
        let compared = contents.compare_of(options.world, reference, 0..options.elements, &[&tensor]);
        say(&Event::Sum { at: monotonic(), wrong: compared.wrong })?;
    }
    unreachable!("the iterations are endless")
}

fn failed(doing: Doing, error: &ClientError) -> Event {
    let (code, ranks) = match error {
        ClientError::Daemon(failure) => (Some(failure.code), failure.ranks.clone()),
        _ => (None, Vec::new()),
    };
    Event::Failed { at: monotonic(), doing, code, ranks, message: error.to_string() }
}

fn say(event: &Event) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, event)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

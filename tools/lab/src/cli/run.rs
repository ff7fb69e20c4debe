//! `sumac-lab run`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sumac_lab::deployment::{Backend, SumacOptions};
use sumac_lab::run::{RunOptions, run};

use super::options::LabOptions;

const EXAMPLES: &str = "\
Examples:
  sumac-lab run --workers 4 --elements 25000000
  sumac-lab run --workers 4 --elements 2500000 --rate 100mbit --loss 1% --json
  sumac-lab run --workers 8 --topology one-arm --elements 1000000 --backend udp

Values come from --seed and are the same in every run; which frames the cables lose is not, as nftables takes no seed.
Exit codes: 0 verified, 1 not verified or failed, 2 wrong usage, 130 interrupted.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    #[command(flatten)]
    lab: LabOptions,
    /// Elements of each worker's float32 tensor
    #[arg(long, default_value_t = 1_000_000)]
    elements: usize,
    /// What moves and adds the packets
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Elements per chunk
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=832))]
    chunk: u16,
    /// Slots of the job, a power of two; by default as many as the topology's veths bear
    #[arg(long)]
    slots: Option<u32>,
    /// Measured allreduces
    #[arg(long, default_value_t = 5)]
    iterations: u32,
    /// Allreduces before them, verified and not measured
    #[arg(long, default_value_t = 1)]
    warmup: u32,
    /// What makes the tensors' values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What floats are multiplied with before they are rounded
    #[arg(long, default_value_t = 1_048_576.0)]
    scale: f32,
    /// Send contributions without UDP checksum
    #[arg(long)]
    no_checksum: bool,
    /// Seconds after which an allreduce is given up
    #[arg(long, default_value_t = 120)]
    timeout: u64,
    /// Count what worker 0 sends in each 10 ms of the allreduce nearest to the median; told with --json
    #[arg(long)]
    trace: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Run {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let options = RunOptions {
            lab: self.lab.spec(),
            sumac: SumacOptions {
                backend: self.backend,
                chunk: self.chunk,
                slots: self.slots,
                scale: self.scale,
                checksum: !self.no_checksum,
            },
            elements: self.elements,
            iterations: self.iterations,
            warmup: self.warmup,
            seed: self.seed,
            limit: Duration::from_secs(self.timeout),
            trace: self.trace,
        };
        let report = run(&options)?;
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{report}");
        }
        Ok(if report.verified { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

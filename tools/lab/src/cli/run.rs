//! `sumac-lab run`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, value_parser};
use sumac_client::{DType, Reduction};
use sumac_lab::deployment::Backend;
use sumac_lab::run::{Operation, RunOptions, run};

use sumac_lab::options::{LabOptions, SumacArguments, dtype, reduction};

/// Jobs of one run: each has trainers' threads and tensors for all workers in this one process.
const MOST_JOBS: u16 = 16;

const EXAMPLES: &str = "\
Examples:
  sumac-lab run --workers 4 --elements 25000000
  sumac-lab run --workers 4 --elements 2500000 --rate 100mbit --loss 1% --json
  sumac-lab run --racks 2 --workers-per-rack 4 --dtype bfloat16 --op mean --aggregator-drop 0.1%
  sumac-lab run --workers 2 --queues 2 --mtu 9000 --elements 25000000
  sumac-lab run --workers 8 --topology one-arm --elements 1000000 --backend udp
  sumac-lab run --workers 4 --mode dynamic --slots 256 --rate 100mbit
  sumac-lab run --workers 4 --mode dynamic --jobs 4 --slots 512
  sumac-lab run --mode dynamic --racks 2 --workers-per-rack 2 --beside-root 2

Values come from --seed and are the same in every run; which frames the cables lose is not, as nftables takes no seed.
Exit codes: 0 verified, 1 not verified or failed, 2 wrong usage, 130 interrupted.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    #[command(flatten)]
    lab: LabOptions,
    #[command(flatten)]
    sumac: SumacArguments,
    /// Elements of each worker's tensor
    #[arg(long, default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1..))]
    elements: u32,
    /// Their type: float32, float16, bfloat16 or int32
    #[arg(long, value_parser = dtype, default_value = "float32")]
    dtype: DType,
    /// The reduction of the workers' values: sum, mean, min or max
    #[arg(long = "op", value_parser = reduction, default_value = "sum")]
    reduction: Reduction,
    /// Jobs that sum at the same time over the same aggregators, each with all workers and a tensor of its own
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u16).range(1..=i64::from(MOST_JOBS)))]
    jobs: u16,
    /// The backend and the kind of aggregator
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Measured allreduces
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..))]
    iterations: u32,
    /// Allreduces before them, verified and not measured
    #[arg(long, default_value_t = 1)]
    warmup: u32,
    /// The seed of the tensors' values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds after which an allreduce is given up
    #[arg(long, default_value_t = 120, value_parser = value_parser!(u64).range(1..))]
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
            sumac: self.sumac.sumac(self.backend, &self.lab),
            operation: Operation {
                elements: self.elements as usize,
                dtype: self.dtype,
                reduction: self.reduction,
                wire: self.sumac.wire,
            },
            jobs: self.jobs,
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

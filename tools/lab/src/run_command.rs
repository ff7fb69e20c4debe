//! `sumac-lab run`.

use clap::{Args, value_parser};
use sumac_client::{DType, Reduction};
use sumac_lab::Topology;
use sumac_lab::capture::CaptureOptions;
use sumac_lab::deployment::{Aggregator, Backend, DynamicOptions, MODEL_SHARED_SLOTS};
use sumac_lab::options::{MeasureArguments, by_name, refuse};
use sumac_lab::run::{RunOptions, run};

/// Jobs of one run: each has trainers' threads and tensors for all workers in this one process.
const MOST_JOBS: u16 = 16;

const EXAMPLES: &str = "\
Examples:
  sumac-lab run --workers 4 --elements 25000000
  sumac-lab run --workers 4 --elements 2500000 --rate 100mbit --loss 1% --json
  sumac-lab run --workers 4 --loss 1% --loss-bound 0.1 --json
  sumac-lab run --workers 2 --ranks-per-host 4 --elements 25000000
  sumac-lab run --racks 2 --workers-per-rack 4 --dtype bfloat16 --op mean --aggregator-drop 0.1%
  sumac-lab run --racks 4 --levels 3 --workers-per-rack 2 --loss 1%
  sumac-lab run --workers 2 --queues 2 --mtu 9000 --elements 25000000
  sumac-lab run --workers 8 --topology one-arm --elements 1000000 --backend udp
  sumac-lab run --workers 4 --mode dynamic --slots 256 --rate 100mbit
  sumac-lab run --workers 4 --mode dynamic --jobs 4 --slots 512
  sumac-lab run --workers 2 --elements 20000 --aggregator bmv2
  sumac-lab run --workers 4 --mode direct --collective ring --loss 1% --loss-bound 0.1
  sumac-lab run --workers 4 --mode direct --collective reduce-scatter --elements 4000000
  sumac-lab run --workers 2 --elements 20000 --loss 1% --pcap captures
  sumac-lab run --mode dynamic --racks 2 --workers-per-rack 2 --beside-root 2

Values come from --seed and are the same in every run; which frames the cables lose is not, as nftables
takes no seed.
Exit codes: 0 verified, 1 not verified or failed, 2 wrong usage, 130 interrupted.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    #[command(flatten)]
    measure: MeasureArguments,
    /// The type of elements: float32, float16, bfloat16 or int32
    #[arg(long, value_parser = by_name::<DType>, default_value = "float32")]
    dtype: DType,
    /// The reduction of the workers' values: sum, mean, min or max
    #[arg(long = "op", value_parser = by_name::<Reduction>, default_value = "sum")]
    reduction: Reduction,
    /// The fraction of its elements that each worker may be left out with, 0 to 1: sums
    /// and means of floats in static and direct mode, and allgathers in direct mode
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0)]
    loss_bound: f32,
    /// Jobs that sum at the same time over the same aggregators, each with all workers and a tensor of its
    /// own
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u16).range(1..=i64::from(MOST_JOBS)))]
    jobs: u16,
    /// The backend and the kind of aggregator
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// The kind of aggregator; by default the backend's
    #[arg(long, value_enum)]
    aggregator: Option<Aggregator>,
    /// The seed of the tensors' values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    captures: CaptureOptions,
}

impl Run {
    /// Runs, reports, and returns whether the sums were right.
    pub fn run(&self) -> anyhow::Result<bool> {
        let mut options = self.measure.options(self.backend());
        options.sumac.on_model = self.aggregator == Some(Aggregator::Bmv2);
        if options.sumac.on_model {
            refuse_without_model(&options);
            if let Some(dynamic) = &mut options.sumac.dynamic {
                dynamic.slots = MODEL_SHARED_SLOTS;
            }
        }
        (options.operation.dtype, options.operation.reduction) = (self.dtype, self.reduction);
        (options.jobs, options.seed) = (self.jobs, self.seed);
        options.operation.loss_bound = self.loss_bound;
        options.captures = self.captures.clone();
        if options.captures.folder.is_some() && options.lab.topology == Topology::Loopback {
            refuse(
                "--pcap: a lab over loopback has no cables; capture on lo instead, as root: dumpcap -i lo",
            );
        }
        let report = run(&options)?;
        if self.measure.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{report}");
        }
        Ok(report.verified)
    }

    /// The backend with the kind of aggregator that was asked for.
    fn backend(&self) -> Backend {
        match (self.backend, self.aggregator) {
            (Backend::Udp, Some(Aggregator::Ebpf)) => Backend::Mixed,
            (Backend::Xdp | Backend::Mixed, Some(Aggregator::Host)) => {
                refuse("--aggregator host: the process takes packets of UDP sockets: add --backend udp")
            }
            (backend, _) => backend,
        }
    }
}

/// Refuses what the behavioural model does not have.
fn refuse_without_model(options: &RunOptions) {
    if !options.sumac.has_aggregator() {
        refuse("--aggregator bmv2: jobs without an aggregator do not use one");
    }
    if options.lab.topology == Topology::Loopback {
        refuse("--aggregator bmv2: a switch has ports, and a lab over loopback has none");
    }
    if options.sumac.dynamic.is_some_and(|dynamic| dynamic.slots != DynamicOptions::default().slots) {
        refuse(
            "--aggregator bmv2: the slots of dynamic jobs are compiled into its program: leave out --slots",
        );
    }
}

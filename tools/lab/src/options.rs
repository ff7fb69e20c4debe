//! Options that describe a lab and Sumac in it, shared by the verbs that build one.

use std::time::Duration;

use crate::capture::CaptureOptions;
use crate::deployment::{Backend, DirectOptions, DynamicOptions, SumacOptions};
use crate::marking::DEFAULT_THRESHOLD_KB;
use crate::run::{Operation, RunOptions};
use crate::spec::{LabSpec, PARAMETER_HOSTS};
use clap::error::ErrorKind;
use clap::{Args, value_parser};
use serde::de::DeserializeOwned;
use sumac_client::{Mode, WireFormat};

/// The lab's options.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Lab")]
pub struct LabOptions {
    #[command(flatten)]
    lab: LabSpec,
    /// Number of worker hosts in each rack
    #[arg(long, requires = "racks")]
    workers_per_rack: Option<u16>,
    /// The use of the aggregator's slots: static, owned by a job, or dynamic, shared by all; direct: none
    #[arg(long, value_parser = by_name::<Mode>, default_value = "static")]
    mode: Mode,
    /// Have static jobs yield to congestion, as dynamic and direct ones do
    #[arg(long = "congestion-control")]
    yields: bool,
    /// Parameter hosts of dynamic jobs, 1 to 4 and at most as many as queues, each a host of its own; by
    /// default 1
    #[arg(long, value_name = "HOSTS",
        value_parser = value_parser!(u16).range(1..=i64::from(PARAMETER_HOSTS)))]
    parameter_hosts: Option<u16>,
    /// Have the first workers be the parameter hosts too; with --racks the first ones beside the root
    #[arg(long)]
    co_located: bool,
}

impl LabOptions {
    /// The lab that these options ask for. One that cannot be ends the program, as clap does for wrong
    /// arguments.
    pub fn spec(&self) -> LabSpec {
        let is_dynamic = self.mode == Mode::Dynamic;
        if !is_dynamic {
            refuse_what_is_dynamic(&[
                ("--parameter-hosts", self.parameter_hosts.is_some()),
                ("--co-located", self.co_located),
                ("--beside-root", self.lab.beside_root > 0),
            ]);
        }
        if is_dynamic && self.lab.levels == 3 {
            refuse("--levels 3 is for static jobs: dynamic ones have two levels of aggregators");
        }
        let (hosts, mut spec) = (self.hosts(), self.lab.clone());
        if let Some(each) = self.workers_per_rack {
            // More than there can be is told when the specification is checked.
            spec.workers = spec.racks.saturating_mul(each).saturating_add(spec.beside_root);
        }
        spec.parameter_hosts = if is_dynamic && !self.co_located { hosts } else { 0 };
        if self.yields && self.mode != Mode::Static {
            refuse("--congestion-control is for static jobs: others have it");
        }
        let default = (is_dynamic || self.yields).then_some(DEFAULT_THRESHOLD_KB);
        // Without a rate there is no shaper, and nothing that marks.
        spec.ecn_threshold_kb =
            spec.rate.and(spec.ecn_threshold_kb.or(default)).filter(|threshold| *threshold > 0);
        if let Err(error) = spec.check() {
            refuse(&error.to_string());
        }
        let beside = spec.root_ranks().len();
        if hosts > spec.queues {
            refuse(&format!(
                "--parameter-hosts {hosts}: each sums for whole shards, and there is one for each queue: add \
                --queues {hosts}"
            ));
        }
        if self.co_located && usize::from(hosts) > beside {
            refuse(&format!(
                "--co-located: {hosts} parameter hosts, but {beside} workers on the only aggregator or the \
                root (--workers, --beside-root)"
            ));
        }
        spec
    }

    /// Returns the number of a dynamic job's parameter hosts.
    fn hosts(&self) -> u16 {
        self.parameter_hosts.unwrap_or(1)
    }
}

/// Ends the program, as clap does for arguments that do not go together.
pub fn refuse(why: &str) -> ! {
    clap::Error::raw(ErrorKind::ArgumentConflict, format!("{why}\n")).exit()
}

/// The same when one of these was given to a static job.
fn refuse_what_is_dynamic(options: &[(&str, bool)]) {
    if let Some((name, _)) = options.iter().find(|(_, given)| *given) {
        refuse(&format!("{name} is for dynamic jobs: add --mode dynamic"));
    }
}

/// Sumac's options in the lab.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sumac")]
struct SumacArguments {
    #[command(flatten)]
    sumac: SumacOptions,
    #[command(flatten)]
    dynamic: DynamicOptions,
    #[command(flatten)]
    direct: DirectOptions,
    /// The wire format of floats: int32, or int16 for half the bytes and a larger error
    #[arg(long, value_parser = by_name::<WireFormat>, default_value = "int32")]
    wire: WireFormat,
}

impl SumacArguments {
    /// Sumac as these options ask for, in this lab.
    fn sumac(&self, backend: Backend, lab: &LabOptions) -> SumacOptions {
        let SumacArguments { sumac, dynamic, .. } = self;
        if self.wire == WireFormat::Auto {
            refuse("--wire auto depends on the type: choose int32 or int16");
        }
        if lab.mode != Mode::Direct && self.direct != DirectOptions::default() {
            refuse("--collective, --owners and --servers are for direct jobs: add --mode direct");
        }
        if lab.mode == Mode::Direct {
            self.refuse_without_slots();
            return SumacOptions { backend, direct: Some(self.direct), ..sumac.clone() };
        }
        if lab.mode == Mode::Static {
            self.refuse_in_static_mode();
            return SumacOptions { backend, yields: lab.yields, ..sumac.clone() };
        }
        self.refuse_in_dynamic_mode();
        let co_located = if lab.co_located { lab.hosts() } else { 0 };
        let slots = sumac.slots.unwrap_or(dynamic.slots);
        let dynamic = Some(DynamicOptions { slots, co_located, ..*dynamic });
        SumacOptions { backend, slots: None, dynamic, ..sumac.clone() }
    }

    fn refuse_in_static_mode(&self) {
        refuse_what_is_dynamic(&[
            ("--no-aggregator", !self.dynamic.has_aggregator),
            ("--window", self.dynamic.window.is_some()),
            ("--no-congestion-control", !self.dynamic.congestion_control),
        ]);
        if self.sumac.slots.is_some_and(|slots| !slots.is_power_of_two()) {
            refuse("--slots: each lane of a static job has a power of two of them");
        }
    }

    fn refuse_without_slots(&self) {
        self.refuse_in_static_mode();
        if self.sumac.slots.is_some() || !self.sumac.drop.is_zero() || !self.sumac.stealing {
            refuse(
                "--slots, --no-reassignment and --aggregator-drop are of aggregators: direct jobs have none",
            );
        }
    }

    fn refuse_in_dynamic_mode(&self) {
        if !self.sumac.stealing {
            refuse("--no-reassignment is for static jobs: the slots of dynamic ones are nobody's own");
        }
        if !self.dynamic.has_aggregator && !self.sumac.drop.is_zero() {
            refuse("--aggregator-drop: with --no-aggregator there is none that could");
        }
    }
}

/// Ranks of a host: trainers' threads and tensors in this one process.
const MOST_RANKS: i64 = 16;

/// The options of a measurement in a lab of its own.
#[derive(Clone, Debug, Args)]
pub struct MeasureArguments {
    #[command(flatten)]
    lab: LabOptions,
    #[command(flatten)]
    sumac: SumacArguments,
    /// Ranks of each worker host, each with a trainer and a tensor: the host's daemon adds them
    #[arg(long, value_name = "RANKS", default_value_t = 1)]
    #[arg(value_parser = value_parser!(u16).range(1..=MOST_RANKS))]
    ranks_per_host: u16,
    /// Elements of each rank's tensor
    #[arg(long, default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1..))]
    elements: u32,
    /// Measured operations
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..))]
    iterations: u32,
    /// Operations before them, verified and not measured
    #[arg(long, default_value_t = 1)]
    warmup: u32,
    /// Seconds after which an operation is given up
    #[arg(long, default_value_t = 120, value_parser = value_parser!(u64).range(1..))]
    timeout: u64,
    /// Poll for the end of operations (completion words) for up to 200 us, before waiting for the message
    #[arg(long)]
    poll: bool,
    /// Count what worker 0 sends in each 10 ms of the operation nearest to the median; told with --json
    #[arg(long)]
    trace: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl MeasureArguments {
    /// A run as these options ask for: the sum of float32 by one job.
    pub fn options(&self, backend: Backend) -> RunOptions {
        let sum = Operation::sum(self.elements as usize);
        let (lab, sumac) = (self.lab.spec(), self.sumac.sumac(backend, &self.lab));
        let ranks = lab.workers * self.ranks_per_host;
        let servers = sumac.direct.and_then(|direct| direct.servers);
        if servers.is_some() && sumac.collective().has_blocks() {
            refuse("--servers is for --collective ps");
        }
        if sumac.collective().has_blocks() && !self.elements.is_multiple_of(ranks.into()) {
            refuse(&format!(
                "--elements {}: they do not divide into blocks for {ranks} workers",
                self.elements
            ));
        }
        RunOptions {
            lab,
            sumac,
            operation: Operation {
                ranks_per_host: self.ranks_per_host,
                wire: self.sumac.wire,
                polled: self.poll,
                ..sum
            },
            jobs: 1,
            iterations: self.iterations,
            warmup: self.warmup,
            seed: 1,
            limit: Duration::from_secs(self.timeout),
            trace: self.trace,
            captures: CaptureOptions::default(),
        }
    }
}

/// Parses the name that a value has in JSON.
pub fn by_name<T: DeserializeOwned>(name: &str) -> Result<T, serde_json::Error> {
    serde_json::from_value(name.into())
}

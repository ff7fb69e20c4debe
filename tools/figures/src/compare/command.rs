//! `sumac-figures compare`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use sumac_lab::deployment::Backend;
use sumac_lab::run::{Operation, RunOptions};

use sumac_lab::options::{LabOptions, SumacArguments};

use super::contender::{Contender, compare};
use super::offloads::TcpOffloads;

const EXAMPLES: &str = "\
Examples:
  sumac-figures compare --workers 4 --elements 25000000
  sumac-figures compare --workers 4 --elements 2500000 --rate 100mbit --loss 0.1% --json
  sumac-figures compare --workers 4 --tcp-offloads all

Gloo needs Debian's python3-torch, Open MPI openmpi-bin and python3-mpi4py; `tools/setup.sh --compare` installs them.
A library that is not installed is named and left out.
Exit codes: 0 all sums right, 1 wrong or failed, 2 wrong usage, 130 interrupted.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Compare {
    #[command(flatten)]
    lab: LabOptions,
    #[command(flatten)]
    sumac: SumacArguments,
    /// Elements of each worker's float32 tensor
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    elements: u32,
    /// Measured allreduces of each library
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Allreduces of each library before them, verified and not measured
    #[arg(long, default_value_t = 1)]
    warmup: u32,
    /// Seconds after which an allreduce is given up
    #[arg(long, default_value_t = 120)]
    timeout: u64,
    /// Libraries to compare; Sumac's time on XDP is the unit of the ratios
    #[arg(long, value_enum, value_delimiter = ',', default_value = "xdp,udp,gloo,mpi")]
    libraries: Vec<Contender>,
    /// The veths' offloads for the TCP of the other libraries
    #[arg(long, value_enum, default_value_t)]
    tcp_offloads: TcpOffloads,
    /// Count what worker 0 sends in each 10 ms of the allreduce nearest to the median; told with --json
    #[arg(long)]
    trace: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Compare {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let lab = self.lab.spec();
        if self.tcp_offloads.exceed_the_mtu() && !lab.faults.is_none() {
            let why = "--tcp-offloads all: a cable with faults loses frames of the MTU's size one by one\n";
            clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, why).exit();
        }
        let options = RunOptions {
            lab,
            sumac: self.sumac.sumac(Backend::Xdp, &self.lab),
            operation: Operation { wire: self.sumac.wire, ..Operation::sum(self.elements as usize) },
            jobs: 1,
            iterations: self.iterations,
            warmup: self.warmup,
            seed: 1,
            limit: Duration::from_secs(self.timeout),
            trace: self.trace,
        };
        let spinner = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {msg}") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(Duration::from_millis(500));
        let comparison = compare(&options, &self.libraries, self.tcp_offloads, |turn| {
            spinner.set_message(turn.to_owned());
        });
        spinner.finish_and_clear();
        let comparison = comparison?;
        if self.json {
            println!("{}", serde_json::to_string(&comparison)?);
        } else {
            println!("{comparison}");
        }
        Ok(if comparison.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

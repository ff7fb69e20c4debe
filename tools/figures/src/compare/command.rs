//! `sumac-figures compare`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use sumac_lab::deployment::Backend;
use sumac_lab::options::MeasureArguments;

use super::contender::{Contender, compare};
use super::offloads::TcpOffloads;

const EXAMPLES: &str = "\
Examples:
  sumac-figures compare --workers 4 --elements 25000000
  sumac-figures compare --workers 4 --elements 2500000 --rate 100mbit --loss 0.1% --json
  sumac-figures compare --workers 4 --tcp-offloads all

Gloo needs Debian's python3-torch, Open MPI openmpi-bin and python3-mpi4py; `tools/setup.sh --compare`
installs them. A library that is not installed is named and left out.
Exit codes: 0 all sums right, 1 wrong or failed, 2 wrong usage, 130 interrupted.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Compare {
    #[command(flatten)]
    measure: MeasureArguments,
    /// Libraries to compare, in the order of the table; the first one's time is the unit of the ratios
    #[arg(long, value_enum, value_delimiter = ',', default_value = "xdp,udp,gloo,mpi")]
    libraries: Vec<Contender>,
    /// The veths' offloads for the other libraries' TCP and for Sumac's UDP
    #[arg(long, value_enum, default_value_t)]
    tcp_offloads: TcpOffloads,
}

impl Compare {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let options = self.measure.options(Backend::Xdp);
        if self.tcp_offloads.exceed_the_mtu() && !options.lab.faults.is_none() {
            let why = "--tcp-offloads all: a cable with faults loses frames of the MTU's size one by one\n";
            clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, why).exit();
        }
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
        if self.measure.json {
            println!("{}", serde_json::to_string(&comparison)?);
        } else {
            println!("{comparison}");
        }
        Ok(if comparison.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

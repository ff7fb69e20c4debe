//! `sumac-sim`: the figures of ATP's evaluation, simulated over the real parts.
#![forbid(unsafe_code)]

use std::{io::Write, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use sumac_sim::{
    figures::{self, Effort, Report},
    job::SetupError,
};

const EXAMPLES: &str = "Examples:
  sumac-sim fig13a                  three jobs while slots get fewer, dynamic and static
  sumac-sim fig14 --quick           a look, in seconds
  sumac-sim fig10 --seeds 9 --json  nine seeds, for machines
  tools/bench.sh sim                all of them, into docs/results

Times are simulated: the same seeds give the same numbers on every machine.";

/// Simulates jobs over the real engine, aggregator and parameter host, and makes the figures of ATP's evaluation.
#[derive(Parser)]
#[command(name = "sumac-sim", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    figure: Figure,
}

#[derive(Subcommand)]
enum Figure {
    /// Throughput against packet loss, beside the static mode with a timer of 1 ms.
    Fig10(Options),
    /// Three jobs with on and off phases while slots get fewer: dynamic against static.
    Fig13a(Options),
    /// More and more jobs that always send: hashed, linear, static.
    Fig14(Options),
    /// Half of the needed slots, with and without congestion control.
    Fig15(Options),
    /// A job beside a TCP-like flow.
    Fig16(Options),
    /// Packets into the parameter host of six workers in three racks (section 5.2.2).
    Traffic(Options),
}

#[derive(Args, Clone, Copy)]
struct Options {
    /// Seeds; tables hold medians over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// An eighth of the work, for a look.
    #[arg(long)]
    quick: bool,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

type Draw = fn(Effort) -> Result<Report, SetupError>;

impl Figure {
    fn parts(&self) -> (Draw, Options) {
        match self {
            Figure::Fig10(options) => (figures::loss::figure10, *options),
            Figure::Fig13a(options) => (figures::sharing::figure13a, *options),
            Figure::Fig14(options) => (figures::many::figure14, *options),
            Figure::Fig15(options) => (figures::congestion::figure15, *options),
            Figure::Fig16(options) => (figures::neighbours::figure16, *options),
            Figure::Traffic(options) => (figures::racks::traffic, *options),
        }
    }
}

fn main() -> ExitCode {
    let (draw, options) = Cli::parse().figure.parts();
    let text = draw(Effort { seeds: options.seeds, quick: options.quick })
        .map_err(|error| error.to_string())
        .and_then(|report| match options.json {
            true => serde_json::to_string_pretty(&report)
                .map(|json| json + "\n")
                .map_err(|error| error.to_string()),
            false => Ok(report.table()),
        });
    match text {
        Ok(text) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            // Whoever read it has seen enough.
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) => {
            eprintln!("sumac-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

//! `sumac-figures`: figures of the papers' evaluations, and comparisons with other libraries.
#![forbid(unsafe_code)]

use std::{io::Write, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use sumac_figures::{
    bounded::{convergence::Convergence, exchange::Exchange},
    compare::command::Compare,
    flood::Flood,
    latency::Latency,
    programs::{aggregator::AggregatorProgram, host::HostProgram},
    scale::command::Scale,
    simulated::{self, Effort, Figure},
};
use sumac_sim::job::SetupError;

const EXAMPLES: &str = "\
Examples:
  sumac-figures compare --workers 4 --elements 25000000
  sumac-figures fig13a                  three jobs with fewer and fewer slots, dynamic and static
  sumac-figures fig14 --quick           an eighth of the work
  sumac-figures fig10 --seeds 9 --json  nine seeds, as JSON
  sumac-figures mlt-fig14               training on 144 hosts, direct mode and DCTCP
  tools/bench.sh sim                    all simulated figures, into docs/results

Simulated figures need no privileges and no network; the same seeds give the same numbers on every machine.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.";

/// Figures of the papers' evaluations over a simulated network, and comparisons with other libraries in a lab
#[derive(Parser)]
#[command(name = "sumac-figures", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Allreduce with Sumac, Gloo and Open MPI in the same lab
    Compare(Box<Compare>),
    /// Trainings in a lab whose cables lose data, within loss bounds (MLT's figures 3, 4 and 18)
    Convergence(Box<Convergence>),
    /// The distribution of an allreduce's time with and without a loss bound, under loss or beside a
    /// straggler
    Exchange(Box<Exchange>),
    /// Allreduce in a lab beside connections that flood a daemon with requests for statistics
    Flood(Box<Flood>),
    /// The time of a small sum from worker to worker, and its parts
    Latency(Latency),
    /// The growth of an allreduce's cost with workers, elements, jobs and operations in flight, beside Gloo
    Scale(Scale),
    /// Nanoseconds per frame of the aggregator's XDP program, by the kernel's test run
    AggregatorProgram(AggregatorProgram),
    /// Nanoseconds per frame of the host's XDP program, by the kernel's test run
    HostProgram(HostProgram),
    /// ATP's figure 10: throughput against packet loss, beside the static mode with a timer of 1 ms
    Fig10(Options),
    /// ATP's figure 13a: three jobs with on and off phases and fewer and fewer slots, dynamic against static
    Fig13a(Options),
    /// ATP's figure 14: more and more jobs that send without pause: hashed, linear, static
    Fig14(Options),
    /// ATP's figure 15: half of the needed slots, with and without congestion control
    Fig15(Options),
    /// ATP's figure 16: a job beside a TCP-like flow
    Fig16(Options),
    /// MLT's figure 14: completion times of training's transfers on up to 144 hosts, the direct mode beside
    /// DCTCP
    MltFig14(Options),
    /// MLT's figure 15: incast, and one link that loses frames
    MltFig15(Options),
    /// MLT's figures 16 and 17: the three parts of MLT, added one by one
    MltFig16(Options),
    /// SwitchML's figure 7: the tail of an allreduce under loss, with work stealing and without
    Tail(Options),
    /// ATP's section 5.2.2: packets into the parameter host of six workers in three racks
    Traffic(Options),
}

#[derive(Args, Clone, Copy)]
struct Options {
    /// Number of seeds; tables hold medians over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Do an eighth of the work
    #[arg(long)]
    quick: bool,
    /// Print JSON in place of a table
    #[arg(long)]
    json: bool,
}

type Simulate = fn(Effort) -> Result<Figure, SetupError>;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Compare(compare) => in_lab(|| compare.run()),
        Command::Convergence(convergence) => in_lab(|| convergence.run()),
        Command::Exchange(exchange) => in_lab(|| exchange.run()),
        Command::Flood(flood) => in_lab(|| flood.run()),
        Command::Latency(latency) => in_lab(|| latency.run()),
        Command::Scale(scale) => in_lab(|| scale.run()),
        Command::AggregatorProgram(program) => program.run(),
        Command::HostProgram(program) => program.run(),
        Command::Fig10(options) => simulate(simulated::loss::figure10, options),
        Command::Fig13a(options) => simulate(simulated::sharing::figure13a, options),
        Command::Fig14(options) => simulate(simulated::many::figure14, options),
        Command::Fig15(options) => simulate(simulated::congestion::figure15, options),
        Command::Fig16(options) => simulate(simulated::neighbours::figure16, options),
        Command::MltFig14(options) => simulate(simulated::mlt::scale::figure14, options),
        Command::MltFig15(options) => simulate(simulated::mlt::failures::figure15, options),
        Command::MltFig16(options) => simulate(simulated::mlt::components::figures16_and_17, options),
        Command::Tail(options) => simulate(simulated::tail::figure7, options),
        Command::Traffic(options) => simulate(simulated::racks::traffic, options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("sumac-figures: {error:#}");
        if sumac_lab::interrupt::interrupted() { ExitCode::from(130) } else { ExitCode::FAILURE }
    })
}

fn in_lab(run: impl FnOnce() -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    sumac_lab::interrupt::install()?;
    run()
}

fn simulate(figure: Simulate, options: Options) -> anyhow::Result<ExitCode> {
    let effort = Effort { seeds: options.seeds, quick: options.quick };
    let figure = figure(effort)?;
    let figure = Figure { command: effort.command(figure.figure), ..figure };
    let text = if options.json { serde_json::to_string_pretty(&figure)? + "\n" } else { figure.table() };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

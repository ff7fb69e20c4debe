//! The command line: one file per verb.

mod demo;
mod down;
mod list;
mod run;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Labs of network namespaces: hosts, cables with rates and faults, and Sumac in them.
#[derive(Debug, Parser)]
#[command(name = "sumac-lab", version, about, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  sumac-lab run --workers 4 --elements 25000000 --rate 1gbit --loss 1% --json
  sumac-lab run --racks 2 --workers-per-rack 4 --mtu 9000
  sumac-lab run --mode dynamic --workers 4 --slots 256
  sumac-lab up --name lab1 --workers 4 --rate 1gbit --loss 1%
  nsenter --net=/run/netns/lab1-w0 ping 10.77.0.1
  sumac-lab down --name lab1

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
A lab is removed when the command that made it ends, however it ends; `down` removes what a SIGKILL left.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Build a lab and leave it standing
    Up(up::Up),
    /// End a lab's programs and remove it
    Down(down::Down),
    /// Sum tensors over all workers in a lab of their own, check every element, and report
    Run(run::Run),
    /// Train a network over a lab, without and with loss, and show that nothing changes
    Demo(demo::Demo),
    /// Name the labs that exist
    List(list::List),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = sumac_lab::interrupt::install() {
        eprintln!("sumac-lab: catching signals: {error}");
        return ExitCode::FAILURE;
    }
    let result = match cli.verb {
        Verb::Up(verb) => verb.run(),
        Verb::Down(verb) => verb.run(),
        Verb::Run(verb) => verb.run(),
        Verb::Demo(verb) => verb.run(),
        Verb::List(verb) => verb.run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // Each error says what caused it.
            eprintln!("sumac-lab: {error}");
            if sumac_lab::interrupt::interrupted() { ExitCode::from(130) } else { ExitCode::FAILURE }
        }
    }
}

//! `sumac-lab`: labs of network namespaces on one machine, and what runs in them.
#![forbid(unsafe_code)]

mod run_command;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};
use sumac_lab::Lab;
use sumac_lab::chaos::trainer::{TrainerOptions, train};
use sumac_lab::chaos::{ChaosOptions, chaos};
use sumac_lab::demo::{DemoOptions, demo};
use sumac_lab::options::LabOptions;
use sumac_lab::record::Record;
use sumac_lab::spec::check_name;

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

const DEMO_EXAMPLES: &str = "\
Examples:
  sumac-lab demo
  sumac-lab demo --workers 8 --epochs 5 --loss 0.1%
  sumac-lab demo --p4 --workers 2 --epochs 5

Exit codes: 0 all weights are bit-identical and nothing is left, 1 otherwise, 2 wrong usage, 130 interrupted.";

const CHAOS_EXAMPLES: &str = "\
Examples:
  sumac-lab chaos --kills 50
  sumac-lab chaos --mode dynamic --kills 500 --seed 7 --json

Half of the kills are in a lab of XDP programs, half in one of host aggregators, both of two racks below a
root. The seed decides which processes are killed and when they are restarted.
Exit codes: 0 every operation was right or failed by name, and nothing is left; 1 otherwise; 2 wrong usage,
130 interrupted.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Build a lab and leave it standing
    Up(Up),
    /// End a lab's programs and remove it
    Down(Down),
    /// Sum tensors over all workers in a lab of their own, check every element, and report
    Run(Box<run_command::Run>),
    /// Train a network over a lab, without and with loss, and show that nothing changes
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoOptions),
    /// Kill random processes under a loop of allreduces; show that every sum is right or fails by name, and
    /// nothing is left
    #[command(after_help = CHAOS_EXAMPLES)]
    Chaos(ChaosOptions),
    /// Sum without end as one worker, and print a line for each sum or failure
    #[command(hide = true)]
    Trainer(TrainerOptions),
    /// Name the labs that exist
    List {
        /// Print the labs' records as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct Up {
    #[command(flatten)]
    lab: LabOptions,
    /// Print the lab's record as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Down {
    /// The lab
    #[arg(long, required_unless_present = "all")]
    name: Option<String>,
    /// All labs whose maker is gone
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Verb::Trainer(options) = cli.verb {
        // Signals end it at once: it has nothing to remove.
        return if train(&options).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if let Err(error) = sumac_lab::interrupt::install() {
        eprintln!("sumac-lab: catching signals: {error}");
        return ExitCode::FAILURE;
    }
    let result = match cli.verb {
        Verb::Up(verb) => up(&verb).map(|()| true),
        Verb::Down(verb) => down(verb).map(|()| true),
        Verb::Run(verb) => verb.run(),
        Verb::Demo(options) => demo(&options),
        Verb::Chaos(options) => kill_at_random(&options),
        Verb::Trainer(options) => train(&options).map(|()| true),
        Verb::List { json } => list(json).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sumac-lab: {error:#}");
            if sumac_lab::interrupt::interrupted() { ExitCode::from(130) } else { ExitCode::FAILURE }
        }
    }
}

fn kill_at_random(options: &ChaosOptions) -> Result<bool> {
    let report = chaos(options)?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{report}");
    }
    Ok(report.is_good())
}

fn up(options: &Up) -> Result<()> {
    let record = Lab::up(options.lab.spec())?.keep();
    if options.json {
        println!("{}", serde_json::to_string_pretty(&record)?);
        return Ok(());
    }
    let (spec, name) = (&record.spec, &record.spec.name);
    println!("lab {name} stands:");
    for (namespace, rank) in record.namespaces.iter().zip(0..spec.workers) {
        println!("  {namespace}  {}  aggregator {}", spec.worker_ip(rank), spec.aggregator_ip(rank));
    }
    for host in 0..spec.parameter_hosts {
        println!("  {name}-ph{host}  {}  parameter host", spec.host_ip(host));
    }
    println!("enter a host:  nsenter --net=/run/netns/{} bash", record.namespaces[0]);
    println!("remove it:     sumac-lab down --name {name}");
    Ok(())
}

fn down(options: Down) -> Result<()> {
    let orphans = || -> Result<Vec<String>> {
        let mut orphans = Record::names()?;
        orphans.retain(|name| Record::load(name).is_ok_and(|record| !record.owner.lives()));
        Ok(orphans)
    };
    let names = options.name.map_or_else(orphans, |name| Ok(vec![name]))?;
    for name in names {
        check_name(&name)?;
        let record = Record::load(&name)?;
        ensure!(
            !record.owner.lives(),
            "lab {name} is in use by pid {}; end that process and it removes the lab",
            record.owner.pid
        );
        record.remove()?;
        println!("removed lab {name}");
    }
    Ok(())
}

fn list(json: bool) -> Result<()> {
    let mut records = Vec::new();
    for name in Record::names()? {
        match Record::load(&name) {
            Ok(record) => records.push(record),
            Err(error) => eprintln!("sumac-lab: {error:#}"),
        }
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&records)?);
        return Ok(());
    }
    if records.is_empty() {
        println!("no labs");
    }
    for Record { spec, owner, processes, .. } in records {
        let rate = spec.rate.map_or("unlimited".to_owned(), |rate| rate.to_string());
        let made = if owner.lives() { "in use by pid" } else { "made by pid" };
        println!(
            "{}  {} workers, {rate}, loss {}, {} programs, {made} {}",
            spec.name,
            spec.workers,
            spec.faults.loss,
            processes.len(),
            owner.pid
        );
    }
    Ok(())
}

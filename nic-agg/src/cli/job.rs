//! `sumac-agg job`: jobs by hand, without a control plane.

use std::{
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddrV4},
};

use anyhow::{Context as _, anyhow};
use sumac_agg::{
    Aggregator,
    job::{Placed, worker_entry},
    status::text::write_job,
};
use sumac_agg_job::{NewJob, log2};
use sumac_netutil::neighbour;
use sumac_wire::{
    DEFAULT_BASE_PORT, DEFAULT_ELEMENTS,
    tables::{JobEntry, WorkerEntry, job_flag},
};

use super::options::{PinRoot, print_json};

/// Slots of a lane by default.
const DEFAULT_LANE_SLOTS: u32 = 512;

const ADD_EXAMPLES: &str = "\
Examples:
  sumac-agg job add 7 --token 0x5eed --worker 10.0.1.2 --worker 10.0.2.2
        two workers, rank 0 first; their interfaces and MAC addresses are looked up
  sumac-agg job add 7 --token 0x5eed --worker 10.0.1.2:50000 --worker 10.0.1.3:50000 --group 239.1.2.3
        both behind one port, results to this multicast group
  sumac-agg job add 7 --token 0x5eed --worker 10.0.1.2 --worker 10.0.2.2 --dynamic --host 10.0.9.2
        slots are shared with other jobs, and sums are completed at this parameter host";

/// Add, remove and list jobs by hand
///
/// Remote daemons get their jobs by `sumac-agg serve`; this is for workers that are told by other means.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: JobCommand,
}

#[derive(Debug, clap::Subcommand)]
enum JobCommand {
    /// Add a job
    #[command(after_help = ADD_EXAMPLES)]
    Add(AddArgs),
    /// Remove a job: its packets are refused, its slots are free
    #[command(after_help = "Example:\n  sumac-agg job remove 7")]
    Remove {
        /// The job's number
        job: u16,
        #[command(flatten)]
        pins: PinRoot,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// List jobs
    #[command(after_help = "Example:\n  sumac-agg job list --json")]
    List {
        #[command(flatten)]
        pins: PinRoot,
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// The job's number: 1 to 1023, at most `--jobs` of `sumac-agg attach`
    job: u16,
    /// A worker's address and, if not the base port, UDP port; in the order of ranks
    #[arg(long = "worker", value_name = "IP[:PORT]", required = true, value_parser = endpoint)]
    workers: Vec<SocketAddrV4>,
    /// The secret number that all packets of its members carry
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    token: u64,
    /// The job's incarnation, later than the last one of the number; by default the one after that
    #[arg(long, value_name = "N")]
    epoch: Option<u16>,
    /// Slots of each of the job's lanes, a power of two; of a dynamic job, those of each shard that it may
    /// take [default: 512, or all]
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Share slots with other jobs, and have sums completed at parameter hosts (ATP)
    #[arg(long, requires = "hosts", conflicts_with_all = ["lanes", "no_reassignment"])]
    dynamic: bool,
    /// A parameter host's address and, if not the base port, UDP port: shard s is that of the s-th of N,
    /// modulo N
    #[arg(long = "host", value_name = "IP[:PORT]", requires = "dynamic", value_parser = endpoint)]
    hosts: Vec<SocketAddrV4>,
    /// Lanes: each a stream of its own, with slots of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    lanes: u16,
    /// Shards: lane l's packets come by UDP port base + l mod N
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u16,
    /// A completed slot takes the chunk one lane's slots further, not whatever chunk comes next
    #[arg(long)]
    no_reassignment: bool,
    /// Most elements in a chunk
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ELEMENTS)]
    elements: u16,
    /// Neither verify nor write UDP checksums
    #[arg(long)]
    no_checksum: bool,
    /// The multicast group for results, when workers share a port
    #[arg(long, value_name = "IP")]
    group: Option<Ipv4Addr>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pins: PinRoot,
}

fn endpoint(text: &str) -> Result<SocketAddrV4, String> {
    let ip = text.parse().map(|ip| SocketAddrV4::new(ip, DEFAULT_BASE_PORT));
    ip.or_else(|_| text.parse()).map_err(|_| "give an IPv4 address, or address:port".into())
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| error.to_string())
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        JobCommand::Add(args) => add(args),
        JobCommand::Remove { job, pins, json } => {
            if !Aggregator::open(&pins.pin_root)?.remove_job(*job)? {
                return Err(anyhow!("no job {job}: see sumac-agg job list"));
            }
            if *json { print_json(&serde_json::json!({ "removed": job })) } else { Ok(()) }
        }
        JobCommand::List { pins, json } => {
            let jobs = Aggregator::open(&pins.pin_root)?.jobs()?;
            if *json {
                return print_json(&jobs);
            }
            let mut out = io::stdout().lock();
            jobs.iter().try_for_each(|job| write_job(&mut out, job))?;
            Ok(())
        }
    }
}

fn add(args: &AddArgs) -> anyhow::Result<()> {
    let aggregator = Aggregator::open(&args.pins.pin_root)?;
    let mut workers = args.workers.iter().copied().map(hop).collect::<anyhow::Result<Vec<_>>>()?;
    let mut parents = args.hosts.iter().copied().map(hop).collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(own) = aggregator.own_ip()? {
        workers.iter_mut().chain(&mut parents).for_each(|hop| hop.aggregator_ip = own.to_bits());
    }
    let epoch = match args.epoch {
        Some(epoch) => epoch,
        None => {
            let jobs = aggregator.tables()?.jobs()?;
            let last = jobs.iter().find(|(number, _)| *number == args.job).map(|(_, entry)| entry.epoch);
            last.unwrap_or(0).saturating_add(1)
        }
    };
    let (slots, lane_slots_log2) = if args.dynamic {
        (args.slots.unwrap_or(aggregator.state()?.dynamic_slots), 0)
    } else {
        let lane_slots = args.slots.unwrap_or(DEFAULT_LANE_SLOTS);
        (lane_slots.saturating_mul(args.lanes.into()), log2(lane_slots)?)
    };
    let flags = [
        (job_flag::CHECKSUM, !args.no_checksum),
        (job_flag::STEALING, !args.no_reassignment && !args.dynamic),
        (job_flag::DYNAMIC, args.dynamic),
    ];
    let entry = JobEntry {
        token: args.token,
        slots,
        group_ip: args.group.map_or(0, Ipv4Addr::to_bits),
        epoch,
        elements: args.elements,
        flags: flags.iter().filter(|(_, given)| *given).map(|(flag, _)| flag).sum(),
        shards: args.shards,
        lane_slots_log2,
        ..JobEntry::default()
    };
    let placed = aggregator.add_job_anywhere(NewJob { job: args.job, entry, workers, parents })?;
    let to = Placed::destinations(placed.group, placed.is_copied);
    let first = placed.first_slot;
    if args.json {
        let first_slot = (!args.dynamic).then_some(first);
        return print_json(&serde_json::json!({
            "job": args.job,
                "epoch": epoch, "is_dynamic": args.dynamic, "first_slot": first_slot, "slots": slots,
            "group": placed.group, "is_copied": placed.is_copied,
        }));
    }
    let slots = match args.dynamic {
        true => format!("dynamic, any of {slots} slots in each shard"),
        false => format!("slots {first} to {}", first + slots - 1),
    };
    writeln!(io::stdout(), "job {} epoch {epoch}: {slots}, results to {to}", args.job)?;
    Ok(())
}

/// Returns the next hop to a worker, by the kernel's routes and neighbours.
fn hop(worker: SocketAddrV4) -> anyhow::Result<WorkerEntry> {
    let hop = neighbour::resolve(*worker.ip()).with_context(|| format!("looking for worker {worker}"))?;
    Ok(worker_entry(worker, &hop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_and_tokens() {
        assert_eq!(endpoint("10.0.0.1").unwrap().to_string(), "10.0.0.1:48700");
        assert_eq!(endpoint("10.0.0.1:5").unwrap().to_string(), "10.0.0.1:5");
        assert!(endpoint("worker-1").is_err());
        assert_eq!((number("0xff"), number("255")), (Ok(255), Ok(255)));
        assert!(number("0xxyz").is_err());
    }
}

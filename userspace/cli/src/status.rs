//! `sumac status`: attached programs, bound sockets and counters.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use serde_json::{Value, json};
use sumac_client::Client;
use sumac_hostprog::status::{Details, InterfaceStatus, JobStatus, QueueStatus, State, Status, status};

use crate::{
    attach::port_range,
    exit,
    options::{PinRoot, Socket},
};

/// Shows attached programs: mode, queues, steering, sockets, frames by reason.
///
/// Frames are counted since the program was first attached. The sockets' mode comes from the daemon, if one
/// answers.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pin_root: PinRoot,
    #[command(flatten)]
    socket: Socket,
}

/// Prints the status. A program that is pinned but not attached needs attention.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let status = status(&args.pin_root.path)?;
    let daemon = Client::connect(&args.socket.path).and_then(|client| client.stats_json());
    let mut out = io::stdout().lock();
    if args.json {
        let daemon = match &daemon {
            Ok(stats) => json!({ "running": true, "stats": stats }),
            Err(error) => json!({ "running": false, "error": error.to_string() }),
        };
        let all = json!({ "interfaces": status.interfaces, "daemon": daemon });
        serde_json::to_writer_pretty(&mut out, &all).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        let stats = daemon.as_ref().unwrap_or(&Value::Null);
        if status.interfaces.is_empty() {
            writeln!(out, "no program attached; see `sumac attach --help`")?;
        }
        for interface in &status.interfaces {
            show(&mut out, interface, stats)?;
        }
        match &daemon {
            Ok(stats) => show_daemon(&mut out, stats, args)?,
            Err(error) => writeln!(out, "no daemon at {}: {error}", args.socket.path.display())?,
        }
    }
    Ok(if is_whole(&status) { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}

fn is_whole(status: &Status) -> bool {
    !status.interfaces.iter().any(|interface| matches!(interface.state, State::Broken { .. }))
}

fn show(out: &mut impl Write, status: &InterfaceStatus, daemon: &Value) -> io::Result<()> {
    let name = &status.interface;
    match &status.state {
        State::Attached(details) => show_details(out, name, details, daemon),
        State::ElsewhereAttached { program_id } => writeln!(
            out,
            "{name} in network namespace {}: program {program_id} (run `sumac status` there for more)",
            status.namespace
        ),
        State::Broken { error } => writeln!(out, "{name}: {error}"),
    }
}

fn show_details(out: &mut impl Write, name: &str, details: &Details, daemon: &Value) -> io::Result<()> {
    let fell_back = if details.fell_back { "; the driver refused it, see `sumac doctor`" } else { "" };
    writeln!(
        out,
        "{name}: program {} in {} mode (asked for {}{fell_back}), MTU {}, UDP ports {}",
        details.program_id,
        details.mode,
        details.requested_mode,
        details.mtu,
        port_range(details.base_port, details.shards),
    )?;
    writeln!(out, "  steering: {}", details.steering.for_worker())?;
    writeln!(out, "  queue  socket           steered   no socket     refused     foreign")?;
    for queue in &details.queues {
        let QueueStatus { steered, no_socket, refused, foreign, .. } = queue;
        let socket = socket_on(daemon, name, queue);
        let number = queue.queue;
        writeln!(out, "  {number:>5}  {socket:<10} {steered:>12}{no_socket:>12}{refused:>12}{foreign:>12}")?;
    }
    let counters: Vec<String> = details.counters.iter().map(|(name, n)| format!("{name} {n}")).collect();
    let counters = if counters.is_empty() { "none yet".to_owned() } else { counters.join(", ") };
    writeln!(out, "  frames: {counters}")?;
    for job in &details.jobs {
        writeln!(
            out,
            "  job {}: epoch {}, {} workers, chunks of {} elements{}, checksums {}",
            job.job,
            job.epoch,
            job.world,
            job.elements,
            sources(job),
            if job.checksum { "verified" } else { "off" },
        )?;
    }
    Ok(())
}

/// The senders of a job's packets.
fn sources(job: &JobStatus) -> String {
    let mut text = String::new();
    if let Some(aggregator) = job.aggregator {
        text += &format!(" from {aggregator}");
    }
    if !job.hosts.is_empty() {
        let hosts: Vec<String> = job.hosts.iter().map(ToString::to_string).collect();
        text += &format!(" from parameter host(s) {}", hosts.join(", "));
    }
    if job.parameter {
        text += ", summed here";
    }
    text
}

/// The mode of the daemon's socket on a queue.
fn socket_on(daemon: &Value, interface: &str, queue: &QueueStatus) -> &'static str {
    let ports = daemon["ports"].as_array().into_iter().flatten();
    let sockets = ports
        .filter(|port| port["interface"] == interface)
        .flat_map(|port| port["sockets"].as_array().into_iter().flatten());
    let bound = sockets.into_iter().find(|socket| socket["queue"] == queue.queue);
    match bound.and_then(|socket| socket["bound"]["zero_copy"].as_bool()) {
        Some(true) => "zero-copy",
        Some(false) => "copy",
        None if queue.selected => "none",
        None => "unused",
    }
}

fn show_daemon(out: &mut impl Write, stats: &Value, args: &Args) -> io::Result<()> {
    let text = |key: &str| stats[key].as_str().unwrap_or_default().to_owned();
    let jobs = stats["jobs"].as_array().map_or(0, Vec::len);
    write!(
        out,
        "daemon at {}: backend {}, {} client(s), {jobs} job(s)",
        args.socket.path.display(),
        text("backend"),
        stats["clients"],
    )?;
    match text("fallback").as_str() {
        "" => writeln!(out)?,
        reason => writeln!(out, "; fell back: {reason}")?,
    }
    match text("backend_reason").as_str() {
        "" => {}
        reason => writeln!(out, "  backend auto: {} is used since {reason}", text("backend"))?,
    }
    show_sandbox(out, &stats["sandbox"])?;
    show_hosted(out, &stats["parameter_host"])
}

/// Prints the privileges that the daemon has left.
fn show_sandbox(out: &mut impl Write, sandbox: &Value) -> io::Result<()> {
    let Some(capabilities) = sandbox["capabilities"].as_array() else {
        return writeln!(out, "  privileges: those of its process");
    };
    let names: Vec<_> = capabilities.iter().filter_map(Value::as_str).collect();
    let names = if names.is_empty() { "no capabilities".to_owned() } else { names.join(" ") };
    let filter = match sandbox["seccomp"].as_bool() {
        Some(true) => "system calls are restricted",
        _ => "system calls are not restricted (`seccomp` is false in its configuration)",
    };
    writeln!(out, "  privileges: {names}; {filter}")
}

/// Prints the jobs of a parameter host.
fn show_hosted(out: &mut impl Write, hosted: &Value) -> io::Result<()> {
    let Some(jobs) = hosted.as_array() else { return Ok(()) };
    writeln!(out, "  parameter host of {} job(s)", jobs.len())?;
    for job in jobs {
        let number = |key: &str| job[key].as_u64().unwrap_or(0);
        writeln!(
            out,
            "  job {}: epoch {}, {} workers ({} direct), {} chunks summed, {} of them as floats, from {} \
            contributions, {} partial and {} full sums",
            number("job"),
            number("epoch"),
            number("world"),
            number("direct"),
            number("completed"),
            number("raw"),
            number("contributions"),
            number("partial_sums"),
            number("full_sums"),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(queue: u32, selected: bool) -> QueueStatus {
        QueueStatus { queue, selected, foreign: 0, steered: 0, no_socket: 0, refused: 0 }
    }

    #[test]
    fn jobs_of_a_parameter_host_are_shown() {
        let shown = |hosted: &Value| {
            let mut out = Vec::new();
            show_hosted(&mut out, hosted).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown(&Value::Null), "");
        assert_eq!(shown(&json!([])), "  parameter host of 0 job(s)\n");
        let job =
            json!({ "job": 3, "epoch": 2, "world": 4, "completed": 70, "full_sums": 69, "partial_sums": 2 });
        assert!(shown(&json!([job])).contains("job 3: epoch 2, 4 workers (0 direct), 70 chunks summed"));
    }

    #[test]
    fn privileges_and_the_opt_out_are_shown() {
        let shown = |sandbox: &Value| {
            let mut out = Vec::new();
            show_sandbox(&mut out, sandbox).unwrap();
            String::from_utf8(out).unwrap()
        };
        let sandbox =
            |seccomp: bool| json!({ "capabilities": ["CAP_BPF"], "no_new_privs": true, "seccomp": seccomp });
        assert_eq!(shown(&sandbox(true)), "  privileges: CAP_BPF; system calls are restricted\n");
        assert!(shown(&sandbox(false)).contains("`seccomp` is false"));
        assert!(shown(&Value::Null).contains("those of its process"));
    }

    #[test]
    fn sockets_are_found_in_the_daemons_report() {
        let stats = json!({ "ports": [
            { "interface": null, "sockets": [] },
            { "interface": "eth1", "sockets": [
                { "queue": 0, "bound": { "zero_copy": true } },
                { "queue": 1, "bound": { "zero_copy": false } },
            ] },
        ] });
        let table = [
            ("eth1", queue(0, true), "zero-copy"),
            ("eth1", queue(1, true), "copy"),
            ("eth1", queue(2, true), "none"),
            ("eth1", queue(3, false), "unused"),
            ("eth2", queue(0, true), "none"),
        ];
        for (interface, queue, expected) in table {
            assert_eq!(socket_on(&stats, interface, &queue), expected, "{interface} {}", queue.queue);
            assert_ne!(socket_on(&Value::Null, interface, &queue), "copy", "without a daemon");
        }
    }
}

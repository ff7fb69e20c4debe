//! The program as a user calls it, on labs of its own.
#![expect(clippy::unwrap_used, reason = "a test says why it failed by panicking")]

#[path = "../../../tests/src/wait.rs"]
mod wait;

use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sumac_lab::programs::Programs;
use sumac_lab::record::Record;
use wait::eventually;

const SUMAC_LAB: &str = env!("CARGO_BIN_EXE_sumac-lab");

/// A lab's name for a test, or none when this machine cannot run it, which REQUIRE_PRIVILEGED=1 turns into a
/// failure.
fn name(test: &str) -> Option<String> {
    let why = if !nix::unistd::geteuid().is_root() {
        "network namespaces need root".to_owned()
    } else if let Err(error) = Programs::find() {
        error.to_string()
    } else {
        return Some(format!("cli{}{test}", std::process::id()));
    };
    assert!(std::env::var_os("REQUIRE_PRIVILEGED").is_none_or(|v| v != "1"), "{test}: {why}");
    println!("SKIP {test}: {why}");
    None
}

fn sumac_lab(arguments: &str) -> Output {
    Command::new(SUMAC_LAB).args(arguments.split_whitespace()).output().unwrap()
}

/// The report of a run in a lab of this name, which must succeed.
fn run(name: &str, arguments: &str) -> Value {
    let output = sumac_lab(&format!("run --json --name {name} {arguments}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A run that goes on until it is ended, once its daemons stand.
fn endless(name: &str) -> Child {
    let mut run = Command::new(SUMAC_LAB);
    run.args(["run", "--name", name]);
    run.args("--workers 2 --elements 100000 --iterations 1000000".split(' '));
    let child = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let running = || Record::load(name).is_ok_and(|record| record.processes.len() == 3);
    eventually("the lab's programs", || running().then_some(()));
    child
}

/// Namespaces, record and pins of a lab that are there.
fn left(name: &str) -> Vec<String> {
    let mut left = sumac_lab::namespace::all().unwrap();
    left.retain(|namespace| namespace.starts_with(name));
    let pins = format!("/sys/fs/bpf/sumac-lab-{name}");
    let files = [Record::path(name), Record::folder(name), pins.into()];
    left.extend(files.iter().filter(|path| path.exists()).map(|path| path.display().to_string()));
    left
}

#[test]
fn a_run_reports_what_it_promises() {
    const KEYS: &str = "/chunk /modes/workers/0 /modes/aggregator/0 /ate_per_s /goodput_bits_per_s \
    /link_efficiency /retransmits /frames/contributions /frames/results /drops /cpu_s/user /cpu_s/system";
    let Some(name) = name("json") else { return };
    let faults = "--rate 1gbit --loss 1% --duplicate 1% --reorder 1% --mtu 1500";
    for backend in ["xdp", "udp"] {
        let sums =
            format!("--backend {backend} --workers 2 --elements 200001 --chunk 256 --iterations 3 --seed 1");
        let report = run(&name, &format!("{sums} {faults}"));
        for key in KEYS.split_whitespace() {
            assert!(
                report.pointer(key).is_some_and(|value| !value.is_null()),
                "{key} is missing in {report}"
            );
        }
        for key in ["median", "min", "max", "p99"] {
            assert!(report["tat_s"][key].as_f64().unwrap() > 0.0, "{report}");
        }
        assert!(report["cpu_s"]["user"].is_number() && report["cpu_s"]["system"].is_number(), "{report}");
        assert_eq!((&report["verified"], &report["backend"]), (&true.into(), &backend.into()), "{report}");
        assert_eq!((&report["workers"], &report["elements"]), (&2.into(), &200_001.into()), "{report}");
        // Half a step of 2^-20 per worker, and the rounding of the sum to a float.
        assert!(report["max_abs_error"].as_f64().unwrap() < 1.1e-6, "{report}");
        assert!(report["injected"]["up"]["lost"].as_u64().unwrap() > 0, "{report}");
        assert_eq!(left(&name), Vec::<String>::new());
    }
}

#[test]
fn a_dynamic_run_reports_its_parameter_hosts() {
    let Some(name) = name("dyn") else { return };
    let hosts = "--mode dynamic --workers 2 --slots 4096 --queues 2 --parameter-hosts 2";
    let report = run(&name, &format!("{hosts} --elements 100001 --iterations 1"));
    let dynamic = &report["dynamic"];
    for key in ["window", "collisions", "raw_chunks", "direct", "halvings", "cwnd"] {
        assert!(dynamic[key].is_u64(), "{key} is missing in {report}");
    }
    assert_eq!((&report["verified"], &dynamic["shared_slots"]), (&true.into(), &4096.into()), "{report}");
    let hosts = dynamic["parameter_hosts"].as_array().unwrap();
    assert!(hosts.len() == 2 && hosts.iter().all(|host| host["bytes_in"].as_u64() > Some(0)), "{report}");
    assert_eq!(left(&name), Vec::<String>::new());
}

#[test]
fn direct_runs_have_their_collectives() {
    let Some(name) = name("direct") else { return };
    for (collective, kind) in [
        ("ps", "allreduce"),
        ("ring", "allreduce"),
        ("allgather", "allgather"),
        ("reduce-scatter", "reduce_scatter"),
    ] {
        let run_of = format!("--mode direct --backend udp --workers 3 --collective {collective}");
        let report = run(&name, &format!("{run_of} --elements 90000 --iterations 1"));
        assert_eq!((&report["verified"], &report["collective"]), (&true.into(), &kind.into()), "{report}");
    }
}

#[test]
fn several_jobs_sum_at_once() {
    let Some(name) = name("jobs") else { return };
    for mode in ["static", "dynamic"] {
        let jobs = format!("--mode {mode} --workers 2 --slots 64 --jobs 3");
        let report = run(&name, &format!("{jobs} --elements 50000 --iterations 2"));
        let jobs = report["jobs"].as_array().unwrap();
        let names: Vec<_> = jobs.iter().filter_map(|job| job["name"].as_str()).collect();
        assert_eq!(names, ["lab0", "lab1", "lab2"], "{mode}: {report}");
        let shares: f64 = jobs.iter().filter_map(|job| job["share"].as_f64()).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{mode}: {report}");
        let whole = report["tat_s"]["max"].as_f64();
        assert!(jobs.iter().all(|job| job["tat_s"]["max"].as_f64() <= whole), "{mode}: {report}");
        let collisions: u64 = jobs.iter().filter_map(|job| job["collisions"].as_u64()).sum();
        assert_eq!(report["dynamic"]["collisions"].as_u64().unwrap_or(0), collisions, "{mode}: {report}");
    }
}

#[test]
fn both_backends_sum_in_both_topologies() {
    let Some(name) = name("all") else { return };
    for backend in ["xdp", "udp"] {
        for topology in ["per-port", "one-arm"] {
            let path = format!("--backend {backend} --topology {topology}");
            run(&name, &format!("{path} --workers 3 --elements 50000 --iterations 1"));
        }
    }
}

#[test]
fn a_process_drops_on_purpose_as_programs_do() {
    let Some(name) = name("drop") else { return };
    for backend in ["xdp", "udp"] {
        let drop = format!("--backend {backend} --aggregator-drop 5%");
        let report = run(&name, &format!("{drop} --workers 2 --elements 100000 --iterations 1"));
        let dropped = &report["drops"]["aggregator"]["injected_drop"];
        assert!(dropped.as_u64() > Some(0), "{backend}: {report}");
    }
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let Some(name) = name("int") else { return };
    let mut run = endless(&name);
    kill(Pid::from_raw(run.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert_eq!(left(&name), Vec::<String>::new());
}

#[test]
fn down_removes_what_a_killed_run_left() {
    let Some(name) = name("kill") else { return };
    let mut run = endless(&name);
    let processes = Record::load(&name).unwrap().processes;
    assert!(!sumac_lab(&format!("down --name {name}")).status.success(), "the lab is in use");
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(
        processes.iter().all(sumac_lab::record::ProcessRecord::lives),
        "daemons and aggregator outlive their lab"
    );
    let down = sumac_lab(&format!("down --name {name}"));
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert!(!processes.iter().any(sumac_lab::record::ProcessRecord::lives), "a program outlived its lab");
    assert_eq!(left(&name), Vec::<String>::new());
}

#[test]
fn wrong_usage_is_told() {
    let wrong = [
        "run --rate fast",
        "run --loss 90%",
        "run --chunk 0",
        "run --parameter-hosts 2",
        "run --no-aggregator",
        "up --ecn-threshold 64",
        "up --workers 33",
        "run --elements 0",
        "run --jobs 0",
        "run --slots 48",
        "run --mode dynamic --slots 0",
        "run --mode dynamic --window 100",
        "run --mode dynamic --wire auto",
        "run --mode dynamic --parameter-hosts 5",
        "run --mode dynamic --parameter-hosts 2",
        "run --mode dynamic --workers 2 --queues 3 --parameter-hosts 3 --co-located",
        "run --mode dynamic --racks 2 --workers-per-rack 2 --co-located",
        "run --mode dynamic --no-aggregator --aggregator-drop 1%",
        "run --collective ring",
        "run --mode direct --collective star",
        "run --mode direct --workers 3 --collective allgather --elements 1000",
        "run --aggregator host",
        "run --aggregator none",
        "run --mode direct --aggregator bmv2",
        "run --topology loopback --backend udp --aggregator bmv2",
        // Each of two options that want each other, and both ways to say how many workers.
        "up --racks 2",
        "up --workers-per-rack 2",
        "up --racks 2 --workers-per-rack 2 --workers 4",
    ];
    for wrong in wrong {
        assert_eq!(sumac_lab(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let unknown = sumac_lab("down --name no-such-lab");
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("sumac-lab list"));
}

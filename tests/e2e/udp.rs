//! Runs of packets over UDP: whole, cut by the device, taken apart by the receiver, and refused by the path.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Backend, Deployment, SumacOptions};
use sumac_lab::programs::Programs;
use sumac_tests::copied::copy_programs;
use sumac_tests::site::{in_turn, with_crew};
use sumac_tests::{Crew, exact};

const COUNT: usize = 400_000;
const WORKERS: u16 = 3;
/// Words of a packet, at MTU 1500.
const WORDS: usize = 352;

/// Features of the hosts' interfaces, as `ethtool -K` names them.
fn set_features(sumac: &Deployment<'_>, features: &[&str]) {
    let lab = sumac.lab();
    for rank in 0..WORKERS {
        lab.worker(rank).offload(lab.worker_interface(), features).unwrap();
    }
    for port in lab.spec().aggregator_ports() {
        lab.aggregator().offload(&port, features).unwrap();
    }
}

/// Packets and messages that a socket has sent, and has received.
fn counts(socket: &Value) -> [u64; 4] {
    ["sent", "batches_sent", "received", "batches_received"].map(|name| socket[name].as_u64().unwrap())
}

/// The same of what one sum has moved: of worker 0's socket, and of the aggregator's.
fn sum_counts(sumac: &Deployment<'_>, crew: &Crew, seed: u64) -> [[u64; 4]; 2] {
    let now = || {
        let stats = sumac.client(0).unwrap().stats_json().unwrap();
        let status = sumac.aggregator_status().unwrap();
        [counts(&stats["ports"][0]), counts(&status["sockets"][0])]
    };
    let before = now();
    exact::assert_sums(&format!("sum {seed}"), seed, &crew.allreduce(seed, COUNT));
    let after = now();
    std::array::from_fn(|place| std::array::from_fn(|count| after[place][count] - before[place][count]))
}

fn udp() -> SumacOptions {
    SumacOptions { backend: Backend::Udp, ..SumacOptions::default() }
}

#[test]
fn runs_arrive_whole_cut_and_one_by_one() {
    with_crew(LabSpec::new(WORKERS), &udp(), |sumac, crew| {
        // Over a link that cuts nothing, both ends have messages of many packets.
        set_features(sumac, &["tx", "on", "tso", "on", "gso", "on", "gro", "on"]);
        for [sent, batches_sent, received, batches_received] in sum_counts(sumac, crew, 1) {
            println!(
                "whole: {sent} packets in {batches_sent} messages out, {received} in {batches_received} back"
            );
            assert!(sent > 4 * batches_sent && received > 4 * batches_received);
        }
        // A device that cuts runs, and a receiver that does not join the packets again.
        set_features(sumac, &["tx", "off", "tso", "off", "gso", "off", "gro", "off"]);
        for [sent, batches_sent, received, batches_received] in sum_counts(sumac, crew, 2) {
            println!(
                "cut: {sent} packets in {batches_sent} messages out, {received} in {batches_received} back"
            );
            assert!(sent > 4 * batches_sent);
            assert_eq!(received, batches_received);
        }
    });
}

#[test]
fn a_path_that_refuses_runs_gets_single_packets() {
    with_crew(LabSpec::new(WORKERS), &udp(), |sumac, crew| {
        sum_counts(sumac, crew, 1);
        // Packets are longer now than the path's MTU: the kernel refuses runs of them, and fragments single
        // ones.
        let (lab, aggregator) = (sumac.lab(), sumac.lab().spec().aggregator_ip(0));
        lab.worker(0)
            .ip(&[format!("route replace {aggregator}/32 dev {} mtu 1000", lab.worker_interface())])
            .unwrap();
        let [[sent, batches_sent, ..], _] = sum_counts(sumac, crew, 2);
        println!("refused: {sent} packets in {batches_sent} messages");
        // Exponent rounds still fit, and may go as runs.
        assert!(batches_sent >= COUNT.div_ceil(WORDS) as u64);
    });
}

#[test]
fn over_loopback_without_root() {
    in_turn(|| {
        // The user `nobody` cannot run programs in a checkout below root's home directory.
        let folder = std::env::temp_dir().join(format!("sumac-e2e-loopback-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let programs = Programs::find().unwrap();
        let programs = [programs.sumac(), programs.sumac_agg(), programs.sumac_lab()];
        copy_programs(programs.iter().map(Command::get_program), &folder);
        let mut run = Command::new("setpriv");
        run.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"]);
        run.arg(folder.join("sumac-lab")).args([
            "run",
            "--topology",
            "loopback",
            "--backend",
            "udp",
            "--json",
        ]);
        run.current_dir(&folder).env("SUMAC_BIN_DIR", &folder).env("TMPDIR", &folder).env("HOME", &folder);
        let output = run.env_remove("XDG_RUNTIME_DIR").output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        println!("packets a message: {}", report["packets_per_message"]);
        assert_eq!((&report["verified"], &report["topology"]), (&json!(true), &json!("loopback")));
        assert!(report["packets_per_message"]["workers_sent"].as_f64().unwrap() > 1.0, "{report}");
        fs::remove_dir_all(&folder).unwrap();
    });
}

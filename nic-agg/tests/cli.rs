//! The command line: output, exit codes, and the programs' log.
//!
//! ```text
//!   [w]==p0 [aggregator]
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod beside;
#[path = "../../tests/src/copied.rs"]
mod copied;
mod faults;
mod support;

use std::{
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Output, Stdio},
};

use sumac_control::join;
use sumac_job::JobSpec;

use support::{
    frames::header,
    job_of, needs_privileges,
    net::{Namespace, cable},
    serve::{Serving, endpoint, request},
};

const BIN: &str = env!("CARGO_BIN_EXE_sumac-agg");

struct Shell {
    middle: Namespace,
    worker: Namespace,
}

impl Shell {
    fn new() -> Shell {
        let (middle, worker) = (Namespace::new("agg"), Namespace::new("w"));
        cable((&middle, "p0", Some("10.79.0.1/24")), (&worker, "w", Some("10.79.0.2/24")));
        Shell { middle, worker }
    }

    fn run(&self, line: &str) -> Output {
        self.middle.output(&format!("{BIN} {line} --pin-root {}", self.middle.pins.display()))
    }

    /// Returns the standard output of a line that succeeds.
    fn done(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the exit code and standard error of a line that fails.
    fn fails(&self, line: &str) -> (i32, String) {
        let output = self.run(line);
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.done(line)).unwrap()
    }
}

#[test]
fn verbs_in_their_usual_order() {
    needs_privileges!("verbs_in_their_usual_order");
    let shell = Shell::new();
    let (code, text) = shell.fails("status");
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("sumac-agg attach IFACE"), "{text}");
    let (code, text) = shell.fails("attach nowhere");
    assert!(code == 1 && text.contains("no interface nowhere"), "{text}");
    let (code, text) = shell.fails("attach p0 --elements 833");
    assert!(code == 1 && text.contains("at most 832"), "{text}");
    let (code, text) = shell.fails("attach p0 --slots 4000000000");
    assert!(code == 1 && text.contains("MiB of kernel memory"), "{text}");

    let attached = shell.json("attach p0 --slots 32 --elements 256 --json");
    assert_eq!(attached["ports"][0]["mode"], "driver", "{attached}");
    assert_eq!(attached["slots"], 32);
    let added = shell.done("job add 7 --token 0x5eed --worker 10.79.0.2:5000 --slots 16");
    assert_eq!(added, "job 7 epoch 1: slots 0 to 15, results to each worker's interface\n");
    let jobs = shell.json("job list --json");
    assert_eq!((&jobs[0]["job"], &jobs[0]["workers"][0]["port"]), (&7.into(), &5000.into()), "{jobs}");
    assert!(!jobs.to_string().contains("24301"), "the token is shown: {jobs}");
    let status = shell.json("status --json");
    assert_eq!(status["slots_used"], 16);
    let text = shell.done("job list");
    assert!(!text.contains("duplicates"), "zeros are shown: {text}");
    assert_eq!(status["ports"][0]["interface"], "p0");
    let text = shell.done("status");
    assert!(
        text.contains("p0 (index") && text.contains("driver mode") && text.contains("10.79.0.2:5000"),
        "{text}"
    );
    let (code, text) = shell.fails("job add 7 --token 1 --worker 10.79.0.2 --slots 16");
    assert!(code == 1 && text.contains("remove it first"), "{text}");
    let (code, text) = shell.fails("job add 8 --token 1 --worker 10.79.0.2 --elements 257");
    assert!(code == 1 && text.contains("takes 1 to 256 (--elements; of a switch,"), "{text}");

    assert!(shell.done("detach").contains("kept the slots of jobs [7]"));
    assert!(shell.done("detach").starts_with("nothing is attached\n"));
    shell.done("attach p0 --slots 32 --elements 256");
    let (code, text) = shell.fails("detach p9");
    assert!(code == 1 && text.contains("not attached to [\"p9\"]"), "{text}");
    assert_eq!(shell.json("job remove 7 --json"), serde_json::json!({ "removed": 7 }));
    assert_eq!(shell.fails("job remove 7").0, 1);
    let again = shell.json("job add 7 --token 0x5eed --worker 10.79.0.2 --slots 16 --json");
    assert_eq!((&again["epoch"], &again["first_slot"]), (&2.into(), &0.into()), "{again}");
    let removed = shell.done("detach --all");
    assert!(removed.lines().next().unwrap().ends_with("link-p0"), "{removed}");
    assert_eq!(shell.fails("job list").0, 3);
    assert_eq!(shell.done("detach"), "nothing is attached\n");
    let nothing = serde_json::json!({ "interfaces": [], "kept_jobs": [] });
    assert_eq!(shell.json("detach --json"), nothing);
    assert!(shell.done("detach --all").starts_with("nothing of an aggregator's below"));
    assert_eq!(shell.fails("detach p0").0, 1, "named, but not attached");
}

#[test]
fn rejected_jobs_and_bad_tokens_are_told_once() {
    needs_privileges!("rejected_jobs_and_bad_tokens_are_told_once");
    let shell = Shell::new();
    shell.done("attach p0 --slots 32");
    shell.done("job add 5 --token 77 --worker 10.79.0.2 --slots 16");
    let net = format!("--net=/run/netns/{}", shell.middle.name);
    let mut logs = Command::new("nsenter")
        .args([&net, BIN, "logs", "--pin-root"])
        .arg(&shell.middle.pins)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(logs.stderr.take().unwrap()).lines();
    let socket = shell.worker.socket(Ipv4Addr::new(10, 79, 0, 2), 48700);
    let mut new = job_of(1, 4);
    let mut send = |job, times| {
        new.job = job;
        let mut payload = header(&new, 0, 0, 1).to_bytes().to_vec();
        payload.extend([0; 4]);
        for _ in 0..times {
            socket.send_to(&payload, (Ipv4Addr::new(10, 79, 0, 1), 48700)).unwrap();
        }
    };
    send(33, 100);
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains("no job 33 here") && line.contains("10.79.0.2"), "{line}");
    send(5, 100);
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains("burst of bad tokens") && line.contains("job 5 from 10.79.0.2"), "{line}");
    logs.kill().unwrap();
    logs.wait().unwrap();
    let told = lines.map_while(Result::ok).count();
    // At most one of each per CPU and second, of 200.
    assert!(told <= 8, "{told} more messages");
    shell.done("job remove 5");
    let status = shell.json("status --json");
    let ended = serde_json::json!([{ "job": 5, "epoch": 1, "counters": { "bad_token": 100 } }]);
    assert_eq!(status["ended"], ended, "the job's totals survive it");
    assert_eq!(
        (&status["counters"]["unknown_job"], &status["counters"]["bad_token"]),
        (&100.into(), &100.into())
    );
}

#[test]
fn an_address_of_its_own_answers_and_aggregates() {
    needs_privileges!("an_address_of_its_own_answers_and_aggregates");
    let shell = Shell::new();
    let own = Ipv4Addr::new(10, 79, 0, 9);
    shell.done("attach p0 --slots 32 --own 10.79.0.9");
    let pinged = shell.worker.run("ping -c 2 -i 0.2 -W 2 10.79.0.9");
    assert!(pinged.contains(" 0% packet loss"), "{pinged}");
    shell.done(
        "job add 5 --token 0x5eedf00dcafe1234 --epoch 3 --worker 10.79.0.2:5000 --slots 8 --elements 8",
    );
    let mut new = job_of(1, 8);
    new.entry.token = 0x5eed_f00d_cafe_1234;
    let socket = shell.worker.socket(Ipv4Addr::new(10, 79, 0, 2), 5000);
    let mut payload = header(&new, 0, 0, 8).to_bytes().to_vec();
    payload.extend([7; 32]);
    socket.send_to(&payload, (own, 48700)).unwrap();
    let mut result = [0; 200];
    let (len, from) = socket.recv_from(&mut result).unwrap();
    assert_eq!((len, from.ip()), (payload.len(), own.into()));
    let text = shell.done("status");
    assert!(text.contains("10.79.0.9: replies to ARP and ping"), "{text}");
}

#[test]
fn drops_on_purpose_are_set_counted_and_shown() {
    needs_privileges!("drops_on_purpose_are_set_counted_and_shown");
    let shell = Shell::new();
    shell.done("attach p0 --slots 32");
    shell.done("drop --up 1% --down 0");
    let set = serde_json::json!({ "job": 9, "up_percent": 2.0, "down_percent": 3.0 });
    assert_eq!(shell.json("drop --up 2% --down 3% --job 9 --json"), set);
    let rule = |first: u16, last: u16, up: f64, down: f64| {
        serde_json::json!({ "first_job": first,
        "last_job": last, "up_percent": up, "down_percent": down })
    };
    let rules = [rule(1, 8, 1.0, 0.0), rule(9, 9, 2.0, 3.0), rule(10, 255, 1.0, 0.0)];
    assert_eq!(shell.json("status --json")["drops"], serde_json::json!(rules), "without a job");
    let text = shell.done("status");
    assert!(
        text.contains("2 % of arriving frames, 3 % of leaving frames, of jobs 9 to 9, present"),
        "{text}"
    );
    shell.done("drop --up 0 --down 0");
    assert_eq!(shell.json("status --json")["drops"], serde_json::json!([]));
    shell.done(
        "job add 5 --token 0x5eedf00dcafe1234 --epoch 3 --worker 10.79.0.2:5000 --slots 8 --elements 8",
    );
    shell.done("drop --up 100% --down 0.5% --job 5");
    let socket = shell.worker.socket(Ipv4Addr::new(10, 79, 0, 2), 5000);
    let mut payload = header(&job_of(1, 8), 0, 0, 8).to_bytes().to_vec();
    payload.extend([7; 32]);
    for _ in 0..10 {
        socket.send_to(&payload, (Ipv4Addr::new(10, 79, 0, 1), 48700)).unwrap();
    }
    let text = shell.done("status");
    let shown = "INTENTIONAL DROPS: 100 % of arriving frames (10 so far), 0.5 % of leaving frames (0 so far)";
    assert!(text.contains(shown), "{text}");
    let status = shell.json("status --json");
    assert_eq!(status["jobs"][0]["counters"]["injected_drop"], 10, "{status}");
    shell.done("drop --up 0 --down 0");
    socket.send_to(&payload, (Ipv4Addr::new(10, 79, 0, 1), 48700)).unwrap();
    socket.recv(&mut [0; 200]).unwrap();
    let (code, text) = shell.fails("drop --up 101% --down 0");
    assert!(code == 2 && text.contains("percentage"), "{text}");
    let (code, text) = shell.fails("drop --up 0 --down 0 --job 256");
    assert!(code == 1 && text.contains("job number 256"), "{text}");
}

#[test]
fn the_port_that_limits_chunks_is_named() {
    needs_privileges!("the_port_that_limits_chunks_is_named");
    let shell = Shell::new();
    let wide = Namespace::new("w2");
    cable((&shell.middle, "p1", Some("10.79.1.1/24")), (&wide, "w", Some("10.79.1.2/24")));
    shell.middle.output("ip link set p1 mtu 3000");
    shell.done("attach p0 p1 --slots 32");
    let limit = shell.json("status --json")["chunk_limit"].clone();
    assert_eq!(limit, serde_json::json!({ "elements": 352, "port": "p0 (MTU 1500)" }));
    let text = shell.done("status");
    assert!(text.contains("chunks   up to 352 elements: the limit of interface p0 (MTU 1500)"), "{text}");
    let (_, text) = shell.fails("job add 7 --token 1 --worker 10.79.0.2 --slots 16 --elements 600");
    assert!(text.contains("but p0 has 1500"), "{text}");
    shell.done("attach p0 p1 --slots 32 --elements 256");
    let limit = shell.json("status --json")["chunk_limit"].clone();
    assert_eq!(limit, serde_json::json!({ "elements": 256, "port": null }));
}

#[test]
fn the_reason_for_a_jobs_slots_is_shown() {
    needs_privileges!("the_reason_for_a_jobs_slots_is_shown");
    let shell = Shell::new();
    shell.done("attach p0 --slots 64");
    let state_dir = tempfile::tempdir().unwrap();
    let secret = state_dir.path().join("secret");
    sumac_control::state_dir::write_private(&secret, b"a secret for this test").unwrap();
    let serve = Serving::run(
        Command::new("nsenter")
            .args([&format!("--net=/run/netns/{}", shell.middle.name), BIN, "serve", "--pin-root"])
            .arg(&shell.middle.pins)
            .arg("--secret-file")
            .arg(&secret)
            .arg("--state-dir")
            .arg(state_dir.path()),
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let endpoint =
        endpoint(SocketAddr::from(([10, 79, 0, 1], 48600)), state_dir.path(), "a secret for this test");
    let joining = join(&endpoint, request(spec(), 48700));
    let member = shell.worker.inside(|| runtime.block_on(joining)).unwrap();
    let wide = JobSpec { job: "wide".into(), elements: Some(600), ..spec() };
    let mut wide = request(wide, 48700);
    wide.host.max_elements = 832;
    let wide = join(&endpoint, wide);
    let refused = shell.worker.inside(|| runtime.block_on(wide)).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("at most 352, since its port p0 (MTU 1500) carries no more"), "{refused}");
    let shown = shell.json("status --json")["jobs"][0]["slots_reason"].clone();
    let name = shell.json("status --json")["jobs"][0]["name"].clone();
    let text = shell.done("status");
    drop(serve);
    assert_eq!((shown, name), ("asked for when the job was opened".into(), "train".into()));
    assert!(text.contains("`train` epoch"), "{text}");
    assert!(text.contains("  slots: asked for when the job was opened"), "{text}");
    drop(member);
    let job = shell.json("status --json")["jobs"][0].clone();
    assert_eq!(
        (&job["slots"], &job["slots_reason"]),
        (&32.into(), &serde_json::Value::Null),
        "nobody knows it"
    );
}

fn spec() -> JobSpec {
    JobSpec { elements: Some(256), slots: Some(16), timeout_s: Some(20.0), ..JobSpec::new("train", 0, 1) }
}

#[test]
fn help_shows_examples_and_generated_files_are_whole() {
    let run = |arguments: &[&str]| Command::new(BIN).args(arguments).output().unwrap();
    for verb in ["attach", "detach", "status", "drop", "serve", "token", "logs"] {
        let text = String::from_utf8(run(&[verb, "--help"]).stdout).unwrap();
        assert!(text.contains("Example"), "{verb}: {text}");
    }
    assert_eq!(run(&["attach"]).status.code(), Some(2), "a line without an interface");
    let script = String::from_utf8(run(&["completions", "bash"]).stdout).unwrap();
    assert!(script.contains("complete -F _sumac__agg"), "{script}");
    let line = "COMP_WORDS=(sumac-agg attach --sl); COMP_CWORD=2; _sumac__agg sumac-agg --sl attach; echo \
    ${COMPREPLY[*]}";
    let completed = Command::new("bash").args(["-c", &format!("{script}\n{line}")]).output().unwrap();
    assert_eq!(String::from_utf8(completed.stdout).unwrap().trim(), "--slots --slot-timeout");
    let directory = tempfile::tempdir().unwrap();
    assert!(run(&["man", directory.path().to_str().unwrap()]).status.success());
    let page = std::fs::read_to_string(directory.path().join("sumac-agg.1")).unwrap();
    assert!(page.contains("attach"), "{page}");
}

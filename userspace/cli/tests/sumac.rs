//! The `sumac` command as a process: exit codes, output, and the kernel objects that remain.
//!
//! ```text
//!   one namespace:  [h0]===veth===[h1]
//! ```

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by failing")]

#[path = "../../../tests/src/copied.rs"]
mod copied;
#[path = "../../../nic-agg/tests/faults/trace.rs"]
mod trace;

mod mounts;

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use copied::copy_programs;
use serde_json::Value;
use sumac_wire::tables::{HostJobEntry, job_flag};
use trace::Traced;

const SUMAC: &str = env!("CARGO_BIN_EXE_sumac");
const NOBODY: u32 = 65534;

/// Returns whether the test of this thread may run, and prints the reason if not.
fn privileged() -> bool {
    let set = sumac_loader::preflight::effective_capabilities().unwrap();
    if sumac_loader::preflight::missing(set).is_empty() {
        return true;
    }
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    assert!(std::env::var_os("REQUIRE_PRIVILEGED").is_none(), "{test}: not privileged");
    println!("SKIP {test}: XDP programs and namespaces need root");
    false
}

/// A namespace with a veth pair, and a directory for pins; both are removed on drop.
struct Lab {
    name: String,
    pins: String,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

fn shell(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Lab {
    /// A lab, or none where this test may not have one.
    fn new() -> Option<Self> {
        if !privileged() {
            return None;
        }
        let name = format!("sumaccli{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let lab = Self { pins: format!("/sys/fs/bpf/{name}"), name };
        shell(&format!("ip netns add {}", lab.name));
        lab.inside("ip link add h0 type veth peer name h1");
        lab.inside("ip link set h0 up");
        lab.inside("ip link set h1 up");
        Some(lab)
    }

    fn inside(&self, line: &str) {
        shell(&format!("nsenter --net=/run/netns/{} {line}", self.name));
    }

    /// Runs the command inside: exit code, standard output, standard error.
    fn sumac(&self, arguments: &str) -> (i32, String, String) {
        let net = format!("--net=/run/netns/{}", self.name);
        let mut command = Command::new("nsenter");
        command.args([&net, SUMAC]).args(arguments.split_whitespace());
        run(command.env("SUMAC_PIN_ROOT", &self.pins).env("SUMAC_SOCKET", "/nonexistent/sumac.sock"))
    }

    fn json(&self, arguments: &str) -> Value {
        let (_, out, error) = self.sumac(arguments);
        serde_json::from_str(&out).unwrap_or_else(|bad| panic!("{arguments}: {bad}: {out}{error}"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = sumac_hostprog::clean(&self.pins);
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn an_attached_program_outlives_the_process() {
    let Some(lab) = Lab::new() else { return };
    let (code, out, error) = lab.sumac("attach h0 --mode copy --base-port 50000 --shards 4");
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("in driver mode, queues 0 of 1, UDP ports 50000-50003"), "{out}");

    let report = lab.json("status --json");
    let h0 = &report["interfaces"][0];
    assert_eq!((&h0["interface"], &h0["state"]), (&"h0".into(), &"attached".into()), "{report}");
    assert_eq!((&h0["mode"], &h0["requested_mode"]), (&"driver".into(), &"copy".into()), "{report}");
    assert_eq!(report["daemon"]["running"], false, "{report}");
    let (code, out, _) = lab.sumac("status");
    assert!(code == 0 && out.contains("in driver mode (asked for copy)"), "{out}");

    let first = h0["program_id"].clone();
    assert_eq!(lab.sumac("attach h0 --mode auto").0, 0);
    assert_ne!(lab.json("status --json")["interfaces"][0]["program_id"], first, "replaced");

    let attached = lab.json("attach h0 --json");
    assert_eq!((&attached["interface"], &attached["base_port"]), (&"h0".into(), &48700.into()), "{attached}");
    let removed = lab.json("detach h0 --json");
    assert!(!removed["removed"].as_array().unwrap().is_empty(), "{removed}");
    assert_eq!(lab.sumac("attach h0").0, 0);

    let (code, out, error) = lab.sumac("detach h0");
    assert!(code == 0 && out.contains("/link\n"), "{out}{error}");
    assert_eq!(lab.json("status --json")["interfaces"].as_array().unwrap().len(), 0);
    let (code, _, error) = lab.sumac("detach h0");
    assert!(code == 1 && error.contains("no host program on h0"), "{error}");
    assert!(!Path::new(&lab.pins).exists(), "pins remain");
}

#[test]
fn steering_is_reported_and_ntuple_fails_without_rules() {
    let Some(lab) = Lab::new() else { return };
    let (code, out, error) = lab.sumac("attach h0 --shards 2 --steer ntuple");
    assert!(code == 0 && out.contains("one receive queue, nothing to steer"), "{out}{error}");
    assert_eq!(lab.json("status --json")["interfaces"][0]["steering"]["by"], "one_queue");
    assert_eq!(lab.sumac("detach h0").0, 0);

    lab.inside("ip link del h0");
    lab.inside("ip link add h0 numrxqueues 2 type veth peer name h1 numtxqueues 2");
    lab.inside("ethtool -L h0 rx 2");
    let (code, _, error) = lab.sumac("attach h0 --shards 2 --steer ntuple");
    assert!(code == 1 && error.contains("h0 takes no rules that steer packets"), "{error}");
    let (code, out, error) = lab.sumac("attach h0 --shards 2");
    assert!(code == 0 && out.contains("no rules: the queue is that of the CPU"), "{out}");
    assert!(error.contains("h0 takes no rules that steer packets") && error.contains("WARN"), "{error}");
    let report = lab.json("status --json");
    let steering = &report["interfaces"][0]["steering"];
    assert_eq!((&steering["by"], &steering["queues"]), (&"senders_cpu".into(), &2.into()), "{report}");
    assert_eq!(steering["without_rule"], serde_json::json!([48700, 48701]), "{report}");
    let (code, out, _) = lab.sumac("status");
    assert!(code == 0 && out.contains("  steering: no rules: the queue"), "{out}");
    assert_eq!(lab.sumac("detach h0").0, 0);
    lab.inside("ip address add 10.0.0.2/24 dev h0");
    lab.inside("ip link set h0 up");
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("daemon.toml");
    let text = format!(
        "aggregator = '10.0.0.1:48600'\naddress = '10.0.0.2'\ninterface = 'h0'\nbackend = 'xdp'\nshards = 2\n\
         steer = 'ntuple'\npin_root = '{}'\nsocket = '{}'\n",
        lab.pins,
        directory.path().join("sock").display()
    );
    std::fs::write(&config, text).unwrap();
    let (code, _, error) = lab.sumac(&format!("daemon --config {}", config.display()));
    assert!(code == 1 && error.contains("h0 takes no rules that steer packets"), "{error}");

    let report = lab.json("doctor h0 --json");
    let named =
        |name: &str| report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).cloned();
    assert_eq!(named("steering").unwrap()["level"], "warn", "{report}");
    assert!(named("threads").is_some(), "{report}");
}

#[test]
fn clean_lists_removed_pins() {
    let Some(lab) = Lab::new() else { return };
    for end in ["h0", "h1"] {
        assert_eq!(lab.sumac(&format!("attach {end}")).0, 0);
    }
    let (code, out, error) = lab.sumac("clean");
    assert_eq!((code, out.matches("/link\n").count()), (0, 2), "{out}{error}");
    let (code, out, _) = lab.sumac("clean");
    assert!(code == 0 && out.contains("nothing of Sumac's"), "{out}");
    assert_eq!(lab.json("clean --json"), serde_json::json!({ "removed": [] }));
    let (code, _, error) = lab.sumac("detach h0");
    assert!(code == 1 && error.contains("no host program on h0"), "{error}");
}

/// Failing system calls and kill -9 at steps of `attach` over an attached program: program, mode and ports
/// belong together.
#[test]
fn an_attachment_that_fails_or_is_killed_is_done_or_undone() {
    let Some(lab) = Lab::new() else { return };
    // Ports, mode and program of the interface, as the status has them.
    let seen = || {
        let found = lab.json("status --json")["interfaces"][0].clone();
        ["state", "program_id", "mode", "shards"].map(|field| found[field].clone())
    };
    for change in ["attach h0 --shards 2", "attach h0 --shards 2 --mode generic"] {
        let ready = || {
            assert_eq!(lab.sumac("attach h0 --shards 1 --mode copy").0, 0);
            seen()
        };
        ready();
        let traced = Traced::new(&lab.name, SUMAC, change, &lab.pins);
        let mut before = ready();
        for (step, fault) in traced.faults() {
            let output = traced.run(&step, fault);
            let case =
                format!("{} {step:?} {fault:?}: {}", traced.line, String::from_utf8_lossy(&output.stderr));
            let after = seen();
            let is_new = after[0] == "attached" && after[1] != before[1] && after[3] == 2;
            assert!(is_new || after == before, "neither old nor new: {before:?} {after:?} {case}");
            assert_eq!(is_new && change.ends_with("generic"), after[2] == "generic", "{after:?} {case}");
            if is_new {
                before = ready();
            }
        }
    }
    assert_eq!(lab.sumac("detach h0").0, 0);
    assert!(!Path::new(&lab.pins).exists(), "pins remain");
}

#[test]
fn clean_asks_before_it_ends_a_job() {
    let Some(lab) = Lab::new() else { return };
    assert_eq!(lab.sumac("attach h0").0, 0);
    let directory = std::fs::read_dir(format!("{}/host", lab.pins)).unwrap().next().unwrap().unwrap().path();
    let entry = HostJobEntry { flags: job_flag::ACTIVE, world: 2, ..HostJobEntry::default() };
    let map = sumac_loader::map::open_pinned(&directory.join("jobs")).unwrap();
    let table = sumac_loader::map::Table::<HostJobEntry, { size_of::<HostJobEntry>() }>::new(map, "JOBS");
    table.unwrap().set(7, &entry).unwrap();

    let (code, out, _) = lab.sumac("clean --dry-run");
    assert!(code == 0 && out.contains("would end jobs [7] of the host program on h0"), "{out}");
    assert_eq!(out.matches("/link\n").count(), 1, "{out}");
    let (code, _, error) = lab.sumac("clean");
    assert!(code == 1 && error.contains("jobs [7]") && error.contains("--yes"), "{error}");
    assert_eq!(lab.json("status --json")["interfaces"][0]["state"], "attached", "nothing was removed");
    let listed = lab.json("clean --dry-run --json");
    assert_eq!(listed["would_end"], serde_json::json!(["jobs [7] of the host program on h0"]), "{listed}");
    let removed = lab.json("clean --yes --json")["removed"].clone();
    assert!(removed[0].as_str().unwrap().ends_with("/link"), "{removed}");
    assert!(!Path::new(&lab.pins).exists(), "pins remain");
}

#[test]
fn broken_pins_need_attention() {
    let Some(lab) = Lab::new() else { return };
    assert_eq!(lab.sumac("attach h0").0, 0);
    lab.inside("ip link del h0");
    let (code, out, _) = lab.sumac("status");
    assert!(code == 3 && out.contains("h0"), "{code} {out}");
    assert_eq!(lab.sumac("clean").0, 0);
}

#[test]
fn doctor_finds_problems() {
    let Some(lab) = Lab::new() else { return };
    let level = |report: &Value, name: &str| {
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("no {name} in {report}"))["level"].as_str().unwrap().to_owned()
    };
    lab.inside("ethtool -K h0 gro off tx off");
    let before = lab.json("doctor h0 --json");
    for (name, expected) in [
        ("kernel", "ok"),
        ("capabilities", "ok"),
        ("interface", "ok"),
        ("program", "warn"),
        ("mtu", "ok"),
        ("checksums", "ok"),
        ("napi", "warn"),
        ("daemon", "warn"),
    ] {
        assert_eq!(level(&before, name), expected, "{name} in {before}");
    }
    assert_eq!(lab.sumac("attach h0").0, 0);
    let after = lab.json("doctor h0 --json");
    assert_eq!((level(&after, "program"), level(&after, "napi")), ("ok".to_owned(), "ok".to_owned()));

    lab.inside("ethtool -K h0 tx on");
    assert_eq!(level(&lab.json("doctor h0 --json"), "checksums"), "warn");
    let (code, out, _) = lab.sumac("doctor h0 --chunk 360");
    assert!(code == 3 && out.contains("chunks of at most 352 elements"), "{out}");
    lab.inside("ip link set h0 down");
    let (code, out, _) = lab.sumac("doctor h0");
    assert!(code == 3 && out.contains("ip link set dev h0 up"), "{out}");
    assert_eq!(lab.sumac("doctor nope0").0, 3);
}

#[test]
fn errors_name_the_remedy() {
    let Some(lab) = Lab::new() else { return };
    let table = [
        ("attach nope0", 1, "see `ip link`"),
        ("attach h0 --queues 1", 1, "h0 receives on 1 queue(s)"),
        ("attach h0 --queues x", 2, "no list of queues"),
        ("attach h0 --mode fast", 2, "[possible values: auto, zerocopy, copy, generic]"),
        ("attach h0 --steer rss", 2, "[possible values: auto, ntuple, off]"),
        ("attach h0 --base-port 65535 --shards 2", 1, "do not fit below 65536"),
        ("attach h0 --pin-root /tmp/sumac-no-bpffs", 1, "mount -t bpf"),
        ("clean --pin-root /sys/fs/bpf", 1, "the whole bpf file system"),
        ("clean --pin-root /tmp", 1, "on no bpf file system"),
        ("stats", 1, "is the daemon running"),
        ("allreduce --job a --rank 0 --world 1 /nonexistent out", 1, "/nonexistent"),
        ("stats --interval 0.001 --watch", 2, "0.05 to 3600"),
        ("events h0", 1, "sumac attach h0"),
        ("fly", 2, "Usage"),
    ];
    for (arguments, expected, text) in table {
        let (code, _, error) = lab.sumac(arguments);
        assert!(code == expected && error.contains(text), "{arguments}: {code}: {error}");
        assert!(error.matches("(os error").count() < 2, "an error of the system twice: {error}");
    }
    assert!(!Path::new(&lab.pins).exists(), "pins remain");
}

#[test]
fn an_unprivileged_user_gets_the_missing_capabilities() {
    if !privileged() {
        return;
    }
    // A copy that every user may run, wherever the build directory is.
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let copy = directory.path().join("sumac");
    copy_programs([SUMAC], &copy);
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (code, _, error) = run(Command::new(&copy).args(["attach", "lo"]).uid(NOBODY).gid(NOBODY));
    assert!(code == 1 && error.contains("CAP_BPF") && error.contains("root"), "{error}");
    let (code, out, _) = run(Command::new(&copy).args(["doctor"]).uid(NOBODY).gid(NOBODY));
    assert!(code == 3 && out.contains("fail capabilities"), "{out}");
}

#[test]
fn a_check_reads_secrets_and_resolves_names() {
    let directory = tempfile::tempdir().unwrap();
    let (config, secret) = (directory.path().join("daemon.toml"), directory.path().join("token"));
    let check = |text: &str| {
        std::fs::write(&config, text).unwrap();
        let (code, out, error) =
            run(Command::new(SUMAC).args(["daemon", "--check", "--config"]).arg(&config));
        assert_eq!(code == 0, out.contains("valid"), "{out}{error}");
        (code, error)
    };
    std::fs::write(&secret, "a secret of some length").unwrap();
    let mode =
        |mode| std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    let with_secret = format!("aggregator = 'localhost:48600'\nsecret_file = {secret:?}\n");
    mode(0o600);
    assert_eq!(check(&with_secret).0, 0);
    mode(0o644);
    let (code, error) = check(&with_secret);
    assert!(code == 1 && error.contains(&format!("chmod 600 {}", secret.display())), "{error}");
    mode(0o600);
    let missing = "/nonexistent/ca.pem";
    let cases = [
        (format!("{with_secret}tls_ca = '{missing}'"), missing),
        (
            "aggregator = 'localhost:48600'\nsecret_file = '/nonexistent/token'".to_owned(),
            "/nonexistent/token",
        ),
        ("aggregator = 'nowhere.invalid:48600'".to_owned(), "cannot resolve nowhere.invalid:48600"),
        ("socket_group = 'no-such-group-here'".to_owned(), "socket_group"),
        ("[[allow]]\nusers = ['no-such-user-here']\njobs = ['*']".to_owned(), "allow, rule 1, users"),
    ];
    for (text, named) in cases {
        let (code, error) = check(&text);
        assert!(code == 1 && error.contains(named), "{text}: {code}: {error}");
        let doubled = error.matches("(os error").count();
        assert!(doubled < 2, "{error}");
    }
}

/// Strict priority and RED, where the kernel has them: many are built without.
#[test]
fn the_tc_configuration_is_loaded() {
    let Some(lab) = Lab::new() else { return };
    let (code, script, error) = lab.sumac("qos show --format tc --interface h0");
    assert_eq!(code, 0, "{error}");
    let net = format!("--net=/run/netns/{}", lab.name);
    let (code, _, error) = run(Command::new("nsenter").args([&net, "sh", "-e", "-c", &script]));
    if error.contains("qdisc kind is unknown") {
        println!("SKIP the_tc_configuration_is_loaded: this kernel has no prio or no RED: {}", error.trim());
        return;
    }
    assert_eq!(code, 0, "{error}");
    let (_, out, _) = run(Command::new("nsenter").args([&net, "tc", "-json", "qdisc", "show", "dev", "h0"]));
    let qdiscs: Value = serde_json::from_str(&out).unwrap();
    let count = |kind: &str| qdiscs.as_array().unwrap().iter().filter(|qdisc| qdisc["kind"] == kind).count();
    assert_eq!((count("prio"), count("red"), count("bfifo")), (1, 6, 1), "{out}");
}

#[test]
fn manual_pages_and_completions_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let (code, _, error) = run(Command::new(SUMAC).arg("man").arg(directory.path()));
    assert_eq!(code, 0, "{error}");
    let page = std::fs::read_to_string(directory.path().join("sumac-attach.1")).unwrap();
    assert!(page.contains("zerocopy") && directory.path().join("sumac.1").exists());
    for shell in ["bash", "zsh", "fish"] {
        let (code, out, _) = run(Command::new(SUMAC).args(["completions", shell]));
        assert!(code == 0 && out.contains("attach"), "{shell}");
    }
    for verb in ["doctor", "attach", "detach", "status", "clean", "stats"] {
        let (code, out, _) = run(Command::new(SUMAC).args([verb, "--help"]));
        assert!(code == 0 && out.contains("Exit codes:"), "{verb}: {out}");
    }
}

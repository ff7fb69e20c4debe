//! Trainers of other users: what they may open, and how they reach the socket. See `lab.rs` for the topology.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::common::{Raw, SECRET, code};
use crate::lab::Lab;
use serde_json::{Value, json};

/// A trainer in Python: sends `hello` and one command, and prints the answer.
const TRAINER: &str = r#"
import json, os, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(os.environ["SOCKET"])
def ask(command):
    s.send(json.dumps(command).encode())
    return s.recv(131072).decode()
ask({"id": 1, "cmd": "hello", "version": 4})
print(ask(json.loads(os.environ["COMMAND"])))
"#;

/// The group of the rule.
const GROUP: u32 = 70100;

fn needs_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let why = "needs root to become another user";
        assert!(std::env::var("REQUIRE_PRIVILEGED").as_deref() != Ok("1"), "{why}");
        println!("SKIP {test}: {why}");
    }
    is_root
}

/// Sends a command as a process of another user; `groups` are supplementary. Returns its answer, or why it
/// had none.
fn as_user(uid: u32, groups: &str, socket: &Path, command: &Value) -> Result<Value, String> {
    let groups = if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") };
    let mut trainer = Command::new("setpriv");
    trainer.args([format!("--reuid={uid}"), format!("--regid={uid}"), groups]).args([
        "/usr/bin/python3",
        "-c",
        TRAINER,
    ]);
    let ran = trainer.env("SOCKET", socket).env("COMMAND", command.to_string()).output().unwrap();
    let error = || String::from_utf8_lossy(&ran.stderr).into_owned();
    if ran.status.success() { Ok(serde_json::from_slice(&ran.stdout).unwrap()) } else { Err(error()) }
}

fn open(job: &str, more: Value) -> Value {
    let mut open = json!({"id": 2, "cmd": "open", "job": job, "rank": 0, "world": 1, "timeout_s": 20});
    open.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    open
}

#[test]
fn another_user_opens_only_what_a_rule_or_its_own_secret_lets_it() {
    if !needs_root("another_user_opens_only_what_a_rule_or_its_own_secret_lets_it") {
        return;
    }
    let rule = format!("socket_mode = \"0666\"\n[[allow]]\ngroups = [{GROUP}]\njobs = [\"{{user}}:*\"]");
    let lab = Lab::with(1, &rule);
    let socket = &lab.hosts[0].1;
    let group = GROUP.to_string();
    let cases = [
        ("its group's rule", 70001, &*group, open("70001:a", json!({})), "none"),
        (
            "the job of a user whose name continues its own",
            70001,
            &*group,
            open("70001-ops:a", json!({})),
            "denied",
        ),
        ("another user's job", 70001, &*group, open("70002:a", json!({})), "denied"),
        ("no rule", 70002, "", open("70002:a", json!({})), "denied"),
        ("its own secret", 70002, "", open("70001:b", json!({"secret": SECRET})), "none"),
        ("a wrong secret", 70002, "", open("70001:c", json!({"secret": "not this aggregator's"})), "refused"),
    ];
    for (name, uid, groups, command, expected) in cases {
        let reply = as_user(uid, groups, socket, &command).unwrap();
        assert_eq!(code(&reply), expected, "{name}: {reply}");
        if expected == "denied" {
            let hint = reply["error"]["hint"].as_str().unwrap();
            assert!(hint.contains("[[allow]]") && hint.contains("users"), "{name}: {reply}");
        }
    }
    // Root needs no rule.
    let mut root = Raw::greeted(socket);
    assert!(root.ask(open("anything", json!({})))["ok"]["job"].is_u64());
}

/// A control plane that a trainer made up receives nothing: no connection, so neither a secret nor this
/// host's address.
#[test]
fn a_control_plane_that_a_trainer_names_is_not_contacted() {
    let lab = Lab::new(1);
    let theirs = TcpListener::bind("127.0.0.1:0").unwrap();
    theirs.set_nonblocking(true).unwrap();
    let address = theirs.local_addr().unwrap().to_string();
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    for more in [json!({"aggregator": address}), json!({"aggregator": address, "secret": SECRET})] {
        let reply = raw.ask(open("lured", more));
        assert_eq!(code(&reply), "denied", "{reply}");
        assert!(reply["error"]["hint"].as_str().unwrap().contains("[control_planes.NAME]"), "{reply}");
    }
    assert_eq!(theirs.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let own = lab.aggregator.address.to_string();
    assert!(raw.ask(open("listed", json!({"aggregator": own})))["ok"]["job"].is_u64());
}

#[test]
fn the_sockets_group_lets_its_members_in_and_the_error_names_it() {
    if !needs_root("the_sockets_group_lets_its_members_in_and_the_error_names_it") {
        return;
    }
    let lab = Lab::with(1, &format!("socket_group = {GROUP}"));
    let (socket, stats) = (&lab.hosts[0].1, json!({"id": 2, "cmd": "stats"}));
    let reply = as_user(70001, &GROUP.to_string(), socket, &stats).unwrap();
    assert!(reply["ok"].is_object(), "{reply}");
    assert!(as_user(70001, "", socket, &stats).unwrap_err().contains("PermissionError"));
    // Only this thread changes its user, and it ends with the test.
    let path = socket.clone();
    let refused = std::thread::spawn(move || {
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_gid(rustix::fs::Gid::from_raw(70001)).unwrap();
        rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(70001)).unwrap();
        sumac_client::Client::connect(&path).unwrap_err().to_string()
    });
    let refused = refused.join().unwrap();
    for named in ["user 70001", "mode is 0660", "group 70100", "socket_group", "socket_mode"] {
        assert!(refused.contains(named), "{named}: {refused}");
    }
}

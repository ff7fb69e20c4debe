//! Failing system calls and kill -9 at every step of the commands, by strace: what follows is the former
//! state or the new.
//!
//! Every seventeenth of the steps that change something is tried, and all of them with `SUMAC_FAULTS=all` in
//! the environment, or the fourth of twenty parts with `3/20`.

mod trace;

use std::{
    fs,
    process::{Command, Stdio},
};

use serde_json::Value;
use sumac_loader::{BoundXdpMode, Interface};

use self::trace::{Fault, Traced};
use super::{Shell, support::net::needs_privileges};

/// The visible state of an aggregator.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    /// Of each port, its programs by number and mode.
    programs: Vec<Vec<(u32, BoundXdpMode)>>,
    instance: Value,
    slots: Value,
    jobs: Vec<(Value, usize)>,
}

const PORTS: [&str; 3] = ["p0", "p1", "p2"];
const STATUS: &str = "status --json";

impl Shell {
    /// Adds two ports, whose other ends are in the same namespace.
    fn widened() -> Shell {
        let shell = Shell::new();
        for port in &PORTS[1..] {
            shell.middle.run(&format!("ip link add {port} type veth peer name {port}x"));
            shell.middle.run(&format!("ip link set {port} up"));
            shell.middle.run(&format!("ip link set {port}x up"));
        }
        shell
    }

    fn traced(&self, line: &str) -> Traced {
        Traced::new(&self.middle.name, super::BIN, line, self.middle.pins.to_str().unwrap())
    }

    fn seen(&self) -> Seen {
        let programs = |name| {
            let found = Interface::by_name(name).unwrap().xdp;
            found.iter().map(|program| (program.id, program.mode)).collect()
        };
        let programs = self.middle.inside(|| PORTS.map(programs).to_vec());
        let output = self.run(STATUS);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let jobs = status["jobs"].as_array().into_iter().flatten();
        let jobs = jobs.map(|job| (job["job"].clone(), job["workers"].as_array().unwrap().len())).collect();
        Seen { programs, instance: status["instance"].clone(), slots: status["slots"].clone(), jobs }
    }
}

impl Seen {
    /// Returns whether exactly the first `count` ports have a program, and all the same.
    fn is_attached_to(&self, count: usize) -> bool {
        let first = &self.programs[0];
        let is_alike = |(port, programs): (usize, &Vec<_>)| {
            if port < count { programs == first } else { programs.is_empty() }
        };
        first.len() == 1 && self.programs.iter().enumerate().all(is_alike)
    }
}

#[test]
fn a_replacement_that_fails_or_is_killed_is_done_or_undone() {
    needs_privileges!("a_replacement_that_fails_or_is_killed_is_done_or_undone");
    let shell = Shell::widened();
    shell.done("attach p0 p1 --slots 32");
    shell.done("job add 7 --token 1 --worker 10.79.0.2 --slots 16");
    let traced = shell.traced("attach p0 p1 p2 --slots 32");
    let mut before = reset(&shell);
    for (step, fault) in traced.faults() {
        let output = traced.run(&step, fault);
        let case = format!("{step:?} {fault:?}: {}", String::from_utf8_lossy(&output.stderr));
        let mut after = shell.seen();
        if fault == Fault::Kill {
            for (port, programs) in after.programs[..2].iter().enumerate() {
                assert_eq!(programs.len(), 1, "p{port} has no program: {case}");
            }
            // Any command that changes something.
            shell.done("drop --up 0 --down 0");
            after = shell.seen();
        }
        let is_new = after.is_attached_to(3) && after.programs[0] != before.programs[0];
        assert!(is_new || after == before, "neither old nor new: {before:?} {after:?} {case}");
        assert_eq!((&after.jobs, &after.instance), (&before.jobs, &before.instance), "{case}");
        if output.status.success() {
            assert!(is_new, "it said that it succeeded: {after:?} {case}");
        }
        if is_new {
            before = reset(&shell);
        }
    }
}

/// Detaches the third port again.
fn reset(shell: &Shell) -> Seen {
    shell.done("detach p2");
    let seen = shell.seen();
    assert!(seen.is_attached_to(2), "{seen:?}");
    seen
}

#[test]
fn a_first_attachment_that_fails_or_is_killed_leaves_nothing() {
    needs_privileges!("a_first_attachment_that_fails_or_is_killed_leaves_nothing");
    let shell = Shell::widened();
    let none = shell.seen();
    let traced = shell.traced("attach p0 p1 --slots 32");
    shell.done("detach --all");
    for (step, fault) in traced.faults() {
        let output = traced.run(&step, fault);
        let case = format!("{step:?} {fault:?}: {}", String::from_utf8_lossy(&output.stderr));
        let seen = shell.seen();
        // An error may be of the last look at what was attached.
        let is_new = seen.is_attached_to(2) && seen.slots == 32;
        if fault == Fault::Error && !is_new {
            assert!(!output.status.success() && seen == none, "{case}");
            assert!(!shell.middle.pins.exists(), "pins are left: {case}");
            continue;
        }
        shell.done("detach --all");
        assert_eq!(shell.seen(), none, "{case}");
        assert!(!shell.middle.pins.exists(), "pins are left: {case}");
    }
}

/// Changes an attachment, from one command line to another, with a fault at each step: it is the former or
/// the new one.
fn assert_old_or_new(from: &str, to: &str, is_new: impl Fn(&Seen, &Seen) -> bool) {
    let shell = Shell::widened();
    shell.done(from);
    let traced = shell.traced(to);
    shell.done(from);
    let mut before = shell.seen();
    for (step, fault) in traced.faults() {
        let output = traced.run(&step, fault);
        let case = format!("{step:?} {fault:?}: {}", String::from_utf8_lossy(&output.stderr));
        if fault == Fault::Kill {
            shell.done("drop --up 0 --down 0");
        }
        let after = shell.seen();
        let is_new = after.is_attached_to(2) && is_new(&before, &after);
        assert!(is_new || after == before, "neither old nor new: {before:?} {after:?} {case}");
        if is_new {
            shell.done(from);
            before = shell.seen();
        }
    }
}

#[test]
fn a_change_of_mode_that_fails_or_is_killed_is_done_or_undone() {
    needs_privileges!("a_change_of_mode_that_fails_or_is_killed_is_done_or_undone");
    let [driver, generic] =
        ["driver", "generic"].map(|mode| format!("attach p0 p1 --slots 32 --mode {mode}"));
    assert_old_or_new(&driver, &generic, |_, after| after.programs[0][0].1 == BoundXdpMode::Generic);
}

#[test]
fn another_pool_is_there_whole_or_not_at_all() {
    needs_privileges!("another_pool_is_there_whole_or_not_at_all");
    assert_old_or_new("attach p0 p1 --slots 32", "attach p0 p1 --slots 64", |before, after| {
        after.slots == 64 && after.instance != before.instance
    });
}

#[test]
fn jobs_and_removals_that_fail_or_are_killed_are_done_or_undone() {
    needs_privileges!("jobs_and_removals_that_fail_or_are_killed_are_done_or_undone");
    let shell = Shell::widened();
    let add = "job add 7 --token 1 --worker 10.79.0.2 --slots 16";
    let attach = "attach p0 p1 --slots 32";
    shell.done(attach);
    let (adding, removing) = (shell.traced(add), shell.traced("job remove 7"));
    shell.done(add);
    let (detaching, clearing) = (shell.traced("detach"), shell.traced("detach --all"));
    shell.done(attach);
    let job = || shell.seen().jobs;
    for (traced, ready) in [(&adding, 0), (&removing, 1), (&detaching, 1), (&clearing, 1)] {
        for (step, fault) in traced.faults() {
            if job().len() != ready {
                shell.done(if ready == 0 { "job remove 7" } else { add });
            }
            let output = traced.run(&step, fault);
            let case =
                format!("{} {step:?} {fault:?}: {}", traced.line, String::from_utf8_lossy(&output.stderr));
            let after = shell.seen();
            assert!(after.jobs.iter().all(|(_, workers)| *workers == 1), "half a job: {after:?} {case}");
            // The rest goes on: it can be attached, with the job or without.
            let again = shell.run(attach);
            assert!(again.status.success(), "{case} {}", String::from_utf8_lossy(&again.stderr));
            let after = shell.seen();
            assert!(after.is_attached_to(2), "{after:?} {case}");
            if traced.line == "detach" {
                assert_eq!(after.jobs.len(), 1, "the job was kept: {case}");
            }
            if after.jobs.len() != ready {
                shell.done(if ready == 0 { "job remove 7" } else { add });
            }
        }
        shell.done("detach --all");
        shell.done(attach);
    }
}

/// In close races a command that fails must not take away what another has just attached.
#[test]
fn a_failing_attachment_beside_a_good_one_removes_nothing() {
    needs_privileges!("a_failing_attachment_beside_a_good_one_removes_nothing");
    let shell = Shell::widened();
    shell.middle.run("ip link add b0 type bridge");
    for round in 0..10 {
        let start = |line: &str| {
            let net = format!("--net=/run/netns/{}", shell.middle.name);
            let mut command = Command::new("nsenter");
            command.args([&net, super::BIN]).args(line.split(' ')).arg("--pin-root").arg(&shell.middle.pins);
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let bad: Vec<_> = (0..2).map(|_| start("attach b0 --slots 32 --mode driver")).collect();
        let good: Vec<_> = (0..2).map(|_| start("attach p0 p1 p2 --slots 32")).collect();
        for child in bad {
            assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1), "round {round}");
        }
        for child in good {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "round {round}: {text}");
        }
        let seen = shell.seen();
        assert!(seen.is_attached_to(3) && seen.slots == 32, "round {round}: {seen:?}");
        shell.done("detach --all");
        assert!(!fs::exists(&shell.middle.pins).unwrap(), "round {round}");
    }
}

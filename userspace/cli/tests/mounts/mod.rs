//! `sumac doctor` in a mount namespace of its own, as `ip netns exec`, a container or a unit has.

use std::process::Command;

use serde_json::Value;

use super::{SUMAC, privileged, run};

/// Returns the check of the bpffs in a new mount namespace, after a script has changed its mounts.
fn bpffs(script: &str) -> Value {
    let mut unshare = Command::new("unshare");
    let (_, out, error) = run(unshare.args(["--mount", "sh", "-c", script, SUMAC]));
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|bad| panic!("{bad}: {out}{error}"));
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == "bpffs").unwrap().clone()
}

#[test]
fn doctor_knows_a_private_bpffs() {
    if !privileged() {
        return;
    }
    const FRESH: &str = "mount -t bpf bpf /sys/fs/bpf";
    const DOCTOR: &str = "$0 doctor --json --pin-root /sys/fs/bpf/sumac";
    let table = [
        ("the command's own", format!("{FRESH}; exec {DOCTOR}"), "fail", "this command has alone"),
        ("of a shell, too", format!("{FRESH}; {DOCTOR}; true"), "warn", "(sh)"),
        (
            "missing",
            format!("mount -t tmpfs none /sys/fs; exec {DOCTOR}"),
            "fail",
            "a mount namespace of its own",
        ),
        ("the machine's", format!("exec {DOCTOR}"), "ok", "can hold pins"),
    ];
    for (name, script, level, found) in table {
        let check = bpffs(&script);
        assert_eq!(check["level"], level, "{name}: {check}");
        assert!(check["found"].as_str().unwrap().contains(found), "{name}: {check}");
        let remedy = check["mend"].as_str().unwrap_or_default();
        assert_eq!(remedy.contains("nsenter --net="), level != "ok", "{name}: {check}");
    }
}

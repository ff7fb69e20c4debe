//! The times of the XDP programs, as `sumac-figures` prints them.
#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use std::process::Command;

use serde_json::Value;

const FIGURES: &str = env!("CARGO_BIN_EXE_sumac-figures");

fn measured(line: &[&str]) -> Value {
    let output = Command::new(FIGURES).args(line).args(["--repeat", "1000", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn each_program_is_measured() {
    if !nix::unistd::geteuid().is_root() {
        let required = std::env::var_os("REQUIRE_PRIVILEGED").is_some_and(|value| value == "1");
        assert!(!required, "XDP programs need root");
        println!("SKIP each_program_is_measured: XDP programs need root");
        return;
    }
    let host = measured(&["host-program"]);
    assert_eq!(host.as_array().unwrap().len(), 7, "{host}");
    for mode in [&[][..], &["--dynamic"]] {
        let aggregator = measured(&[&["aggregator-program", "--workers", "2"], mode].concat());
        assert_eq!(aggregator.as_array().unwrap().len(), 3, "{aggregator}");
        let second = &aggregator[1];
        assert_eq!((&second["elements"], &second["bytes"]), (&256.into(), &1130.into()));
    }
}

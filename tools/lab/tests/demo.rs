//! The demo, short: it checks by itself that all weights are bit-identical, that PyTorch is as accurate with
//! Sumac as with Gloo, and that nothing is left.

use std::process::Command;

use sumac_lab::programs::Programs;

/// Returns the reason that this machine cannot run it.
fn obstacle() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("network namespaces need root".to_owned());
    }
    let import = ["-c", "import numpy, sklearn.datasets, torch.distributed"];
    if !Command::new("/usr/bin/python3").args(import).output().is_ok_and(|import| import.status.success()) {
        return Some("the trainers need python3-numpy, python3-sklearn and python3-torch".to_owned());
    }
    Programs::find().err().map(|error| error.to_string())
}

#[test]
fn training_over_the_network_is_training() {
    if let Some(why) = obstacle() {
        assert!(std::env::var_os("REQUIRE_PRIVILEGED").is_none_or(|v| v != "1"), "the demo: {why}");
        println!("SKIP training_over_the_network_is_training: {why}");
        return;
    }
    let mut demo = Command::new(env!("CARGO_BIN_EXE_sumac-lab"));
    let demo = demo.args(["demo", "--workers", "2", "--epochs", "1"]).output().unwrap();
    let told = String::from_utf8_lossy(&demo.stdout);
    assert!(demo.status.success(), "{told}{}", String::from_utf8_lossy(&demo.stderr));
    assert_eq!(told.matches("bit-identical").count(), 2, "{told}");
    for path in [
        "    sumac  accuracy",
        "XDP, AF_XDP",
        "one copy of each tensor",
        "    gloo   accuracy",
        "the kernel's TCP",
    ] {
        assert!(told.contains(path), "{path} is missing in: {told}");
    }
    assert!(told.contains("the same but for rounding"), "{told}");
    assert!(told.contains("Left behind: no namespace"), "{told}");
    assert!(told.contains("of the frames lost") && told.contains("frames lost on the way up"), "{told}");
}

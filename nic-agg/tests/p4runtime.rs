//! `sumac-agg serve --plane p4runtime` as a process, and its verbs, on the behavioural model of a switch:
//! needs no privilege.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "a part of it")]
#[path = "../p4/tests/support/mod.rs"]
mod model;
#[path = "support/serve.rs"]
mod serve;

use std::{
    fs,
    net::SocketAddr,
    process::{Command, Output},
};

use model::{Model, files, model, until};
use nix::sys::signal::Signal;
use serde_json::Value;
use serve::{Serving, endpoint, request};
use sumac_control::{FailureKind, state_dir::write_private};
use sumac_job::JobSpec;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const SECRET: &str = "the secret of all";
const BASE_PORT: &str = "40006";

/// A control plane's files, and the process. Removed and killed when dropped.
struct Control {
    serving: Option<Serving>,
    directory: TempDir,
}

impl Control {
    fn new() -> Control {
        let directory = tempfile::tempdir().unwrap();
        write_private(&directory.path().join("secret"), SECRET.as_bytes()).unwrap();
        let switch = format!(
            "[program]\nbase_port = {BASE_PORT}\n[[ports]]\nnumber = 7\nip = \"10.77.1.1\"\nmac = \
            \"02:00:00:00:01:01\"\nhosts = [{{ ip = \"127.0.0.1\", mac = \"02:00:00:00:01:02\" }}]\n"
        );
        fs::write(directory.path().join("switch.toml"), switch).unwrap();
        Control { serving: None, directory }
    }

    /// The arguments behind `serve`.
    fn arguments(&self, model: &Model, listen: &str) -> Vec<String> {
        let file = |name: &str| self.directory.path().join(name).display().to_string();
        let [pipeline, p4info] = files().map(|path| path.display().to_string());
        let (address, device) = (model.address(), model.server(0).device.to_string());
        let arguments = [
            ["--plane", "p4runtime"],
            ["--switch-address", &address],
            ["--device-id", &device],
            ["--switch", &file("switch.toml")],
            ["--pipeline", &pipeline],
            ["--p4info", &p4info],
            ["--listen", listen],
            ["--state-dir", self.directory.path().to_str().unwrap()],
            ["--secret-file", &file("secret")],
        ];
        arguments.as_flattened().iter().map(|word| (*word).to_owned()).collect()
    }

    fn start(&mut self, model: &Model, listen: &str) -> SocketAddr {
        let serving = Serving::start(self.arguments(model, listen));
        let address = serving.field("control").parse().unwrap();
        self.serving = Some(serving);
        address
    }

    fn kill(&mut self) {
        self.serving.take().unwrap().end(Signal::SIGKILL);
    }
}

fn sumac_agg(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sumac-agg")).args(arguments).output().unwrap()
}

fn status() -> Option<Value> {
    let output = sumac_agg(&["status", "--json", "--switch", BASE_PORT]);
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn a_job_on_the_model_outlives_its_control_plane() {
    let Some((mut model, _)) = model("a_job_on_the_model_outlives_its_control_plane") else { return };
    let mut control = Control::new();
    let address = control.start(&model, "127.0.0.1:0");
    let runtime = Runtime::new().unwrap();
    let spec = JobSpec { slots: Some(8), timeout_s: Some(60.0), ..JobSpec::new("any", 0, 1) };
    let endpoint = endpoint(address, control.directory.path(), SECRET);
    let member = runtime.block_on(sumac_control::join(&endpoint, request(spec, 48700))).unwrap();
    let first = status().unwrap();
    assert_eq!((&first["plane"], &first["jobs"][0]["name"]), (&"p4".into(), &"any".into()), "{first}");
    let worker = &first["jobs"][0]["workers"][0];
    assert_eq!((&worker["ip"], &worker["ifindex"]), (&"127.0.0.1".into(), &7.into()), "{first}");

    let dropped = sumac_agg(&["drop", "--up", "1%", "--down", "50%", "--job", "1", "--switch", BASE_PORT]);
    assert!(dropped.status.success(), "{dropped:?}");
    assert_eq!(status().unwrap()["jobs"][0]["drops"]["down_percent"], 50.0);
    let text = sumac_agg(&["status", "--switch", BASE_PORT]);
    assert!(String::from_utf8_lossy(&text.stdout).starts_with("P4 switch, instance"), "{text:?}");

    // Others, started by mistake at the same address, or for the same base port: they end before they take
    // the switch.
    let serve = |listen: &str, switch: &str| {
        let mut arguments = control.arguments(&model, listen);
        let mut set = |option: &str, value: String| {
            let at = arguments.iter().position(|word| word == option).unwrap();
            arguments[at + 1] = value;
        };
        set("--switch", control.directory.path().join(switch).display().to_string());
        // It does not come so far as to find nothing there.
        set("--switch-address", "127.0.0.1:1".into());
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let output = sumac_agg(&[&["serve"], &arguments[..]].concat());
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let wiring = fs::read_to_string(control.directory.path().join("switch.toml")).unwrap();
    fs::write(control.directory.path().join("other.toml"), wiring.replace(BASE_PORT, "40010")).unwrap();
    let taken = serve(&address.to_string(), "other.toml");
    assert!(taken.contains(&format!("cannot listen on {address}: Address already in use")), "{taken}");
    let taken = serve("127.0.0.1:0", "switch.toml");
    assert!(taken.contains(&format!("has a switch whose base_port is {BASE_PORT}")), "{taken}");
    let still = status().unwrap();
    assert_eq!(
        (&still["instance"], &still["jobs"][0]["epoch"]),
        (&first["instance"], &first["jobs"][0]["epoch"])
    );

    control.kill();
    control.start(&model, &address.to_string());
    let second = status().unwrap();
    assert_eq!(second["instance"], first["instance"]);
    assert_eq!(second["jobs"][0]["epoch"], first["jobs"][0]["epoch"], "{second}");
    assert_eq!(second["jobs"][0]["drops"]["down_percent"], 50.0, "{second}");

    model.stop();
    until(|| status().is_none());
    model.start();
    until(|| status().is_some_and(|status| status["instance"] != first["instance"]));
    let failure = runtime.block_on(member.failed());
    assert_eq!(failure.kind, FailureKind::StateLost);
}

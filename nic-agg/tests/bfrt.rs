//! `sumac-agg serve --plane bfrt` as a process, against a played server of BFRuntime, which is no switch:
//! needs no privilege.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[path = "support/serve.rs"]
mod serve;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    process::Command,
};

use nix::sys::signal::Signal;
use serve::{Serving, endpoint, request};
use sumac_control::{Grant, PlaneKind, state_dir::write_private};
use sumac_job::JobSpec;
use sumac_played_switch::{PROGRAM, PlayedServer, PlayedSwitch, Row};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const SECRET: &str = "the secret of all";

/// The files of a control plane.
struct Files(TempDir);

impl Files {
    /// A switch whose port 7 leads to this machine's workers.
    fn new(base_port: u16) -> Files {
        let directory = tempfile::tempdir().unwrap();
        write_private(&directory.path().join("secret"), SECRET.as_bytes()).unwrap();
        let switch = format!(
            "[program]\nbase_port = {base_port}\nelements = 256\n[[ports]]\nnumber = 7\nip = \
            \"10.77.1.1\"\nmac = \"02:00:00:00:01:01\"\nhosts = [{{ ip = \"127.0.0.1\", mac = \
            \"02:00:00:00:01:02\" }}]\n"
        );
        fs::write(directory.path().join("switch.toml"), switch).unwrap();
        Files(directory)
    }

    /// The arguments behind `serve`.
    fn arguments(&self, switch: SocketAddr, listen: SocketAddr) -> Vec<String> {
        let file = |name: &str| self.0.path().join(name).display().to_string();
        let (switch, listen) = (switch.to_string(), listen.to_string());
        let arguments = [
            ["--plane", "bfrt"],
            ["--switch-address", &switch],
            ["--switch", &file("switch.toml")],
            ["--listen", &listen],
            ["--state-dir", self.0.path().to_str().unwrap()],
            ["--secret-file", &file("secret")],
        ];
        arguments.as_flattened().iter().map(|word| (*word).to_owned()).collect()
    }
}

fn local() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

fn actions(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.action.as_str()).collect()
}

#[test]
fn a_job_is_on_the_switch_until_it_ends() {
    let played = PlayedSwitch::with_program("sumac", PROGRAM).unwrap();
    let switch = PlayedServer::start(local(), &played).unwrap();
    let files = Files::new(40_002);
    let mut control = Serving::start(files.arguments(switch.address(), local()));
    let address: SocketAddr = control.field("control").parse().unwrap();
    let runtime = Runtime::new().unwrap();
    let spec = JobSpec { slots: Some(8), timeout_s: Some(60.0), ..JobSpec::new("any", 0, 1) };
    let endpoint = endpoint(address, files.0.path(), SECRET);
    let member = runtime.block_on(sumac_control::join(&endpoint, request(spec, 48700))).unwrap();
    let Grant { terms, placement } = member.grant();
    assert_eq!((placement.aggregator, placement.base_port), (PlaneKind::P4, 40_002));
    assert_eq!(placement.aggregator_ip, Ipv4Addr::new(10, 77, 1, 1));
    assert_eq!((terms.elements, terms.checksum), (256, false));

    let (jobs, ways) = (played.rows("jobs"), played.rows("ways"));
    assert_eq!(actions(&jobs), ["set_job"]);
    assert_eq!((jobs[0].key["job"], &jobs[0].data["world"][..]), ((1, None), &[1][..]));
    assert_eq!((ways.len(), &ways[0].data["port"][..]), (1, &[7][..]));
    assert_eq!(played.rows("$pre.node")[0].data["$DEV_PORT"], [7]);

    control.end(Signal::SIGKILL);
    assert_eq!(played.rows("jobs"), jobs);
    let mut control = Serving::start(files.arguments(switch.address(), address));
    assert_eq!(played.rows("jobs"), jobs, "it is taken up");
    control.end(Signal::SIGTERM);
    assert_eq!(actions(&played.rows("jobs")), ["set_former_job"]);
    assert_eq!(played.rows("$pre.mgid"), []);
    drop(member);
}

#[test]
fn what_is_wrong_with_the_switch_is_said() {
    let played = PlayedSwitch::with_program("sumac", PROGRAM).unwrap();
    played.bind_another("sumac");
    let switch = PlayedServer::start(local(), &played).unwrap();
    let files = Files::new(40_004);
    let given = |more: &[&str]| {
        let more = more.iter().map(|word| (*word).to_owned());
        files.arguments(switch.address(), local()).into_iter().chain(more).collect::<Vec<_>>()
    };
    let nobody = files.arguments(SocketAddr::from(([127, 0, 0, 1], 1)), local());
    let free = PlayedSwitch::with_program("sumac", PROGRAM).unwrap();
    let free = PlayedServer::start(local(), &free).unwrap();
    let switch_file = |name: &str, from: &str, to: &str| {
        let text = fs::read_to_string(files.0.path().join("switch.toml")).unwrap().replace(from, to);
        let file = files.0.path().join(name);
        fs::write(&file, text).unwrap();
        let mut arguments = files.arguments(free.address(), local());
        let at = arguments.iter().position(|word| word == "--switch").unwrap();
        arguments[at + 1] = file.display().to_string();
        arguments
    };
    let loopback = switch_file("loopback.toml", "number = 7", "number = 132");
    let sizes =
        switch_file("sizes.toml", "base_port", "static_slots = 5120\ndynamic_slots = 1024\nbase_port");
    let table = [
        ("a client", given(&[]), "another control plane is bound to program `sumac`"),
        ("a program", given(&["--program", "another"]), "not `another`"),
        ("a file", given(&["--pipeline", "/nonexistent/sumac.conf"]), "/nonexistent/sumac.conf"),
        ("an option", given(&["--p4info", "sumac.p4info.bin"]), "--p4info is for --plane p4runtime"),
        ("a port", loopback, "loopback.toml: port 132 is of pipe 1"),
        (
            "sizes",
            sizes,
            "sizes.toml: [program] has static_slots = 5120, and the program was compiled with 2048",
        ),
        ("no server", nobody, "cannot connect to the switch at 127.0.0.1:1"),
    ];
    for (what, arguments, words) in table {
        let output =
            Command::new(env!("CARGO_BIN_EXE_sumac-agg")).arg("serve").args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        assert!(said.contains(words), "{what}: {said}");
    }
}

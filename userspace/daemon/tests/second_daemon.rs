//! Two daemons on one interface, in a network namespace of the test's own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use sumac_daemon::config::Config;
use sumac_daemon::{BackendError, Daemon, DaemonError};
use sumac_hostprog::Attached;
use sumac_wire::tables::HostJobEntry;

#[path = "../../datapath/tests/datapath/namespace.rs"]
mod namespace;

use namespace::{in_namespace, run};

fn config(name: &str, queues: &str, pins: &Path) -> Config {
    let socket = std::env::temp_dir().join(format!("sumac-{name}-{}.sock", std::process::id()));
    let text = format!(
        "socket = {socket:?}\nbackend = \"xdp\"\ninterface = \"w1\"\naddress = \"10.0.1.2\"\npin_root = \
        {pins:?}\nqueues = {queues}\naggregator = \"127.0.0.1:48600\""
    );
    Config::parse(&text, "test.toml".as_ref()).unwrap()
}

fn jobs(pins: &Path) -> Vec<u16> {
    let attached = Attached::open("w1", pins).unwrap();
    attached.jobs().unwrap().into_iter().map(|(job, _)| job).collect()
}

#[test]
fn the_living_daemons_jobs_stay() {
    in_namespace("second", |pins| {
        run("ip link set lo up");
        run("ip link add w1 numrxqueues 2 numtxqueues 2 type veth peer name a1 numrxqueues 2 numtxqueues 2");
        run("ip address add 10.0.1.2/24 dev w1");
        run("ip link set w1 up");
        run("ip link set a1 up");
        let [first, second, beside] = [("first", "[0]"), ("second", "[0]"), ("beside", "[1]")]
            .map(|(name, queues)| config(name, queues, pins));

        let daemon = Daemon::start(first.clone()).unwrap();
        Attached::open("w1", pins).unwrap().add_job(5, HostJobEntry::default()).unwrap();
        for other in [second, beside] {
            let refused = Daemon::start(other).unwrap_err();
            assert!(matches!(&refused, DaemonError::Backend(BackendError::NotYet(_))), "{refused}");
            let holder = format!("in use by process {}", std::process::id());
            assert!(refused.to_string().contains(&holder), "{refused}");
            assert_eq!(jobs(pins), [5], "of the daemon that lives");
        }
        daemon.stop();

        assert_eq!(jobs(pins), [5], "nobody has ended it");
        let next = Daemon::start(first).unwrap();
        assert_eq!(jobs(pins), [] as [u16; 0], "of a daemon that is gone");
        next.stop();
    });
}

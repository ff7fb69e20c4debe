//! The daemon's configuration.

use std::path::Path;

use sumac_daemon::config::Config;
use sumac_fuzz::edited;

use crate::fuzz;

const EXAMPLES: &[&str] = &[
    "aggregator = \"10.0.0.1:48600\"\nsecret = \"x\"\nsocket_mode = \"0660\"\ncpus = [0, 1]\nslots = \
    64\nelements = 352\nscale = 1e8\nmemory_mib = 64\nbuffers_mib = 50\njoin_timeout_s = 2.5\nseccomp = \
    false\n[control_planes.east]\naddress = \"east.example:48600\"\nsecret_file = \"/e\"\n[[allow]]\nusers = \
    [\"alice\", 1001]\ngroups = [\"ml\"]\njobs = [\"{user}:*\"]\n",
    "aggregator = \"h:1\"\nbackend = \"xdp\"\ninterface = \"eth0\"\nqueues = [0, 2]\nshards = 2\nbase_port = \
    48700\nallow_uids = [1000]\nsocket_group = \"ml\"\naddress = \"10.0.0.2\"\npin_root = \
    \"/p\"\n[parameter_host]\ncontrol = \"10.0.0.1:48600\"\nname = \"p\"\nsecret = \"y\"\n",
];

/// A stale example would leave the target with texts that are refused at once.
#[test]
fn examples_are_configurations() {
    for example in EXAMPLES {
        let file = Path::new("daemon.toml");
        Config::parse(example, file).and_then(|config| config.check(file)).unwrap();
    }
}

#[test]
fn files() {
    fuzz!(|input: &[u8]| {
        let text = String::from_utf8_lossy(&edited(EXAMPLES, input)).into_owned();
        let file = Path::new("daemon.toml");
        let Ok(config) = Config::parse(&text, file) else { return };
        if config.check(file).is_err() {
            return;
        }
        // A configuration that passes the check can be used.
        assert!(config.mode_bits().is_some());
        let _ = (config.join_timeout(), config.memory_bytes(), config.control());
    });
}

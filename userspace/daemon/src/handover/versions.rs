//! The versions and settings that two daemons must have in common for a handover.

use serde::{Deserialize, Serialize};

use crate::config::Config;

/// The version of the state that daemons hand over: that of the types in it. It grows with every change of
/// one of them.
const FORMAT: u32 = 14;

/// The versions of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The version of the handover's format.
    pub format: u32,
    /// The release, for people: others may be compatible.
    pub release: String,
    /// The version of the local API, which connected trainers speak.
    pub local_api: u32,
    /// The version of the control protocol, which the jobs' control planes speak.
    pub control_protocol: u32,
    /// The ABI of the pinned maps.
    pub program_abi: u32,
}

impl Versions {
    /// The versions of this release.
    pub fn own() -> Versions {
        Versions {
            format: FORMAT,
            release: env!("CARGO_PKG_VERSION").into(),
            local_api: sumac_api::VERSION,
            control_protocol: sumac_control::message::PROTOCOL_VERSION,
            program_abi: sumac_hostprog::program::ABI,
        }
    }

    /// Returns the first difference that rules a handover out, for people.
    pub(crate) fn difference(&self, successor: &Versions, is_xdp: bool) -> Option<String> {
        let mut pairs = vec![
            ("the handover's format", self.format, successor.format),
            ("the local API", self.local_api, successor.local_api),
            ("the control protocol", self.control_protocol, successor.control_protocol),
        ];
        if is_xdp {
            pairs.push(("the pinned maps' ABI", self.program_abi, successor.program_abi));
        }
        let (what, own, other) = pairs.into_iter().find(|(_, own, other)| own != other)?;
        let (release, new) = (&self.release, &successor.release);
        Some(format!(
            "version {own} of {what} here (release {release}), version {other} in the new daemon (release \
            {new}); let the jobs end, stop this daemon, and start the new one"
        ))
    }
}

/// Configuration keys and their values as text.
pub(crate) type Settings = Vec<(String, String)>;

/// Returns the settings that both daemons must have in common: sockets, program and packets depend on them.
pub(crate) fn settings(config: &Config) -> Settings {
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let settings = [
        ("socket", format!("{:?}", config.socket)),
        ("backend", format!("{:?}", config.backend)),
        ("interface", format!("{:?}", config.interface)),
        ("address", format!("{:?}", config.address)),
        ("base_port", format!("{:?}", config.base_port)),
        ("shards", config.shards.to_string()),
        ("queues", format!("{:?}", config.queues)),
        ("paths", format!("{:?}", config.paths)),
        ("pin_root", format!("{:?}", config.pin_root)),
        ("the network namespace", namespace.display().to_string()),
    ];
    settings.map(|(key, value)| (key.to_owned(), value)).into()
}

/// Returns the first setting that differs, for people.
pub(crate) fn different_setting(own: &Settings, successor: &Settings) -> Option<String> {
    let value = |settings: &Settings, key: &str| {
        let found = settings.iter().find(|(other, _)| other == key);
        found.map_or_else(|| "absent".to_owned(), |(_, value)| value.clone())
    };
    let keys = own.iter().chain(successor).map(|(key, _)| key);
    let differs = |key: &&String| value(own, key) != value(successor, key);
    let key = keys.into_iter().find(differs)?;
    let (own, other) = (value(own, key), value(successor, key));
    Some(format!("{key} is {own} here, and {other} in the new daemon; give both the same"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_that_differs_is_named() {
        let own = Versions::own();
        assert_eq!(own.difference(&Versions { release: "9.9".into(), ..own.clone() }, true), None);
        let other = |change: fn(&mut Versions)| {
            let mut other = own.clone();
            change(&mut other);
            other
        };
        let table = [
            ("format", other(|versions| versions.format += 1)),
            ("local API", other(|versions| versions.local_api += 1)),
            ("control protocol", other(|versions| versions.control_protocol += 1)),
            ("maps' ABI", other(|versions| versions.program_abi += 1)),
        ];
        for (name, other) in &table {
            let difference = own.difference(other, true).unwrap();
            assert!(difference.contains(name), "{name}: {difference}");
        }
        assert_eq!(own.difference(&table[3].1, false), None, "no program over UDP");
    }

    #[test]
    fn a_setting_that_differs_is_named() {
        let config = |text: &str| Config::parse(text, "test.toml".as_ref()).unwrap();
        let (one, other) = (settings(&config("")), settings(&config("shards = 2")));
        assert_eq!(different_setting(&one, &one), None);
        let difference = different_setting(&one, &other).unwrap();
        assert!(difference.contains("shards is 1 here, and 2"), "{difference}");
        let fewer: Settings = one[1..].to_vec();
        assert!(different_setting(&one, &fewer).unwrap().contains("socket"));
        assert!(different_setting(&fewer, &one).unwrap().contains("absent here"));
    }
}

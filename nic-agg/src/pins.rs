//! The pins of an aggregator.
//!
//! ```text
//! /sys/fs/bpf/sumac/agg/<inode of the network namespace>/
//!     link-<interface> ...            one for each interface
//!     prog  prog-out  map-MODES  abi  replaced together on every attachment (see [`sumac_loader::replace`])
//!     map-STATE  map-SLOTS  ...       kept across detach and attach while jobs exist
//!     rule-<interface>-1022 ...       records of the rules inserted into the interface's NIC
//! ```

use std::{
    io,
    path::{Path, PathBuf},
};

pub use sumac_loader::DEFAULT_PIN_ROOT;
use sumac_loader::{
    PinDirectory, namespace,
    owner::{Owner, OwnerError},
    pins::{LINK, decode_interface, encode_interface, entries, file_name},
};
use sumac_netutil::steer::records::RuleRecords;

pub const EGRESS: &str = "prog-out";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatorPins {
    pub directory: PinDirectory,
}

impl AggregatorPins {
    pub fn here(pin_root: &Path) -> io::Result<AggregatorPins> {
        let namespace = namespace::current()?;
        let path = root(pin_root).join(namespace.to_string());
        Ok(AggregatorPins { directory: PinDirectory::new(path, namespace) })
    }

    /// Returns the pins for all network namespaces, also of those that are gone.
    pub fn list(pin_root: &Path) -> io::Result<Vec<AggregatorPins>> {
        let directories = entries(&root(pin_root))?.into_iter().map(|path| {
            // Another hand's directory is of no namespace.
            let namespace = file_name(&path).parse().unwrap_or(0);
            AggregatorPins { directory: PinDirectory::new(path, namespace) }
        });
        Ok(directories.collect())
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn map(&self, name: &str) -> PathBuf {
        self.directory.pin(&map_pin(name))
    }

    /// Returns the path of a map's pin: of the pool that is kept, or staged with a new one. The programs that
    /// the map of modes leads to work only with the program that was loaded together with them.
    pub(crate) fn map_of(&self, name: &str, keep: bool) -> PathBuf {
        let is_kept = keep && name != sumac_agg_layout::name::MODES;
        if is_kept { self.map(name) } else { self.directory.staged(&map_pin(name)) }
    }

    /// Takes the lock of the `serve` that installs the aggregator's jobs.
    pub fn claim(&self) -> Result<Owner, OwnerError> {
        Owner::claim(&self.directory, "the aggregator of this network namespace")
    }

    /// Returns the records of the rules inserted into an interface's NIC.
    pub fn rules(&self, interface: &str) -> RuleRecords {
        RuleRecords::shared(self.path(), interface)
    }

    pub fn interfaces(&self) -> io::Result<Vec<String>> {
        let entries = entries(self.path())?;
        let links = entries.iter().filter_map(|path| file_name(path).strip_prefix(LINK)?.strip_prefix('-'));
        Ok(links.map(decode_interface).collect())
    }
}

pub fn map_pin(map: &str) -> String {
    format!("map-{map}")
}

pub fn link_pin(interface: &str) -> String {
    format!("{LINK}-{}", encode_interface(interface))
}

fn root(pin_root: &Path) -> PathBuf {
    pin_root.join("agg")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn interfaces_are_those_with_links() {
        let root = std::env::temp_dir().join(format!("sumac-agg-pins-{}", std::process::id()));
        let here = AggregatorPins::here(&root).unwrap();
        drop(here.directory.create_locked().unwrap());
        for name in [link_pin("eth0.7"), link_pin("eth1"), map_pin("JOBS"), EGRESS.into()] {
            fs::write(here.directory.pin(&name), "").unwrap();
        }
        assert_eq!(here.interfaces().unwrap(), ["eth0.7", "eth1"]);
        assert_eq!(AggregatorPins::list(&root).unwrap(), std::slice::from_ref(&here));
        assert_eq!(here.directory.remove_all().unwrap().len(), 5);
        assert!(!root.exists(), "empty parents are removed too");
    }
}

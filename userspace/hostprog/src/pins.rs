//! The pins of the host program.
//!
//! ```text
//! /sys/fs/bpf/sumac/host/<inode of the network namespace>-<interface>/
//!     link  prog  config  abi                replaced together with the program (see [`sumac_loader::replace`])
//!     xsks  jobs  counters  queues  log      kept when the program is replaced, unless `abi` is another version's
//!     rule-1022 ...                          records of the NIC's rules (see [`sumac_netutil::steer::records`])
//! ```

use std::{
    io,
    path::{Path, PathBuf},
};

use sumac_loader::{
    PinDirectory, namespace,
    owner::{Owner, OwnerError},
    pins::{LINK, decode_interface, encode_interface, entries, file_name},
};

pub type MapPin = (&'static str, &'static str);

pub const CONFIG: MapPin = ("CONFIG", "config");
pub const SOCKETS: MapPin = ("SOCKETS", "xsks");
pub const JOBS: MapPin = ("JOBS", "jobs");
pub const COUNTERS: MapPin = ("COUNTERS", "counters");
pub const QUEUES: MapPin = ("QUEUES", "queues");
/// The maps that outlive the program's replacement.
pub const KEPT: [MapPin; 5] = [SOCKETS, JOBS, COUNTERS, QUEUES, ("AYA_LOGS", "log")];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPins {
    pub directory: PinDirectory,
    pub interface: String,
}

impl HostPins {
    pub fn here(pin_root: &Path, interface: &str) -> io::Result<Self> {
        if interface.is_empty() || interface.contains(['/', ':', '\0']) {
            let error = format!("{interface:?} is no name of an interface");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        Ok(Self::new(pin_root, namespace::current()?, interface))
    }

    fn new(pin_root: &Path, namespace: u64, interface: &str) -> Self {
        let path = host_root(pin_root).join(format!("{namespace}-{}", encode_interface(interface)));
        Self { directory: PinDirectory::new(path, namespace), interface: interface.to_owned() }
    }

    /// Returns the pins of all interfaces, in all network namespaces, sorted.
    pub fn list(pin_root: &Path) -> io::Result<Vec<Self>> {
        let directories = entries(&host_root(pin_root))?;
        let parsed = directories.iter().filter_map(|path| {
            let (inode, interface) = file_name(path).split_once('-')?;
            Some(Self::new(pin_root, inode.parse().ok()?, &decode_interface(interface)))
        });
        Ok(parsed.collect())
    }

    pub fn pin(&self, name: &str) -> PathBuf {
        self.directory.pin(name)
    }

    /// Takes the lock of the daemon that steers the interface's frames to its sockets.
    pub fn claim(&self) -> Result<Owner, OwnerError> {
        let path = self.directory.path();
        let root = path.ancestors().nth(2).unwrap_or(path);
        let name = format!("host-{}", file_name(path));
        Owner::claim(root, &name, &format!("the host program on {}", self.interface))
    }

    pub fn exist(&self) -> io::Result<bool> {
        self.pin(LINK).try_exists()
    }
}

pub fn host_root(pin_root: &Path) -> PathBuf {
    pin_root.join("host")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn directories_are_listed_with_namespace_and_interface() {
        let root = std::env::temp_dir().join(format!("sumac-pins-{}", std::process::id()));
        let here = HostPins::here(&root, "a-b.0").unwrap();
        drop(here.directory.create_locked().unwrap());
        fs::create_dir_all(host_root(&root).join("no number")).unwrap();
        let listed = HostPins::list(&root).unwrap();
        assert_eq!(listed, std::slice::from_ref(&here));
        assert_eq!(listed[0].interface, "a-b.0");
        assert_eq!(here.directory.remove_all().unwrap(), [here.directory.path().to_owned()]);
        assert_eq!(HostPins::list(&root).unwrap(), []);
        for bad in ["", "../x", "a:b"] {
            assert!(HostPins::here(&root, bad).is_err(), "{bad}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}

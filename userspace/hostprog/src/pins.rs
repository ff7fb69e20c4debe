//! The pins of the host program.
//!
//! ```text
//! /sys/fs/bpf/sumac/host/<inode of the network namespace>-<interface>/
//!     link  prog  config  abi                replaced together with the program (see
//!     [`sumac_loader::replace`]) xsks  jobs  counters  queues  log      kept when the program is replaced,
//!     unless `abi` is another version's rule-1022 ...                          records of the NIC's rules
//!     (see [`sumac_netutil::steer::records`])
//! ```

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sumac_loader::{
    Interface, PinDirectory, namespace,
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

    /// Returns the pins of an interface. Those that were made under a former name of it get its present one.
    pub fn find(pin_root: &Path, interface: &str) -> io::Result<Self> {
        let own = Self::here(pin_root, interface)?;
        // Whoever looks for an interface that is not there reports it.
        let Ok(found) = Interface::by_name(interface) else { return Ok(own) };
        if found.xdp.is_empty() || own.are_on(&found) {
            return Ok(own);
        }
        let former = Self::list(pin_root)?
            .into_iter()
            .find(|pins| pins.directory.namespace() == own.directory.namespace() && pins.are_on(&found));
        former.map_or(Ok(own), |former| former.renamed(interface))
    }

    /// Returns whether the pinned link's program is on an interface.
    fn are_on(&self, interface: &Interface) -> bool {
        let is_there = self.exist().unwrap_or(false);
        let program = is_there.then(|| self.directory.linked_program(LINK).ok()).flatten();
        program.is_some_and(|id| interface.xdp.iter().any(|program| program.id == id))
    }

    /// Gives the pins the present name of their interface. Pins that have it, of an interface that had it
    /// before, get the former one.
    pub fn renamed(&self, interface: &str) -> io::Result<Self> {
        let path = self.directory.path();
        let present = path.with_file_name(Self::file_name(self.directory.namespace(), interface));
        let present = Self {
            directory: PinDirectory::new(present, self.directory.namespace()),
            interface: interface.to_owned(),
        };
        // Without one another process has renamed them.
        let Some(_lock) = self.directory.lock()? else { return Ok(present) };
        let to = present.directory.path();
        let flags = if to.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        renameat_with(CWD, path, CWD, to, flags)?;
        tracing::info!(former = self.interface, interface, "an interface has another name; its pins follow");
        Ok(present)
    }

    fn new(pin_root: &Path, namespace: u64, interface: &str) -> Self {
        let path = host_root(pin_root).join(Self::file_name(namespace, interface));
        Self { directory: PinDirectory::new(path, namespace), interface: interface.to_owned() }
    }

    fn file_name(namespace: u64, interface: &str) -> String {
        format!("{namespace}-{}", encode_interface(interface))
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

//! Where programs, links and maps are pinned.
//!
//! ```text
//! /sys/fs/bpf/sumac/agg/<inode of the network namespace>/
//!     link-<interface> ...            one for each port
//!     prog  prog-out                  replaced together on every attach
//!     map-STATE  map-SLOTS  ...       kept across attach and detach while jobs exist
//!     rule-<interface>-1022 ...       notes of the rules that were put into the port's NIC
//! ```
//!
//! bpffs allows no dot in a name and the kernel no colon in an interface's: `eth0.7` becomes `eth0:7`.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use aya::programs::links::PinnedLink;
use sumac_agg_layout::name;
pub use sumac_hostprog::DEFAULT_PIN_ROOT;
use sumac_hostprog::{
    pins::{current_namespace, entries},
    steer::memory::Memory,
};

/// The ingress program's pin.
pub const INGRESS: &str = "prog";
/// The egress program's pin.
pub const EGRESS: &str = "prog-out";
/// Every map that is kept.
pub const MAPS: [&str; 21] = [
    name::STATE,
    name::JOBS,
    name::WORKERS,
    name::PARENTS,
    name::LANES,
    name::EGRESS,
    name::PORTS,
    name::SLOTS,
    name::TAILS,
    name::DYNAMIC_SLOTS,
    name::MODES,
    name::COUNTERS,
    name::JOB_COUNTERS,
    name::WORKER_COUNTERS,
    name::DROPS,
    name::INJECTED,
    name::BEGAN,
    name::TIMES,
    name::LATENESS,
    name::OWN,
    name::LOGS,
];

const LINK_PREFIX: &str = "link-";

/// The directory of one aggregator's pins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinDir(PathBuf);

impl PinDir {
    /// The directory of the calling thread's network namespace.
    ///
    /// # Errors
    /// When /proc does not tell the namespace.
    pub fn here(pin_root: &Path) -> io::Result<PinDir> {
        Ok(PinDir(root(pin_root).join(current_namespace()?.to_string())))
    }

    /// Those of all network namespaces, also of ones that are gone.
    ///
    /// # Errors
    /// When the directory is there and cannot be read.
    pub fn list(pin_root: &Path) -> io::Result<Vec<PinDir>> {
        Ok(entries(&root(pin_root))?.into_iter().map(PinDir).collect())
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of one pin.
    #[must_use]
    pub fn pin(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The path of a map's pin.
    #[must_use]
    pub fn map(&self, name: &str) -> PathBuf {
        self.0.join(format!("map-{name}"))
    }

    /// The path of a port's link.
    #[must_use]
    pub fn link(&self, interface: &str) -> PathBuf {
        self.0.join(format!("{LINK_PREFIX}{}", interface.replace('.', ":")))
    }

    /// The notes of the rules that were put into a port's NIC.
    #[must_use]
    pub fn rules(&self, interface: &str) -> Memory {
        Memory::shared(&self.0, interface)
    }

    /// The inode of the network namespace whose pins these are; none where another hand made the directory.
    #[must_use]
    pub fn namespace(&self) -> Option<u64> {
        self.0.file_name()?.to_str()?.parse().ok()
    }

    /// The interfaces that have a link pinned.
    ///
    /// # Errors
    /// When the directory is there and cannot be read.
    pub fn interfaces(&self) -> io::Result<Vec<String>> {
        let names = entries(&self.0)?;
        let names = names.iter().filter_map(|path| path.file_name()?.to_str()?.strip_prefix(LINK_PREFIX));
        Ok(names.map(|name| name.replace(':', ".")).collect())
    }

    /// Makes the directory and locks it, so that two processes do not change it at once. The lock
    /// ends with the returned file.
    ///
    /// # Errors
    /// As the file system answers.
    pub fn create_locked(&self) -> io::Result<File> {
        loop {
            fs::create_dir_all(&self.0)?;
            if let Some(lock) = self.lock()? {
                return Ok(lock);
            }
        }
    }

    /// Locks the directory; `None` when it is not there.
    ///
    /// # Errors
    /// As the file system answers.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let directory = match File::open(&self.0) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        directory.lock()?;
        // Whoever held the lock before may have removed the directory on the way out.
        let same =
            fs::metadata(&self.0).is_ok_and(|now| directory.metadata().is_ok_and(|d| d.ino() == now.ino()));
        Ok(same.then_some(directory))
    }

    /// Removes a pin if it is there.
    ///
    /// # Errors
    /// As the file system answers.
    pub fn remove(&self, pin: &Path) -> io::Result<bool> {
        match fs::remove_file(pin) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes a link's program off its interface, and removes the pin, if they are there.
    ///
    /// # Errors
    /// As the file system answers.
    pub fn remove_link(&self, pin: &Path) -> io::Result<bool> {
        match PinnedLink::from_pin(pin) {
            // Closing the last handle detaches at once; the kernel lets go of a removed pin some time later.
            Ok(link) => link.unpin().map(drop).map(|()| true),
            // Not a link, or gone: what is left is a name.
            Err(_) => self.remove(pin),
        }
    }

    /// Removes all pins and the directory; gives what was removed.
    ///
    /// Links go first: from then on no frame meets the programs whose maps go next.
    ///
    /// # Errors
    /// The first that the file system gives; what was removed before stays removed.
    pub fn remove_all(&self) -> io::Result<Vec<PathBuf>> {
        let mut pins = entries(&self.0)?;
        pins.sort_by_key(|pin| (!is_link(pin), pin.clone()));
        for pin in &pins {
            if is_link(pin) {
                self.remove_link(pin)?
            } else {
                self.remove(pin)?
            };
        }
        if self.0.exists() {
            fs::remove_dir(&self.0)?;
            pins.push(self.0.clone());
        }
        // The parents are shared with others: they go when they are empty, else they stay.
        for parent in self.0.ancestors().skip(1).take(2) {
            if fs::remove_dir(parent).is_err() {
                break;
            }
        }
        Ok(pins)
    }
}

fn is_link(pin: &Path) -> bool {
    pin.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LINK_PREFIX))
}

fn root(pin_root: &Path) -> PathBuf {
    pin_root.join("agg")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_from_links_and_all_goes_in_the_end() {
        let root = std::env::temp_dir().join(format!("sumac-agg-pins-{}", std::process::id()));
        let here = PinDir::here(&root).unwrap();
        assert_eq!(here.lock().unwrap().map(drop), None, "nothing there to lock");
        drop(here.create_locked().unwrap());
        for pin in [here.link("eth0.7"), here.link("eth1"), here.map("JOBS"), here.pin(INGRESS)] {
            fs::write(pin, "").unwrap();
        }
        assert_eq!(here.interfaces().unwrap(), ["eth0.7", "eth1"]);
        assert_eq!(PinDir::list(&root).unwrap(), std::slice::from_ref(&here));
        let removed = here.remove_all().unwrap();
        assert_eq!(removed[..2], [here.link("eth0.7"), here.link("eth1")], "links first");
        assert_eq!(removed.len(), 5);
        assert!(!root.exists(), "empty parents go too");
    }
}

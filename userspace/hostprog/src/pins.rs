//! Where the program, its link and its maps are pinned.
//!
//! ```text
//! /sys/fs/bpf/sumac/host/<inode of the network namespace>-<interface>/
//!     link  prog  config      replaced together when the program is
//!     xsks  jobs  counters  queues  log      kept across replacements
//!     rule-1022 ...                          notes of the NIC's rules (see [`crate::steer::memory`])
//! ```
//!
//! The namespace is part of the name because several of them share one bpffs, and their interfaces share names.
//! bpffs allows no dot in a name and the kernel no colon in an interface's: `eth0.7` becomes `eth0:7`.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::steer::memory::Memory;

/// Where Sumac pins, unless told otherwise.
pub const DEFAULT_PIN_ROOT: &str = "/sys/fs/bpf/sumac";

/// The link between program and interface.
pub const LINK: &str = "link";
/// The program.
pub const PROGRAM: &str = "prog";
/// Map pins that belong to one attachment: name in the program, name of the pin.
pub const CONFIG: (&str, &str) = ("CONFIG", "config");
/// Map pins that outlive replacement: name in the program, name of the pin.
pub const KEPT: [(&str, &str); 5] = [
    ("SOCKETS", "xsks"),
    ("JOBS", "jobs"),
    ("COUNTERS", "counters"),
    ("QUEUES", "queues"),
    ("AYA_LOGS", "log"),
];

/// The directory of one interface's pins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinDir {
    path: PathBuf,
    namespace: u64,
    interface: String,
}

impl PinDir {
    /// The directory for an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// When /proc does not tell the namespace, or no interface can have that name.
    pub fn here(pin_root: &Path, interface: &str) -> io::Result<Self> {
        if interface.is_empty() || interface.contains(['/', ':', '\0']) {
            let error = format!("{interface:?} is no name of an interface");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        Ok(Self::new(pin_root, current_namespace()?, interface))
    }

    fn new(pin_root: &Path, namespace: u64, interface: &str) -> Self {
        let path = host_root(pin_root).join(format!("{namespace}-{}", interface.replace('.', ":")));
        Self { path, namespace, interface: interface.to_owned() }
    }

    /// Every interface that has pins, of all network namespaces, sorted.
    ///
    /// # Errors
    /// When the directory is there and cannot be read.
    pub fn list(pin_root: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in entries(&host_root(pin_root))? {
            let name = entry.file_name().and_then(OsStr::to_str);
            let parts = name.and_then(|name| name.split_once('-'));
            if let Some((Ok(namespace), interface)) = parts.map(|(inode, name)| (inode.parse(), name)) {
                found.push(Self::new(pin_root, namespace, &interface.replace(':', ".")));
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of one pin.
    #[must_use]
    pub fn pin(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The notes of the rules that were put into the interface.
    #[must_use]
    pub fn rules(&self) -> Memory {
        Memory::of_interface(&self.path)
    }

    /// The interface's name.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The inode of the network namespace that the interface is in.
    #[must_use]
    pub fn namespace(&self) -> u64 {
        self.namespace
    }

    /// Whether a program is pinned here.
    ///
    /// # Errors
    /// When that may not be known: to others than root the file system may be closed.
    pub fn exists(&self) -> io::Result<bool> {
        self.pin(LINK).try_exists()
    }

    /// Makes the directory and locks it, so that two processes do not attach to one interface at once. The lock
    /// ends with the returned file.
    ///
    /// # Errors
    /// As the file system answers.
    pub fn create_locked(&self) -> io::Result<File> {
        loop {
            match fs::create_dir_all(&self.path) {
                // It was there, and is no more: whoever held the lock has removed it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !self.path.is_file() => {
                    continue;
                }
                other => other?,
            }
            let directory = match File::open(&self.path) {
                Ok(directory) => directory,
                // The same a moment later.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            directory.lock()?;
            // Whoever held the lock before may have removed the directory on the way out.
            if fs::metadata(&self.path)
                .is_ok_and(|now| directory.metadata().is_ok_and(|then| now.ino() == then.ino()))
            {
                return Ok(directory);
            }
        }
    }

    /// Removes every pin and the directory; returns the paths that were removed.
    ///
    /// The link goes first: from then on no frame meets the program whose maps go next.
    ///
    /// # Errors
    /// The first that the file system gives; what was removed before stays removed.
    pub fn remove(&self) -> io::Result<Vec<PathBuf>> {
        let mut pins: Vec<PathBuf> = match fs::read_dir(&self.path) {
            Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        pins.sort_by_key(|pin| (!pin.ends_with(LINK), pin.clone()));
        for pin in &pins {
            fs::remove_file(pin)?;
        }
        fs::remove_dir(&self.path)?;
        pins.push(self.path.clone());
        // The parents are shared with other interfaces: they go when they are empty, else they stay.
        for parent in self.path.ancestors().skip(1).take(2) {
            if fs::remove_dir(parent).is_err() {
                break;
            }
        }
        Ok(pins)
    }
}

/// Where the pins of all host programs are.
#[must_use]
pub fn host_root(pin_root: &Path) -> PathBuf {
    pin_root.join("host")
}

/// The inode of the calling thread's network namespace. Threads may be in different ones.
///
/// # Errors
/// When /proc is not mounted.
pub fn current_namespace() -> io::Result<u64> {
    fs::metadata("/proc/thread-self/ns/net").map(|metadata| metadata.ino())
}

/// What is in a directory, sorted; nothing when it is not there.
///
/// # Errors
/// As the file system answers.
pub fn entries(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_remove_is_locked_all_the_same() {
        let root = std::env::temp_dir().join(format!("sumac-pins-race-{}", std::process::id()));
        let here = PinDir::here(&root, "eth0").unwrap();
        let others = here.clone();
        // Keeps the parents, which are not the point.
        fs::create_dir_all(host_root(&root).join("kept")).unwrap();
        let remover = std::thread::spawn(move || {
            for _ in 0..2000 {
                let _ = fs::remove_dir(others.path());
            }
        });
        while !remover.is_finished() {
            drop(here.create_locked().unwrap());
        }
        remover.join().unwrap();
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn directories_are_listed_with_namespace_and_interface() {
        let root = std::env::temp_dir().join(format!("sumac-pins-{}", std::process::id()));
        let here = PinDir::here(&root, "a-b.0").unwrap();
        drop(here.create_locked().unwrap());
        fs::create_dir_all(host_root(&root).join("no number")).unwrap();
        let listed = PinDir::list(&root).unwrap();
        assert_eq!(listed, std::slice::from_ref(&here));
        assert_eq!(listed[0].interface(), "a-b.0");
        assert_eq!(here.remove().unwrap(), [here.path().to_owned()]);
        assert_eq!(here.remove().unwrap(), Vec::<PathBuf>::new());
        assert_eq!(PinDir::list(&root).unwrap(), []);
        for bad in ["", "../x", "a:b"] {
            assert!(PinDir::here(&root, bad).is_err(), "{bad}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}

//! Directories of pins on a bpffs.
//!
//! Programs, links and maps are pinned, so that they outlive the process that attached them. Each attachment
//! has a directory, named after the inode of its network namespace: several namespaces share one bpffs, and
//! their interfaces share names. The names of pinned links begin with `link`. [`crate::replace`] replaces
//! several pins at once.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt as _, lchown},
    path::{Path, PathBuf},
};

use aya::programs::{
    ProgramError, ProgramInfo,
    links::{FdLink, LinkError, PinnedLink},
};
use nix::unistd::geteuid;
use thiserror::Error;

use crate::chain::chain;

pub const DEFAULT_PIN_ROOT: &str = "/sys/fs/bpf/sumac";

/// The pin of an XDP program on its interface's ingress.
pub const PROGRAM: &str = "prog";
/// Begins the names of staged pins.
pub(crate) const STAGED: &str = "new-";
/// The pin of a directory's only link, or the beginning of the names of several.
pub const LINK: &str = "link";
/// The record of the version of the maps' layout. Maps beside it are whole; without it they are leftovers of
/// a removal.
pub const ABI: &str = "abi";

#[derive(Debug, Error)]
pub enum PinError {
    #[error("could not change the pins at {path}: {source}{}", permission(.source))]
    File { path: PathBuf, source: io::Error },
    #[error("could not pin at {path}: {}{}", chain(.source.as_ref()), permission(.source.as_ref()))]
    Pin { path: PathBuf, source: Box<aya::pin::PinError> },
    #[error("could not open the pinned link {path}: {}{}", chain(.source), permission(.source))]
    Link { path: PathBuf, source: LinkError },
    #[error("could not open the pinned program {path}: {}{}", chain(.source), permission(.source.as_ref()))]
    Program { path: PathBuf, source: Box<ProgramError> },
}

/// Returns the remedy for an error that a missing permission has caused.
pub fn permission(error: &(dyn std::error::Error + 'static)) -> &'static str {
    let mut cause = Some(error);
    while let Some(this) = cause {
        let error = this.downcast_ref::<io::Error>();
        if error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return "; run as root";
        }
        cause = this.source();
    }
    ""
}

impl PinError {
    /// Returns a function that adds the path to an error of the file system.
    pub fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { path: path.to_owned(), source }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinDirectory {
    path: PathBuf,
    namespace: u64,
}

impl PinDirectory {
    /// Returns the directory at `path` for a network namespace; it need not be there.
    pub fn new(path: PathBuf, namespace: u64) -> Self {
        Self { path, namespace }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory, the one of all attachments of its kind, and the one of all pins.
    pub(crate) fn ancestors(&self) -> [&Path; 3] {
        let kind = self.path.parent().unwrap_or(&self.path);
        [&self.path, kind, kind.parent().unwrap_or(kind)]
    }

    pub fn namespace(&self) -> u64 {
        self.namespace
    }

    pub fn pin(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Gives the directory, its parent and its pins to the owner of the directory of all pins: root may
    /// attach for a daemon that runs as another user, as that of the Debian package.
    pub(crate) fn give_to_owner(&self) -> io::Result<()> {
        let [own, kind, root] = self.ancestors();
        let owner = fs::metadata(root)?;
        if owner.uid() == geteuid().as_raw() {
            return Ok(());
        }
        let pins = entries(own)?;
        let paths = pins.iter().map(PathBuf::as_path).chain([own, kind]);
        // Not through the records, which are symbolic links.
        paths.into_iter().try_for_each(|path| lchown(path, Some(owner.uid()), Some(owner.gid())))
    }

    /// Makes the directory and locks it against other processes. The lock ends with the returned file. After
    /// an error there is nothing that was not there before.
    pub fn create_locked(&self) -> io::Result<File> {
        self.try_create_locked().inspect_err(|_| self.remove_if_empty())
    }

    fn try_create_locked(&self) -> io::Result<File> {
        loop {
            match fs::create_dir_all(&self.path) {
                // The former holder of the lock removed it after `create_dir_all` had found it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !self.path.is_file() => {
                    continue;
                }
                other => other?,
            }
            if let Some(lock) = self.lock()? {
                return Ok(lock);
            }
        }
    }

    /// Locks the directory; `None` when it is not there.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let directory = match File::open(&self.path) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        directory.lock()?;
        // The former holder of the lock may have removed the directory.
        let is_current = fs::metadata(&self.path)
            .is_ok_and(|now| directory.metadata().is_ok_and(|then| now.ino() == then.ino()));
        Ok(is_current.then_some(directory))
    }

    pub fn remove(&self, name: &str) -> Result<bool, PinError> {
        let pin = self.pin(name);
        match fs::remove_file(&pin) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(PinError::File { path: pin, source }),
        }
    }

    /// Detaches the program of a pinned link and removes the pin; returns whether it was there.
    pub fn remove_link(&self, name: &str) -> Result<bool, PinError> {
        let pin = self.pin(name);
        // Held over the removal: closing the last handle detaches at once, removing the last pin some time
        // later.
        let link = PinnedLink::from_pin(&pin).ok();
        let removed = self.remove(name);
        drop(link);
        removed
    }

    /// Removes every pin, the directory, and its two parents if they are empty. Returns the paths removed,
    /// without those of the parents.
    ///
    /// # Errors
    /// The first pin that stays; those removed before stay removed.
    pub fn remove_all(&self) -> Result<Vec<PathBuf>, PinError> {
        let removed = self.remove_pins()?;
        self.remove_if_empty();
        Ok(removed)
    }

    /// Removes the directory and its two parents, which are shared with other attachments, as far as they are
    /// empty.
    pub fn remove_if_empty(&self) {
        for directory in self.ancestors() {
            match fs::remove_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => break,
                _ => {}
            }
        }
    }

    /// Removes every pin and the directory; returns the paths removed. Links go first, so that no frame meets
    /// a program whose maps are gone; then the record without which nobody takes the remaining maps for
    /// whole.
    pub fn remove_pins(&self) -> Result<Vec<PathBuf>, PinError> {
        let mut pins = entries(&self.path).map_err(PinError::at(&self.path))?;
        let is_link = |name: &str| name.strip_prefix(STAGED).unwrap_or(name).starts_with(LINK);
        pins.sort_by_key(|pin| (!is_link(file_name(pin)), file_name(pin) != ABI, pin.clone()));
        for pin in &pins {
            match file_name(pin) {
                link if is_link(link) => self.remove_link(link)?,
                name => self.remove(name)?,
            };
        }
        match fs::remove_dir(&self.path) {
            Ok(()) => pins.push(self.path.clone()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(PinError::File { path: self.path.clone(), source }),
        }
        Ok(pins)
    }

    /// Returns the version of the layout of the maps here; `None` without a record.
    pub fn abi(&self) -> Result<Option<String>, PinError> {
        let path = self.pin(ABI);
        match fs::read_link(&path) {
            Ok(abi) => Ok(Some(abi.to_string_lossy().into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(PinError::File { path, source }),
        }
    }

    /// Returns the version of the maps here for a message, if it is another than `expected`.
    pub fn other_abi(&self, expected: u32) -> Result<Option<String>, PinError> {
        let found = self.abi()?;
        Ok((found != Some(expected.to_string())).then(|| found.unwrap_or_else(|| "none".to_owned())))
    }

    /// Returns the names of the pinned links.
    pub fn links(&self) -> Result<Vec<String>, PinError> {
        let entries = entries(&self.path).map_err(PinError::at(&self.path))?;
        Ok(entries
            .iter()
            .map(|path| file_name(path))
            .filter(|name| name.starts_with(LINK))
            .map(str::to_owned)
            .collect())
    }

    /// Returns the kernel's number of a pinned program.
    pub fn pinned_program(&self, name: &str) -> Result<u32, PinError> {
        let path = self.pin(name);
        let info = ProgramInfo::from_pin(&path);
        info.map(|info| info.id()).map_err(|source| PinError::Program { path, source: Box::new(source) })
    }

    /// Returns the kernel's number of the program that a pinned link has.
    pub fn linked_program(&self, link: &str) -> Result<u32, PinError> {
        let path = self.pin(link);
        let id = PinnedLink::from_pin(&path).and_then(|link| Ok(FdLink::from(link).info()?.program_id()));
        id.map_err(|source| PinError::Link { path, source })
    }
}

/// Returns an interface's name as part of a pin's: bpffs allows no dot, and the kernel no colon in an
/// interface's name.
pub fn encode_interface(name: &str) -> String {
    name.replace('.', ":")
}

pub fn decode_interface(name: &str) -> String {
    name.replace(':', ".")
}

/// Returns the paths in a directory, sorted; none when it is not there.
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

/// Returns the last part of a path; empty when it is not text.
pub fn file_name(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(test: &str) -> PinDirectory {
        let root = std::env::temp_dir().join(format!("sumac-{test}-{}", std::process::id()));
        PinDirectory::new(root.join("agg/7"), 7)
    }

    #[test]
    fn a_directory_that_another_process_removes_is_locked_in_the_end() {
        let pins = directory("pins-race");
        let others = pins.clone();
        // Keeps the parents.
        fs::create_dir_all(pins.path().with_file_name("kept")).unwrap();
        let remover = std::thread::spawn(move || {
            for _ in 0..2000 {
                let _ = fs::remove_dir(others.path());
            }
        });
        while !remover.is_finished() {
            drop(pins.create_locked().unwrap());
        }
        remover.join().unwrap();
        fs::remove_dir_all(pins.path().ancestors().nth(2).unwrap()).unwrap();
    }

    #[test]
    fn links_are_removed_first_and_empty_parents_last() {
        let pins = directory("pins");
        assert_eq!(pins.lock().unwrap().map(drop), None, "no directory to lock");
        drop(pins.create_locked().unwrap());
        for name in [ABI, "link-eth0:7", "link-eth1", "map-JOBS", "new-link-eth2", PROGRAM] {
            fs::write(pins.pin(name), "").unwrap();
        }
        let removed = pins.remove_all().unwrap();
        let first = ["link-eth0:7", "link-eth1", "new-link-eth2", ABI].map(|name| pins.pin(name));
        assert_eq!(removed[..4], first, "links, then the record of the maps' version");
        assert_eq!(removed.len(), 7);
        assert!(!pins.path().ancestors().nth(2).unwrap().exists());
        assert_eq!(pins.remove_all().unwrap(), Vec::<PathBuf>::new());
    }
}

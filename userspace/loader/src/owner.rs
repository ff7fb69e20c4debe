//! The lock of the one process that may write an attachment's jobs: `sumac-agg serve`, or a daemon.
//!
//! The kernel releases it when the process ends, in whatever way. It is on a directory of its own, beside the
//! pins: the lock of a [`crate::PinDirectory`] is held for moments only.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
};

use nix::sys::stat::{major, minor};
use thiserror::Error;

use crate::pins::{PinDirectory, file_name};

#[derive(Debug, Error)]
pub enum OwnerError {
    #[error("{subject} is in use by {}; stop that first", holder(.pid.as_ref()))]
    Held { subject: String, pid: Option<i32> },
    #[error("could not lock {path}: {source}")]
    Lock { path: PathBuf, source: io::Error },
}

fn holder(pid: Option<&i32>) -> String {
    let Some(pid) = pid else { return "another process".to_owned() };
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("process {pid}"),
    }
}

/// A held lock.
#[derive(Debug)]
pub struct Owner {
    path: PathBuf,
    _lock: File,
}

impl Owner {
    /// Takes the lock of an attachment's pins; `subject` names the attachment in an error.
    pub fn claim(pins: &PinDirectory, subject: &str) -> Result<Self, OwnerError> {
        let [own, kind, root] = pins.ancestors();
        let path = root.join("owners").join(format!("{}-{}", file_name(kind), file_name(own)));
        let failed = |source| OwnerError::Lock { path: path.clone(), source };
        loop {
            match fs::create_dir_all(&path) {
                // The former owner removed it after `create_dir_all` had found it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !path.is_file() => continue,
                made => made.map_err(failed)?,
            }
            let lock = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(failed)?,
            };
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(OwnerError::Held { subject: subject.to_owned(), pid: pid_of(&lock) });
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
            let is_current = fs::metadata(&path)
                .is_ok_and(|now| lock.metadata().is_ok_and(|then| now.ino() == then.ino()));
            if is_current {
                return Ok(Self { path, _lock: lock });
            }
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        for directory in self.path.ancestors().take(3) {
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
    }
}

/// Returns the process that has a file locked, by the kernel's table of locks.
fn pid_of(file: &File) -> Option<i32> {
    let metadata = file.metadata().ok()?;
    let id = format!("{:02x}:{:02x}:{}", major(metadata.dev()), minor(metadata.dev()), metadata.ino());
    let holder = || {
        fs::read_to_string("/proc/locks").ok()?.lines().find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            (fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&id.as_str()))
                .then(|| fields.get(4)?.parse().ok().filter(|pid| *pid > 0))?
        })
    };
    // The kernel writes the table in parts, and leaves lines out when locks come and go meanwhile.
    (0..3).find_map(|_| holder())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_owner_and_it_is_named() {
        let root = std::env::temp_dir().join(format!("sumac-owner-{}", std::process::id()));
        let claim = |name| Owner::claim(&PinDirectory::new(root.join(name), 7), "the aggregator");
        let first = claim("agg/7").unwrap();
        let refused = claim("agg/7").unwrap_err().to_string();
        let named = format!("the aggregator is in use by process {}", std::process::id());
        assert!(refused.contains(&named), "{refused}");
        let other = claim("agg/8").unwrap();
        drop(first);
        drop(claim("agg/7").unwrap());
        drop(other);
        assert!(!root.exists(), "nothing is left");
    }
}

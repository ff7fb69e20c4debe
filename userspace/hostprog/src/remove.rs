//! Takes the program away again: from one interface, or whatever Sumac left on the host.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use aya::programs::links::PinnedLink;
use thiserror::Error;

use crate::{
    pins::{self, PinDir},
    preflight,
    steer::{self, SteerError, memory::Memory},
};

/// Why something of Sumac's is still there.
#[derive(Debug, Error)]
pub enum RemoveError {
    /// Nothing to detach.
    #[error("no host program on {ifname} (looked for {path}); `sumac status` lists what is attached")]
    NotAttached {
        /// The interface.
        ifname: String,
        /// Where its pins would be.
        path: PathBuf,
    },
    /// The directory given is not one of pins: nothing was touched.
    #[error(
        "{path} is not a directory of Sumac's pins: {why}; give the one that programs were attached with"
    )]
    NotPins {
        /// The directory.
        path: PathBuf,
        /// What speaks against it.
        why: &'static str,
    },
    /// Rules stay in the NIC; program and pins are gone.
    #[error("the program is off {ifname}, but its rules may not be: {source}")]
    Rules {
        /// The interface.
        ifname: String,
        /// Why.
        source: SteerError,
    },
    /// Whether there is anything cannot be known.
    #[error("could not look for pins at {path}: {source}; are you root?")]
    Look {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file system refused.
    #[error("could not remove {path}: {source}; are you root?")]
    Remove {
        /// What was to be removed.
        path: PathBuf,
        /// What the file system said.
        source: io::Error,
    },
}

/// Detaches the host program from an interface, takes out the rules that were put into the NIC for it, and removes its
/// pins. Gives the paths that were removed.
///
/// # Errors
/// When nothing is attached, or a pin or a rule cannot be removed.
pub fn detach(ifname: &str, pin_root: impl AsRef<Path>) -> Result<Vec<PathBuf>, RemoveError> {
    let root = pin_root.as_ref();
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| RemoveError::Look { path, source }
    };
    let pins = PinDir::here(root, ifname).map_err(failed(root))?;
    if !pins.path().try_exists().map_err(failed(pins.path()))? {
        return Err(RemoveError::NotAttached { ifname: ifname.to_owned(), path: pins.path().to_owned() });
    }
    remove(&pins)
}

/// Removes everything that Sumac has pinned below `pin_root`, in every network namespace: host programs, and with
/// them whatever else is there, such as an aggregator's. Gives the paths that were removed.
///
/// # Errors
/// When `pin_root` is not a directory on a bpffs of its own, and then nothing is removed; else the first that cannot
/// be removed, and what was removed before stays removed.
pub fn clean(pin_root: impl AsRef<Path>) -> Result<Vec<PathBuf>, RemoveError> {
    let root = pin_root.as_ref();
    let failed = |source| RemoveError::Look { path: root.to_owned(), source };
    if !root.try_exists().map_err(failed)? {
        return Ok(Vec::new());
    }
    check_root(root)?;
    let listed = PinDir::list(root).map_err(failed)?;
    let mut removed = Vec::new();
    for pins in listed {
        removed.extend(remove(&pins)?);
    }
    let rules = release_aggregators(root);
    remove_tree(root, &mut removed)?;
    rules?;
    Ok(removed)
}

/// Takes out the rules that aggregators put in; their directories are named after their network namespaces.
fn release_aggregators(root: &Path) -> Result<(), RemoveError> {
    let mut first = Ok(());
    for directory in fs::read_dir(root.join("agg")).into_iter().flatten().flatten() {
        let Some(namespace) = directory.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let directory = directory.path();
        let sharing = Memory::sharing(&directory)
            .map_err(|source| RemoveError::Look { path: directory.clone(), source })?;
        for ifname in sharing {
            let removed = steer::remove(namespace, &ifname, &Memory::shared(&directory, &ifname));
            first = first.and(removed.map_err(|source| RemoveError::Rules { ifname, source }));
        }
    }
    first
}

/// A slip of the pen must not empty another directory, nor take away what others pinned.
fn check_root(root: &Path) -> Result<(), RemoveError> {
    let refuse = |why| Err(RemoveError::NotPins { path: root.to_owned(), why });
    if !preflight::is_on_bpffs(root) {
        return refuse("it is on no bpf file system");
    }
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    if device(root) != root.canonicalize().ok().and_then(|path| device(path.parent()?)) {
        return refuse("it is the whole bpf file system");
    }
    Ok(())
}

fn remove(pins: &PinDir) -> Result<Vec<PathBuf>, RemoveError> {
    // Not in the middle of somebody's attach, which would find its pins gone.
    let _lock = pins
        .create_locked()
        .map_err(|source| RemoveError::Remove { path: pins.path().to_owned(), source })?;
    let rules = steer::remove(pins.namespace(), pins.interface(), &pins.rules());
    // Held over the removal: closing the last handle detaches at once, removing the last pin some time later.
    let link = PinnedLink::from_pin(pins.pin(pins::LINK)).ok();
    let removed =
        pins.remove().map_err(|source| RemoveError::Remove { path: pins.path().to_owned(), source })?;
    drop(link);
    rules.map_err(|source| RemoveError::Rules { ifname: pins.interface().to_owned(), source })?;
    Ok(removed)
}

fn remove_tree(path: &Path, removed: &mut Vec<PathBuf>) -> Result<(), RemoveError> {
    let failed = |path: &Path, source| RemoveError::Remove { path: path.to_owned(), source };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed(path, source)),
    };
    for entry in entries {
        let entry = entry.map_err(|source| failed(path, source))?;
        let child = entry.path();
        let kind = entry.file_type().map_err(|source| failed(&child, source))?;
        if kind.is_dir() {
            remove_tree(&child, removed)?;
        } else {
            fs::remove_file(&child).map_err(|source| failed(&child, source))?;
            removed.push(child);
        }
    }
    fs::remove_dir(path).map_err(|source| failed(path, source))?;
    removed.push(path.to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_directories_are_not_emptied() {
        let root = std::env::temp_dir().join(format!("sumac-clean-{}", std::process::id()));
        fs::create_dir_all(root.join("host")).unwrap();
        fs::write(root.join("host/precious"), "x").unwrap();
        assert!(matches!(clean(&root), Err(RemoveError::NotPins { .. })));
        assert!(root.join("host/precious").exists());
        fs::remove_dir_all(root).unwrap();
    }
}

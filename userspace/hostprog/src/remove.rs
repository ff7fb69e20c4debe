//! Detaches the program from one interface, or removes everything of Sumac's from the machine.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use sumac_loader::{
    PinDirectory, PinError,
    pins::{entries, file_name, permission},
    preflight,
};
use sumac_netutil::steer::{self, SteerError, records::RuleRecords};
use thiserror::Error;

use crate::pins::HostPins;

#[derive(Debug, Error)]
pub enum RemoveError {
    #[error("no host program on {ifname} (looked for {path}); `sumac status` lists what is attached")]
    NotAttached { ifname: String, path: PathBuf },
    #[error(
        "{path} is not a directory of Sumac's pins: {reason}; give the one that programs were attached with"
    )]
    NotPins { path: PathBuf, reason: &'static str },
    #[error("the program is off {ifname}, but its rules may not be: {source}")]
    Rules { ifname: String, source: SteerError },
    #[error("could not read the pins at {path}: {source}{}", permission(.source))]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Pins(#[from] PinError),
}

impl RemoveError {
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read { path: path.to_owned(), source }
    }
}

/// Detaches the host program from an interface, deletes the NIC's rules that were inserted for it, and
/// removes its pins. Returns the paths removed.
pub fn detach(ifname: &str, pin_root: impl AsRef<Path>) -> Result<Vec<PathBuf>, RemoveError> {
    let root = pin_root.as_ref();
    let pins = HostPins::find(root, ifname).map_err(RemoveError::read(root))?;
    let path = pins.directory.path();
    remove(&pins)?
        .ok_or_else(|| RemoveError::NotAttached { ifname: ifname.to_owned(), path: path.to_owned() })
}

/// Detaches the host programs from all interfaces, in every network namespace, as [`detach`] does from one.
pub fn detach_all(pin_root: impl AsRef<Path>) -> Result<Vec<PathBuf>, RemoveError> {
    let root = pin_root.as_ref();
    let mut removed = Vec::new();
    for pins in HostPins::list(root).map_err(RemoveError::read(root))? {
        removed.extend(remove(&pins)?.unwrap_or_default());
    }
    Ok(removed)
}

/// Removes everything that Sumac has pinned below `pin_root`, in every network namespace: host programs, and
/// what else is there, such as an aggregator's. Returns the paths removed.
///
/// # Errors
/// When `pin_root` is not a directory on a bpffs of its own, and then nothing is removed; else the first path
/// or rule that stays.
pub fn clean(pin_root: impl AsRef<Path>) -> Result<Vec<PathBuf>, RemoveError> {
    let root = pin_root.as_ref();
    if !root.try_exists().map_err(RemoveError::read(root))? {
        return Ok(Vec::new());
    }
    check_root(root)?;
    let mut removed = detach_all(root)?;
    let rules = delete_rules_of_aggregators(root);
    remove_tree(root, &mut removed)?;
    rules?;
    Ok(removed)
}

/// Deletes the rules that aggregators inserted; their directories are named after their network namespaces.
fn delete_rules_of_aggregators(root: &Path) -> Result<(), RemoveError> {
    let mut first = Ok(());
    let directory = root.join("agg");
    for directory in entries(&directory).map_err(RemoveError::read(&directory))? {
        let Ok(namespace) = file_name(&directory).parse() else { continue };
        for ifname in RuleRecords::interfaces(&directory).map_err(RemoveError::read(&directory))? {
            let removed = steer::remove(namespace, &ifname, &RuleRecords::shared(&directory, &ifname));
            first = first.and(removed.map_err(|source| RemoveError::Rules { ifname, source }));
        }
    }
    first
}

/// Refuses directories that may hold other pins than Sumac's: a mistyped path must not empty them.
pub(crate) fn check_root(root: &Path) -> Result<(), RemoveError> {
    let refuse = |reason| Err(RemoveError::NotPins { path: root.to_owned(), reason });
    if !preflight::is_on_bpffs(root) {
        return refuse("it is on no bpf file system");
    }
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    if device(root) != root.canonicalize().ok().and_then(|path| device(path.parent()?)) {
        return refuse("it is the whole bpf file system");
    }
    Ok(())
}

/// Removes the pins of one interface and its rules; `None` when there are none.
fn remove(pins: &HostPins) -> Result<Option<Vec<PathBuf>>, RemoveError> {
    let directory = &pins.directory;
    // An attachment in progress must not lose its pins.
    let Some(_lock) = directory.lock().map_err(RemoveError::read(directory.path()))? else { return Ok(None) };
    let records = RuleRecords::of_interface(directory.path());
    let rules = steer::remove(directory.namespace(), &pins.interface, &records);
    let removed = directory.remove_all()?;
    rules.map_err(|source| RemoveError::Rules { ifname: pins.interface.clone(), source })?;
    Ok(Some(removed))
}

/// Removes a directory and its content, links before the maps beside them.
fn remove_tree(path: &Path, removed: &mut Vec<PathBuf>) -> Result<(), RemoveError> {
    for child in entries(path).map_err(RemoveError::read(path))? {
        if fs::symlink_metadata(&child).is_ok_and(|metadata| metadata.is_dir()) {
            remove_tree(&child, removed)?;
        }
    }
    removed.extend(PinDirectory::new(path.to_owned(), 0).remove_pins()?);
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

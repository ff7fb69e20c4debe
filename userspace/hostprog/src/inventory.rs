//! The inventory that `sumac clean` would remove: pins, and the jobs that end with them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sumac_loader::{
    map::{Table, TableError, open_pinned},
    pins::{entries, file_name},
};
use sumac_wire::tables::{HostJobEntry, JobEntry, job_flag};

use crate::{
    pins::{self, HostPins},
    remove::{RemoveError, check_root},
};

#[derive(Debug, Default)]
pub struct Inventory {
    pub paths: Vec<PathBuf>,
    /// For each program with jobs: which these are, or why that is unknown.
    pub jobs: Vec<String>,
}

/// Returns the numbers of the active jobs in a pinned table.
macro_rules! active_jobs {
    ($entry:ty, $pin:expr) => {{
        let map = open_pinned($pin).map_err(TableError::of("open", "JOBS"));
        let table = map.and_then(|map| Table::<$entry, { size_of::<$entry>() }>::new(map, "JOBS"));
        table.and_then(|table| {
            let mut active = Vec::new();
            for job in 0..table.len() {
                if table.get(job)?.flags & job_flag::ACTIVE != 0 {
                    active.push(job);
                }
            }
            Ok(active)
        })
    }};
}

/// Lists everything that [`crate::clean`] removes.
///
/// # Errors
/// As of [`crate::clean`].
pub fn inventory(pin_root: impl AsRef<Path>) -> Result<Inventory, RemoveError> {
    let root = pin_root.as_ref();
    if !root.try_exists().map_err(RemoveError::read(root))? {
        return Ok(Inventory::default());
    }
    check_root(root)?;
    let mut found = Inventory::default();
    list(root, &mut found.paths)?;
    for host in HostPins::list(root).map_err(RemoveError::read(root))? {
        let pin = host.pin(pins::JOBS.1);
        let jobs = pin.exists().then(|| active_jobs!(HostJobEntry, &pin));
        found.note(jobs, &format!("the host program on {}", host.interface));
    }
    let aggregators = root.join("agg");
    for directory in entries(&aggregators).map_err(RemoveError::read(&aggregators))? {
        let pin = directory.join("map-JOBS");
        let jobs = pin.exists().then(|| active_jobs!(JobEntry, &pin));
        found.note(jobs, &format!("the aggregator in network namespace {}", file_name(&directory)));
    }
    Ok(found)
}

impl Inventory {
    fn note(&mut self, jobs: Option<Result<Vec<u32>, TableError>>, program: &str) {
        match jobs {
            None => {}
            Some(Ok(jobs)) if jobs.is_empty() => {}
            Some(Ok(jobs)) => self.jobs.push(format!("jobs {jobs:?} of {program}")),
            Some(Err(error)) => self.jobs.push(format!("the jobs of {program}, which are unknown: {error}")),
        }
    }
}

/// Lists a directory's content and the directory, as they are removed.
fn list(path: &Path, found: &mut Vec<PathBuf>) -> Result<(), RemoveError> {
    for child in entries(path).map_err(RemoveError::read(path))? {
        if fs::symlink_metadata(&child).is_ok_and(|metadata| metadata.is_dir()) {
            list(&child, found)?;
        } else {
            found.push(child);
        }
    }
    found.push(path.to_owned());
    Ok(())
}

//! Takes the programs off their ports, and, when nobody needs them any more, the maps away.

use std::{
    io,
    path::{Path, PathBuf},
};

use sumac_hostprog::{interface::Interface, pins::current_namespace, steer::memory::Memory};
use sumac_wire::tables::job_flag;
use thiserror::Error;

use crate::{pins::PinDir, steering::release, tables::Tables};

/// Why something is still there.
#[derive(Debug, Error)]
#[error("removing {path}: {source}; what was removed before stays removed, run it again")]
pub struct DetachError {
    path: PathBuf,
    source: io::Error,
}

/// What a detach did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detached {
    /// The interfaces that the programs came off.
    pub interfaces: Vec<String>,
    /// Jobs whose slots are kept for the next attach; when there are none, nothing is kept.
    pub kept_jobs: Vec<u16>,
}

/// Takes the programs off `interfaces`, or off all when none is given, and out of their NICs the rules that were put in.
/// When none is left, the maps go
/// too, unless there are jobs: these go on where they were once the programs are attached again.
///
/// # Errors
/// The first pin that could not be removed.
pub fn detach(pin_root: &Path, interfaces: &[String]) -> Result<Detached, DetachError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| DetachError { path, source }
    };
    let pins = PinDir::here(pin_root).map_err(at(pin_root))?;
    let here = current_namespace().map_err(at(pin_root))?;
    let nothing = Detached { interfaces: Vec::new(), kept_jobs: Vec::new() };
    let Some(_lock) = pins.lock().map_err(at(pins.path()))? else { return Ok(nothing) };
    let all = pins.interfaces().map_err(at(pins.path()))?;
    let tables = Tables::open(&pins);
    let mut tables = tables.inspect_err(|error| tracing::warn!("{error}: no job is kept")).ok();
    let mut detached = nothing;
    for interface in all.iter().filter(|name| interfaces.is_empty() || interfaces.contains(name)) {
        let link = pins.link(interface);
        pins.remove_link(&link).map_err(at(&link))?;
        release(here, interface, &pins);
        if let (Some(tables), Ok(found)) = (&mut tables, Interface::by_name(interface)) {
            // Frames no longer come in; a port that cannot be taken out of the broadcast only wastes copies.
            if let Err(error) = tables.remove_port(found.index) {
                tracing::warn!("{interface}: {error}");
            }
        }
        detached.interfaces.push(interface.clone());
    }
    detached.kept_jobs = tables.as_ref().map(active_jobs).unwrap_or_default();
    if detached.kept_jobs.is_empty() && detached.interfaces.len() == all.len() {
        pins.remove_all().map_err(at(pins.path()))?;
    }
    Ok(detached)
}

/// Removes everything of the aggregators below `pin_root`, jobs and slots included: of this network
/// namespace, or of all, those that are gone included. Gives what was removed.
///
/// # Errors
/// The first pin that could not be removed.
pub fn clean(pin_root: &Path, all_namespaces: bool) -> Result<Vec<PathBuf>, DetachError> {
    let at = |source| DetachError { path: pin_root.to_owned(), source };
    let dirs = if all_namespaces {
        PinDir::list(pin_root).map_err(at)?
    } else {
        vec![PinDir::here(pin_root).map_err(at)?]
    };
    let mut removed = Vec::new();
    for dir in dirs {
        let at = |source| DetachError { path: dir.path().to_owned(), source };
        let _lock = dir.lock().map_err(at)?;
        if let Some(namespace) = dir.namespace() {
            let steered = Memory::sharing(dir.path()).map_err(at)?;
            steered.iter().for_each(|port| release(namespace, port, &dir));
        }
        removed.extend(dir.remove_all().map_err(at)?);
    }
    Ok(removed)
}

/// The numbers of all jobs. A table that cannot be read has none worth keeping.
pub(crate) fn active_jobs(tables: &Tables) -> Vec<u16> {
    let jobs = tables.jobs().unwrap_or_default();
    jobs.into_iter().filter(|(_, job)| job.flags & job_flag::ACTIVE != 0).map(|(number, _)| number).collect()
}

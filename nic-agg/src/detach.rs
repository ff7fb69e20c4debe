//! Detaches the programs from their interfaces, and removes the maps when no job needs them.

use std::path::{Path, PathBuf};

use sumac_loader::{Interface, PinError};
use sumac_netutil::steer::{self, records::RuleRecords};

use crate::{
    pins::{AggregatorPins, link_pin},
    recover,
    tables::{OpenError, Tables},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detached {
    pub interfaces: Vec<String>,
    /// Jobs whose slots are kept for the next attachment; without any, nothing is kept.
    pub kept_jobs: Vec<u16>,
}

/// Detaches the programs from `interfaces`, or from all when none is given, and deletes the rules inserted
/// into their NICs. After the last interface the maps are removed too, unless there are jobs: these continue
/// once the programs are attached again. After an error, what was removed before stays removed.
///
/// # Errors
/// When the table of jobs cannot be read, and then nothing is removed; else the first pin that stays.
pub fn detach(pin_root: &Path, interfaces: &[String]) -> Result<Detached, OpenError> {
    let pins = AggregatorPins::here(pin_root).map_err(PinError::at(pin_root))?;
    let mut detached = Detached::default();
    let Some(_lock) = pins.directory.lock().map_err(PinError::at(pins.path()))? else {
        return Ok(detached);
    };
    recover::recover(&pins)?;
    let all = pins.interfaces().map_err(PinError::at(pins.path()))?;
    let mut tables = if recover::check_abi(&pins)? { Some(Tables::open(&pins)?) } else { None };
    let jobs = tables.as_ref().map_or(Ok(Vec::new()), Tables::active_jobs)?;
    for interface in all.iter().filter(|name| interfaces.is_empty() || interfaces.contains(name)) {
        pins.directory.remove_link(&link_pin(interface))?;
        release(&pins, interface);
        if let (Some(tables), Ok(found)) = (&mut tables, Interface::by_name(interface))
            // An interface that stays in the broadcast costs useless copies only.
            && let Err(error) = tables.remove_port(found.index)
        {
            tracing::warn!("{interface}: {error}");
        }
        detached.interfaces.push(interface.clone());
    }
    detached.kept_jobs = jobs;
    if detached.kept_jobs.is_empty() && detached.interfaces.len() == all.len() {
        pins.directory.remove_all()?;
    }
    Ok(detached)
}

/// Removes everything of the aggregators below `pin_root`, jobs and slots included: of this network
/// namespace, or of all, also of those that are gone. Returns the paths removed.
pub fn clean(pin_root: &Path, all_namespaces: bool) -> Result<Vec<PathBuf>, PinError> {
    let all = if all_namespaces {
        AggregatorPins::list(pin_root)
    } else {
        AggregatorPins::here(pin_root).map(|pins| vec![pins])
    };
    let mut removed = Vec::new();
    for pins in all.map_err(PinError::at(pin_root))? {
        let _lock = pins.directory.lock().map_err(PinError::at(pins.path()))?;
        let steered = RuleRecords::interfaces(pins.path()).map_err(PinError::at(pins.path()))?;
        steered.iter().for_each(|interface| release(&pins, interface));
        removed.extend(pins.directory.remove_all()?);
    }
    Ok(removed)
}

/// Deletes the rules inserted for an interface. A rule that stays is a warning, and keeps nothing else.
fn release(pins: &AggregatorPins, interface: &str) {
    if let Err(error) = steer::remove(pins.directory.namespace(), interface, &pins.rules(interface)) {
        tracing::warn!("{error}");
    }
}

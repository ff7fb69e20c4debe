//! The state of an aggregator's pins: whole, of another version, or left by an attachment that was killed.

use std::io;

use sumac_loader::{Interface, mounts, preflight, program, recover as loader};

use crate::{
    pins::{self, AggregatorPins},
    tables::{OpenError, Tables},
};

/// Returns whether an aggregator's maps are here.
///
/// # Errors
/// When they are another version's, or it cannot be seen.
pub(crate) fn check_abi(pins: &AggregatorPins) -> Result<bool, OpenError> {
    let path = || pins.path().display().to_string();
    match pins.path().try_exists() {
        Ok(true) => {}
        Ok(false) if mounts::is_private() && !preflight::is_on_bpffs(pins.path()) => {
            return Err(OpenError::Hidden { path: path() });
        }
        Ok(false) => return Ok(false),
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            return Err(OpenError::Access { path: path(), source });
        }
        Err(source) => return Err(sumac_loader::PinError::at(pins.path())(source).into()),
    }
    let Some(found) = pins.directory.other_abi(sumac_agg_layout::ABI)? else { return Ok(true) };
    // Without the record, and without links, maps are what a removal left that did not end.
    if pins.directory.abi()?.is_none() && pins.directory.links()?.is_empty() {
        return Ok(false);
    }
    Err(OpenError::OtherAbi { path: path(), found })
}

/// Completes an attachment that did not end, or undoes it. The caller holds the lock.
pub(crate) fn recover(pins: &AggregatorPins) -> Result<(), OpenError> {
    let recovered = loader::recover(&pins.directory).map_err(|error| OpenError::Recover(Box::new(error)))?;
    if !recovered || !check_abi(pins)? {
        return Ok(());
    }
    tracing::warn!("an attachment that did not end was completed, or undone");
    restore_ports(pins)
}

/// Makes the map of ports that of the pinned links, with the pinned egress program.
fn restore_ports(pins: &AggregatorPins) -> Result<(), OpenError> {
    let mut tables = Tables::open(pins)?;
    let names = pins.interfaces().map_err(sumac_loader::PinError::at(pins.path()))?;
    let bound: Vec<u32> =
        names.iter().filter_map(|name| Interface::by_name(name).ok()).map(|found| found.index).collect();
    for port in tables.ports()?.into_iter().filter(|port| !bound.contains(port)) {
        tables.remove_port(port)?;
    }
    if bound.is_empty() {
        return Ok(());
    }
    let failed = |error: sumac_loader::LoadError| OpenError::Recover(Box::new(error.into()));
    let egress = program::open_pinned(&pins.directory.pin(pins::EGRESS)).map_err(failed)?;
    let egress =
        egress.fd().map_err(|source| failed(sumac_loader::LoadError::refused(pins::EGRESS, source)))?;
    bound.into_iter().try_for_each(|port| tables.add_port(port, egress).map(drop))?;
    Ok(())
}

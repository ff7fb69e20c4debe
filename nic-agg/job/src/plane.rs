//! The parts of a data plane that all planes share.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Mutex, PoisonError},
};

use sumac_agg_layout::Drops;
use sumac_control::plane::{DataPlane, KnownJob, LastEpoch, PlaneError, PlaneKind, TakenOver};
use sumac_wire::tables::{JobEntry, job_flag};

use crate::status::Status;

/// A data plane that aggregates, as the command line and the metrics see it.
pub trait AggregatorPlane: DataPlane {
    const KIND: PlaneKind;

    /// Returns the status, without what the control plane knows of the jobs.
    fn status(&self) -> Result<Status, PlaneError>;
    /// Sets the intentional drops of jobs, present or future.
    fn set_drops(&self, jobs: Range<u16>, drops: Drops) -> Result<(), PlaneError>;
    fn slots_reasons(&self) -> &SlotsReasons;
}

/// The reasons for the jobs' numbers of slots, for which the tables of jobs have no room.
#[derive(Default)]
pub struct SlotsReasons(Mutex<BTreeMap<u16, String>>);

impl SlotsReasons {
    pub fn all(&self) -> BTreeMap<u16, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets a job's reason; `None` or an empty one removes it.
    pub fn set(&self, job: u16, reason: Option<&str>) {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match reason.filter(|reason| !reason.is_empty()) {
            Some(reason) => drop(reasons.insert(job, reason.to_owned())),
            None => drop(reasons.remove(&job)),
        }
    }
}

/// Removes the active jobs among a plane's entries that the control plane does not know.
pub fn take_over(
    entries: Vec<(u16, JobEntry)>,
    known: &[KnownJob],
    remove: impl Fn(u16) -> Result<(), PlaneError>,
) -> Result<TakenOver, PlaneError> {
    let mut taken = TakenOver::default();
    for (job, JobEntry { epoch, token, flags, .. }) in entries {
        taken.last_epochs.push(LastEpoch { job, epoch });
        if flags & job_flag::ACTIVE == 0 {
            continue;
        }
        if known.iter().any(|known| known.is(job, epoch, token)) {
            taken.jobs.push(job);
            continue;
        }
        tracing::warn!(job, epoch, "removing a job that the control plane does not know");
        remove(job)?;
    }
    Ok(taken)
}

pub fn failed(doing: &'static str, error: &dyn std::error::Error) -> PlaneError {
    PlaneError::Failed { doing, what: error.to_string() }
}

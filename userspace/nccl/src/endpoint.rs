//! The parts of every communicator: its job, its staging memory, its counters and its first error.

use sumac_client::{Job, Operation};

use crate::closing::OpenJob;
use crate::counters::Counters;
use crate::error::PluginError;
use crate::log;
use crate::opening::OpenedJob;
use crate::staging::{Slot, Staging};

/// One side of a communicator.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// For the log.
    label: String,
    job: OpenJob,
    staging: Staging,
    pub(crate) counters: Counters,
    failure: Option<PluginError>,
}

impl Endpoint {
    pub(crate) fn new(label: String, opened: OpenedJob) -> Result<Endpoint, PluginError> {
        let OpenedJob { job, staging } = opened;
        let reply = job.job()?.opened();
        log::info(&format!(
            "{label}: job {} of {} ranks, mode {:?}, {} slots, backend {}, plane {}",
            reply.job, reply.world, reply.mode, reply.slots, reply.backend, reply.plane
        ));
        Ok(Endpoint { label, job, staging, counters: Counters::default(), failure: None })
    }

    /// The job, unless the communicator has failed.
    pub(crate) fn job(&self) -> Result<&Job, PluginError> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => self.job.job(),
        }
    }

    /// A slot of the staging memory for a request; `None`, and counted, if all are in use, or the request's
    /// operations are too many beside those in flight.
    pub(crate) fn slot(
        &mut self,
        bytes: usize,
        operations: usize,
        in_flight: usize,
    ) -> Result<Option<Slot>, PluginError> {
        self.job()?;
        let has_room = in_flight == 0 || in_flight + operations <= self.job.operations();
        let slot = match has_room.then(|| self.staging.take(bytes)).transpose() {
            Ok(slot) => slot.flatten(),
            Err(error) => return Err(self.fail(error)),
        };
        if slot.is_none() {
            self.counters.deferred += 1;
        }
        Ok(slot)
    }

    /// Records the first error, which all later calls return.
    pub(crate) fn fail(&mut self, error: impl Into<PluginError>) -> PluginError {
        let error = error.into().context(&self.label);
        self.failure.get_or_insert_with(|| error.logged()).clone()
    }

    /// Closes the job and logs the counters.
    pub(crate) fn close(&mut self, outstanding: Vec<Operation>) {
        self.job.close(outstanding);
        log::info(&format!("{}: closed: {}", self.label, self.counters));
    }
}

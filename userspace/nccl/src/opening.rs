//! Jobs that wait for their other ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sumac_client::{Job, JobOptions, Opening};

use crate::closing::OpenJob;
use crate::daemon::{SharedClient, begin_open};
use crate::error::PluginError;
use crate::log;
use crate::staging::Staging;

/// The times between two looks at a job that waits: the first, and the longest.
const POLL: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(5));

/// A job that all ranks have joined, with memory for its tensors.
#[derive(Debug)]
pub(crate) struct OpenedJob {
    pub(crate) job: OpenJob,
    pub(crate) staging: Staging,
}

/// Opens a job, and waits for its ranks.
pub(crate) fn open(options: JobOptions) -> Result<OpenedJob, PluginError> {
    open_first(&[options], &AtomicBool::new(false))
}

/// Opens the jobs, and returns the first that all ranks have joined; the others are withdrawn.
pub(crate) fn open_first(
    candidates: &[JobOptions],
    is_given_up: &AtomicBool,
) -> Result<OpenedJob, PluginError> {
    let mut waiting = Vec::new();
    let mut failure: Option<PluginError> = None;
    for options in candidates {
        match begin_open(options) {
            Ok(begun) => waiting.push(begun),
            Err(error) => note(&mut failure, error.into()),
        }
    }
    let mut pause = POLL.0;
    loop {
        if let Some((shared, job)) = joined(&mut waiting, &mut failure) {
            // The others are withdrawn.
            drop(waiting);
            let staging = Staging::new(shared.client.clone());
            let job = OpenJob::new(job, shared);
            return Ok(OpenedJob { job, staging: staging? });
        }
        if waiting.is_empty() {
            return Err(failure.unwrap_or_else(|| PluginError::internal("there is no job to open")));
        }
        if is_given_up.load(Ordering::Relaxed) {
            return Err(PluginError::internal("the connection was given up"));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(POLL.1);
    }
}

/// Returns the first job that all ranks have joined. Removes those that have failed.
fn joined(
    waiting: &mut Vec<(Arc<SharedClient>, Opening)>,
    failure: &mut Option<PluginError>,
) -> Option<(Arc<SharedClient>, Job)> {
    let mut found = None;
    waiting.retain_mut(|(shared, opening)| match opening.wait_timeout(Duration::ZERO) {
        Ok(Some(job)) if found.is_none() => {
            found = Some((shared.clone(), job));
            false
        }
        Ok(Some(job)) => {
            OpenJob::new(job, shared.clone()).close(Vec::new());
            false
        }
        Ok(None) => true,
        Err(error) => {
            note(failure, error.into());
            false
        }
    });
    found
}

/// Keeps the first error, which is returned if no candidate is left.
fn note(failure: &mut Option<PluginError>, error: PluginError) {
    log::info(&format!("a job was not opened: {}", error.message));
    failure.get_or_insert(error);
}

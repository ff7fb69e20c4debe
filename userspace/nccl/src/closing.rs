//! An open job, and its end: closed on a thread, for which callers wait for a bounded time.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use sumac_client::{Job, Operation};

use crate::daemon::SharedClient;
use crate::error::PluginError;
use crate::log;

/// The time that a call waits until the job is closed. The thread goes on after it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A job, with its connection; closed when it is dropped.
#[derive(Debug)]
pub(crate) struct OpenJob {
    job: Option<Job>,
    shared: Arc<SharedClient>,
}

impl OpenJob {
    pub(crate) fn new(job: Job, shared: Arc<SharedClient>) -> OpenJob {
        OpenJob { job: Some(job), shared }
    }

    pub(crate) fn job(&self) -> Result<&Job, PluginError> {
        self.job.as_ref().ok_or_else(|| PluginError::usage("the communicator was closed"))
    }

    /// The operations that the job may have outstanding.
    pub(crate) fn operations(&self) -> usize {
        self.shared.operations_per_job()
    }

    /// Closes the job. With operations outstanding it is cancelled, and ends on all ranks.
    pub(crate) fn close(&mut self, outstanding: Vec<Operation>) {
        let Some(job) = self.job.take() else { return };
        let (sender, closed) = mpsc::channel();
        let shared = self.shared.clone();
        let close = move || {
            end(job, outstanding);
            // The connection's last reference may be this one.
            drop(shared);
            let _ = sender.send(());
        };
        if let Err(error) = thread::Builder::new().name("sumac-nccl-close".into()).spawn(close) {
            // The job ends with the connection.
            log::warn(&format!("cannot start a thread to close a job: {error}"));
            return;
        }
        if closed.recv_timeout(CLOSE_TIMEOUT).is_err() {
            log::info("the daemon has not confirmed the end of a job in 5 s; the plugin does not wait");
        }
    }
}

impl Drop for OpenJob {
    fn drop(&mut self) {
        self.close(Vec::new());
    }
}

fn end(job: Job, mut outstanding: Vec<Operation>) {
    outstanding.retain_mut(|operation| matches!(operation.wait(Some(Duration::ZERO)), Ok(false)));
    if let Some(operation) = outstanding.first() {
        // One ends all. An error is that of a connection or a job that has ended.
        let _ = operation.cancel();
    }
    drop(outstanding);
    let failure = job.failure();
    if let Err(error) = job.close()
        && failure.is_none()
    {
        log::info(&format!("closing a job: {error}"));
    }
}

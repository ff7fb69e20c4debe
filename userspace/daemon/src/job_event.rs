//! The events that a job's task handles, and its handle at the session that opened it.

use sumac_api::Failure;
use sumac_job::OperationId;
use sumac_transport::{JobError, PathMeasure};
use tokio::sync::mpsc::UnboundedSender;

use crate::operations::{Announced, UnattributedFault};

/// An event of a job, from its clients, its operations or the data path.
#[derive(Debug)]
pub(crate) enum JobEvent {
    /// The path to the aggregator has been measured.
    Measured(PathMeasure),
    /// The handshake with the aggregator is complete.
    Ready,
    /// The data path has ended the job.
    Failed(JobError),
    /// The client that opened the job closes it.
    Close { request: u64 },
    /// A client has cancelled an operation.
    Cancel { by: String },
    /// The client that opened the job has disconnected, or one with outstanding operations.
    Abandon { reason: String },
    /// An operation waits until all workers have announced its name.
    Announce(Announced),
    /// A value of this worker could not be sent; the other workers need its index.
    Fault { id: OperationId, failure: Failure },
    /// A value of another worker could not be sent.
    Unattributed(UnattributedFault),
}

/// The handle of a job at the session that opened it. The job ends with it.
#[derive(Debug)]
pub(crate) struct JobHandle {
    events: UnboundedSender<JobEvent>,
}

impl JobHandle {
    pub(crate) fn new(events: UnboundedSender<JobEvent>) -> JobHandle {
        JobHandle { events }
    }

    /// Closes the job; [`crate::session::Notification::Closed`] follows.
    pub(crate) fn close(&self, request: u64) {
        self.send(JobEvent::Close { request });
    }

    /// Ends the job on all workers, because the client that opened it has disconnected.
    pub(crate) fn abandon(&self, reason: String) {
        self.send(JobEvent::Abandon { reason });
    }

    fn send(&self, event: JobEvent) {
        // Fails when the job has ended, of which the session is notified.
        let _ = self.events.send(event);
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        // A job does not outlive its session, whatever ends it. A job that has ended ignores this.
        self.abandon("its trainer's session ended".into());
    }
}

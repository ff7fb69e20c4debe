//! The events of a job's task besides those of its control plane.

use sumac_control::SuspendedMember;
use sumac_job::PathMeasure;
use tokio::sync::oneshot;

#[derive(Debug)]
pub(crate) enum TaskEvent {
    /// The data path has measured the path.
    Measured(PathMeasure),
    /// The handshake is done in all lanes.
    Ready,
    Freeze(Freeze),
}

/// A request to a job's task to stand still.
#[derive(Debug)]
pub(crate) struct Freeze {
    /// `None` while the job waits for its workers. An error names what has to end first.
    pub(crate) frozen: oneshot::Sender<Result<Option<SuspendedMember>, String>>,
    /// Dropped, the task goes on.
    pub(crate) release: oneshot::Receiver<HandedOver>,
}

/// The job goes on in another daemon.
#[derive(Debug)]
pub(crate) struct HandedOver;

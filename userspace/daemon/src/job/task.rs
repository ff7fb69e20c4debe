//! The task of a job, and what it uses.

use std::sync::Arc;

use sumac_api::Failure;
use sumac_host::JobId;
use tokio::sync::Notify;

use crate::backend::Backend;
use crate::core::Core;
use crate::opens::Opens;
use crate::plan::Plan;
use crate::spans::Spans;

/// The parts of the daemon that a job's task uses.
#[derive(Clone, Debug)]
pub(crate) struct JobContext {
    pub(crate) core: Arc<Core>,
    pub(crate) backend: Arc<Backend>,
    pub(crate) spans: Arc<Spans>,
    pub(crate) opens: Arc<Opens>,
}

#[derive(Debug)]
pub(crate) struct JobTask {
    pub(super) context: JobContext,
    pub(super) id: JobId,
    pub(super) plan: Plan,
    pub(super) wake: Arc<Notify>,
}

/// Runs a call that waits for the kernel or the data path outside the asynchronous threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::new(sumac_api::Code::Internal, format!("internal error: {error}")))
}

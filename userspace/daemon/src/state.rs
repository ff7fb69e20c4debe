//! The parts of a running daemon that its threads and tasks share.

use std::sync::Arc;

use crate::backend::Backend;
use crate::config::Config;
use crate::core::Core;
use crate::opens::Opens;
use crate::parameter::ParameterJobs;
use crate::service::Service;
use crate::spans::Spans;

#[derive(Debug)]
pub(crate) struct DaemonState {
    pub(crate) config: Arc<Config>,
    pub(crate) backend: Arc<Backend>,
    pub(crate) core: Arc<Core>,
    /// The jobs that this host is a parameter host of.
    pub(crate) parameter_jobs: ParameterJobs,
    pub(crate) opens: Arc<Opens>,
    pub(crate) spans: Arc<Spans>,
    pub(crate) service: Service,
    pub(crate) runtime: tokio::runtime::Handle,
}

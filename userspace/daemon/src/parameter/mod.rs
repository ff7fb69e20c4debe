//! The parameter host of dynamic jobs (ATP section 3.6) in this daemon.
//!
//! ```text
//!   control plane --- agent --> plane ---> backend ---> data path: a parameter host on each thread
//!                                 |
//!                               parameter_jobs: the jobs, and whether they still see packets
//! ```
//!
//! It needs no trainer, and shares ports and threads with this host's workers.

mod jobs;
mod plane;

use std::sync::Arc;

use sumac_control::rack::ParameterHostAgent;
use sumac_control::{Endpoint, SecretError};
use tokio::task::JoinHandle;

use self::plane::ParameterHostDataPlane;
use crate::config::{Config, EndpointError};
use crate::state::DaemonState;

pub(crate) use self::jobs::ParameterJobs;

#[derive(Debug, thiserror::Error)]
pub enum ParameterHostError {
    #[error("parameter_host: {0}")]
    Secret(#[from] SecretError),
    #[error("parameter_host: {0}")]
    Endpoint(#[from] EndpointError),
    #[error("parameter_host needs a control plane and a secret; see `sumac daemon --check`")]
    Incomplete,
}

/// Returns the control plane that this daemon registers with and its name there; `None` when it is no parameter host.
pub(crate) fn registration(config: &Config) -> Result<Option<(Endpoint, String)>, ParameterHostError> {
    let Some(host) = &config.parameter_host else { return Ok(None) };
    let control = host.control.or(config.aggregator).ok_or(ParameterHostError::Incomplete)?;
    let credential = host.credential()?.ok_or(ParameterHostError::Incomplete)?;
    let control = config.endpoint(control, credential)?;
    Ok(Some((control, host.name.clone().unwrap_or_else(host_name))))
}

/// A running parameter host. When dropped, it removes its jobs.
#[derive(Debug)]
pub(crate) struct ParameterHostTask {
    daemon: Arc<DaemonState>,
    agent: JoinHandle<()>,
}

impl ParameterHostTask {
    /// Registers with the control plane, and retries until dropped.
    pub(crate) fn begin(
        daemon: Arc<DaemonState>,
        runtime: &tokio::runtime::Handle,
        (control, name): (Endpoint, String),
    ) -> ParameterHostTask {
        tracing::info!(control = %control.address, name, "a parameter host of dynamic jobs");
        let plane = ParameterHostDataPlane::new(daemon.clone(), control.address);
        let agent = ParameterHostAgent::new(plane, control, name);
        ParameterHostTask { daemon, agent: runtime.spawn(agent.run()) }
    }
}

impl Drop for ParameterHostTask {
    fn drop(&mut self) {
        // The control plane detects the missing reports, and fails the jobs with this host's name.
        self.agent.abort();
        for job in self.daemon.parameter_jobs.clear() {
            if let Err(failure) = self.daemon.backend.unhost_job(job) {
                tracing::warn!(%failure, job, "cannot remove a job of the parameter host");
            }
        }
    }
}

/// Returns this host's name, as `hostname` prints it.
fn host_name() -> String {
    let name = nix::sys::utsname::uname().map(|name| name.nodename().to_string_lossy().into_owned());
    name.ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "parameter-host".into())
}

//! The role of a parameter host (ATP section 3.6): dynamic jobs that a control plane has this daemon sum for.
//!
//! ```text
//!   control plane --- agent --> plane ---> carrier ---> data path: a parameter host on each thread
//!                                 |
//!                               guests: the jobs, and whether they still see packets
//! ```
//!
//! It needs no trainer, and shares ports and threads with those that there are.

mod guests;
mod plane;

use std::sync::Arc;

use sumac_control::{Endpoint, SecretError, rack::ParameterHostAgent};
use tokio::task::JoinHandle;

use self::plane::ParameterHostDataPlane;
use crate::config::{Config, EndpointError};
use crate::hub::Hub;

pub(crate) use self::guests::Guests;

/// Why the role cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    /// The secret's file.
    #[error("parameter_host: {0}")]
    Secret(#[from] SecretError),
    /// The check of the control plane's certificate.
    #[error("parameter_host: {0}")]
    Endpoint(#[from] EndpointError),
    /// The configuration was not checked.
    #[error("parameter_host needs a control plane and a secret; see `sumac daemon --check`")]
    Incomplete,
}

/// What the role is told once.
#[derive(Debug)]
pub(crate) struct Terms {
    control: Endpoint,
    name: String,
}

impl Terms {
    /// What the configuration says; `None`: this daemon is no parameter host.
    pub(crate) fn new(config: &Config) -> Result<Option<Terms>, RoleError> {
        let Some(host) = &config.parameter_host else { return Ok(None) };
        let control = host.control.or(config.aggregator).ok_or(RoleError::Incomplete)?;
        let credential = host.credential()?.ok_or(RoleError::Incomplete)?;
        let control = config.endpoint(control, credential)?;
        let name = host.name.clone().unwrap_or_else(host_name);
        Ok(Some(Terms { control, name }))
    }
}

/// The role while it is played. Dropped, this host takes no more jobs, and sums no more.
#[derive(Debug)]
pub(crate) struct Role {
    hub: Arc<Hub>,
    agent: JoinHandle<()>,
}

impl Role {
    /// Begins to enter at the control plane, and tries for ever.
    pub(crate) fn begin(hub: Arc<Hub>, runtime: &tokio::runtime::Handle, terms: Terms) -> Role {
        let Terms { control, name } = terms;
        tracing::info!(control = %control.address, name, "a parameter host of dynamic jobs");
        let plane = ParameterHostDataPlane::new(hub.clone(), control.address);
        let agent = ParameterHostAgent::new(plane, control, name);
        Role { hub, agent: runtime.spawn(agent.run()) }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // The control plane misses its reports, and ends the jobs by this host's name.
        self.agent.abort();
        for job in self.hub.guests.clear() {
            if let Err(failure) = self.hub.carrier.unhost_job(job) {
                tracing::warn!(%failure, job, "cannot let go of a job that was summed here");
            }
        }
    }
}

/// This host's name, as `hostname` prints it.
fn host_name() -> String {
    let name = nix::sys::utsname::uname().map(|name| name.nodename().to_string_lossy().into_owned());
    name.ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "parameter-host".into())
}

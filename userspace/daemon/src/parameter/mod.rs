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

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sumac_control::plane::{Installed, JobInstall, KnownJob, PlaneError, PlaneInfo, TakenOver};
use sumac_control::rack::offer_parameter_host;
use sumac_control::{DataPlane, Endpoint, PlaneKind, ResolveError, SecretError};
use sumac_wire::PAGE_ELEMENTS;
use tokio::task::JoinHandle;

use crate::backend::host_job;
use crate::config::{Config, EndpointError};
use crate::path;
use crate::state::DaemonState;

pub(crate) use self::jobs::ParameterJobs;

#[derive(Debug, thiserror::Error)]
pub enum ParameterHostError {
    #[error("parameter_host: {0}")]
    Secret(#[from] SecretError),
    #[error("parameter_host: {0}")]
    Endpoint(#[from] EndpointError),
    #[error("parameter_host: {0}")]
    Resolve(#[from] ResolveError),
    #[error("parameter_host needs a control plane and a secret; see `sumac daemon --check`")]
    Incomplete,
}

/// Returns the control plane that this daemon registers with and its name there; `None` when it is no
/// parameter host.
pub(crate) fn registration(config: &Config) -> Result<Option<(Endpoint, String)>, ParameterHostError> {
    let Some(host) = &config.parameter_host else { return Ok(None) };
    let control = host.control.as_ref().or(config.aggregator.as_ref());
    let control = control.ok_or(ParameterHostError::Incomplete)?.resolve_control()?;
    let credential = host.credential()?.ok_or(ParameterHostError::Incomplete)?;
    let control = config.endpoint(&control, credential)?;
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
        let own = daemon.clone();
        let agent = runtime.spawn(async move {
            let plane = || ParameterHostDataPlane::new(own.clone(), control.address);
            tokio::select! {
                () = own.backend.chosen_later() => {}
                () = offer_parameter_host(plane(), control.clone(), name.clone()) => {}
            }
            // With the address and the port of AF_XDP.
            offer_parameter_host(plane(), control, name).await;
        });
        ParameterHostTask { daemon, agent }
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

fn host_name() -> String {
    let name = nix::sys::utsname::uname().map(|name| name.nodename().to_string_lossy().into_owned());
    name.ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "parameter-host".into())
}

/// This parameter host as a data plane of the control plane.
#[derive(Debug)]
struct ParameterHostDataPlane {
    daemon: Arc<DaemonState>,
    control: SocketAddr,
    /// The instance of the sums; another process has another one.
    instance: u64,
}

impl ParameterHostDataPlane {
    fn new(daemon: Arc<DaemonState>, control: SocketAddr) -> ParameterHostDataPlane {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Unique for each start; 0 when there is no clock.
        let instance = u64::try_from(since.as_nanos()).unwrap_or(0) ^ u64::from(std::process::id());
        ParameterHostDataPlane { daemon, control, instance }
    }

    fn sweep(&self) {
        let counts = self.daemon.backend.hosted_packets();
        let packets = |job| counts.iter().find(|(number, _)| *number == job).map_or(0, |(_, count)| *count);
        for job in self.daemon.parameter_jobs.check(Instant::now(), packets) {
            tracing::info!(job, "an orphaned job is idle; removing it");
            if let Err(error) = self.remove(job) {
                tracing::warn!(%error, job, "cannot remove a job");
            }
        }
    }
}

impl DataPlane for ParameterHostDataPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        self.sweep();
        let local = self.daemon.backend.local();
        Ok(PlaneInfo {
            kind: PlaneKind::Parameter,
            // It has no slots, but 0 is invalid.
            slots: 1,
            max_elements: path::words_to(self.control)
                .min(self.daemon.backend.most_words())
                .min(PAGE_ELEMENTS as u16),
            base_port: local.port,
            shards: self.daemon.backend.datapath().shards,
            address: (!local.ip.is_unspecified()).then_some(local.ip),
            kept: self.daemon.parameter_jobs.orphans(),
            ..PlaneInfo::NONE
        })
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        // Removed jobs are not remembered.
        let taken = TakenOver { jobs: self.daemon.parameter_jobs.take_over(known), last_epochs: Vec::new() };
        self.sweep();
        Ok(taken)
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        let failed = |what| PlaneError::Failed { doing: "making this host a job's parameter host", what };
        let (number, epoch) = (job.terms.job, job.terms.epoch);
        if self.daemon.parameter_jobs.orphans().contains(&number) {
            let what = format!("job {number}, which the control plane does not know, is still summed here");
            return Err(failed(what));
        }
        self.remove(number)?;
        let host = host_job(job).map_err(|problem| failed(problem.into()))?;
        self.daemon.backend.host_job(&host).map_err(|failure| failed(failure.to_string()))?;
        self.daemon.parameter_jobs.add(host, Instant::now());
        tracing::info!(job = number, epoch, workers = job.workers.len(), "summing for a job");
        Ok(Installed::default())
    }

    fn renew(&self, job: &JobInstall) -> Result<Vec<u32>, PlaneError> {
        let doing = "going on as a parameter host with another worker";
        let failed = |what| PlaneError::Failed { doing, what };
        let mut host = host_job(job).map_err(|problem| failed(problem.into()))?;
        let number = host.job;
        let known = self.daemon.parameter_jobs.get(number);
        host.upstream = known.ok_or_else(|| failed(format!("job {number} is not summed here")))?.upstream;
        let firsts = self.daemon.backend.renew_host(&host).map_err(|failure| failed(failure.to_string()))?;
        self.daemon.parameter_jobs.renew(host);
        tracing::info!(job = number, epoch = job.terms.epoch, ?firsts, "a worker of a job was replaced");
        Ok(firsts)
    }

    fn resize(&self, job: u16, _slots: u32, _reason: &str) -> Result<(), PlaneError> {
        let what = format!("job {job} has no slots at a parameter host");
        Err(PlaneError::Failed { doing: "changing a job's slots", what })
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        self.daemon.parameter_jobs.remove(job);
        let doing = "letting go of a job that was summed here";
        let removed = self.daemon.backend.unhost_job(job);
        removed.map_err(|failure| PlaneError::Failed { doing, what: failure.to_string() })
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        Ok(self.instance)
    }
}

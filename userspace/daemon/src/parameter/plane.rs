//! This parameter host as a data plane of the control plane.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sumac_control::plane::{Installed, JobInstall, KnownJob, PlaneError, PlaneInfo, TakenOver};
use sumac_control::{DataPlane, PlaneKind};
use sumac_wire::PAGE_ELEMENTS;

use crate::backend::host_job;
use crate::path;
use crate::state::DaemonState;

#[derive(Debug)]
pub(super) struct ParameterHostDataPlane {
    daemon: Arc<DaemonState>,
    control: SocketAddr,
    /// The instance of the sums; another process has another one.
    instance: u64,
}

impl ParameterHostDataPlane {
    pub(super) fn new(daemon: Arc<DaemonState>, control: SocketAddr) -> ParameterHostDataPlane {
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

    /// Returns the 32-bit words of a packet on the path to the control plane, which the data is assumed to take.
    fn words(&self) -> u16 {
        let mtu = match self.control {
            SocketAddr::V4(control) => path::mtu(*control.ip()).ok(),
            SocketAddr::V6(_) => None,
        };
        let words = path::words(mtu.unwrap_or(path::DEFAULT_MTU));
        words.min(self.daemon.backend.most_words()).min(PAGE_ELEMENTS as u16)
    }
}

impl DataPlane for ParameterHostDataPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        self.sweep();
        let local = self.daemon.backend.local;
        Ok(PlaneInfo {
            kind: PlaneKind::Parameter,
            // It has no slots, but 0 is invalid.
            slots: 1,
            max_elements: self.words(),
            narrowest: None,
            base_port: local.port,
            shards: self.daemon.backend.datapath.shards(),
            dynamic_slots: 0,
            address: (!local.ip.is_unspecified()).then_some(local.ip),
            kept: self.daemon.parameter_jobs.orphans(),
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
        if self.daemon.parameter_jobs.has_orphan(number) {
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

//! What a control plane sees of this parameter host.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sumac_control::plane::{Installed, JobInstall, KnownJob, PlaneError, PlaneInfo, TakenOver};
use sumac_control::{DataPlane, PlaneKind};
use sumac_wire::PAGE_ELEMENTS;

use crate::carrier::host_job;
use crate::hub::Hub;
use crate::path;

/// See the module.
#[derive(Debug)]
pub(super) struct ParameterHostDataPlane {
    hub: Arc<Hub>,
    control: SocketAddr,
    /// Names the sums: those of another process are others.
    instance: u64,
}

impl ParameterHostDataPlane {
    pub(super) fn new(hub: Arc<Hub>, control: SocketAddr) -> ParameterHostDataPlane {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Nobody starts twice in a nanosecond; 0 is the number of a clock that has none.
        let instance = u64::try_from(since.as_nanos()).unwrap_or(0) ^ u64::from(std::process::id());
        ParameterHostDataPlane { hub, control, instance }
    }

    /// Lets go of jobs that nobody knows of any more, when nobody sends for them.
    fn sweep(&self) {
        let counts = self.hub.carrier.hosted_packets();
        let packets = |job| counts.iter().find(|(number, _)| *number == job).map_or(0, |(_, count)| *count);
        for job in self.hub.guests.look(Instant::now(), packets) {
            tracing::info!(job, "a job that its control plane has left is quiet; summing no more for it");
            if let Err(error) = self.remove(job) {
                tracing::warn!(%error, job, "cannot let go of a job");
            }
        }
    }

    /// Most 32-bit words of a packet on the way to the control plane; the data takes the same, as far as one knows.
    fn words(&self) -> u16 {
        let mtu = match self.control {
            SocketAddr::V4(control) => path::mtu(*control.ip()).ok(),
            SocketAddr::V6(_) => None,
        };
        let words = path::words(mtu.unwrap_or(path::USUAL_MTU));
        words.min(self.hub.carrier.most_words()).min(PAGE_ELEMENTS as u16)
    }
}

impl DataPlane for ParameterHostDataPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        self.sweep();
        let local = self.hub.carrier.local();
        Ok(PlaneInfo {
            kind: PlaneKind::Parameter,
            // It has none, and may not say so.
            slots: 1,
            max_elements: self.words(),
            narrowest: None,
            base_port: local.port,
            shards: self.hub.carrier.shards(),
            dynamic_slots: 0,
            address: (!local.ip.is_unspecified()).then_some(local.ip),
            kept: self.hub.guests.orphans(),
        })
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        // Nothing is remembered of a job that is gone.
        let taken = TakenOver { jobs: self.hub.guests.take_over(known), last_epochs: Vec::new() };
        self.sweep();
        Ok(taken)
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        let failed =
            |what: String| PlaneError::Failed { doing: "making this host a job's parameter host", what };
        if self.hub.guests.has_orphan(job.terms.job) {
            return Err(failed(format!(
                "job {}, which the control plane does not know, is still summed here",
                job.terms.job
            )));
        }
        self.remove(job.terms.job)?;
        let host = host_job(job).map_err(|problem| failed(problem.into()))?;
        self.hub.carrier.host_job(&host).map_err(|failure| failed(failure.to_string()))?;
        self.hub.guests.add(host, Instant::now());
        tracing::info!(
            job = job.terms.job,
            epoch = job.terms.epoch,
            workers = job.workers.len(),
            "summing for a job"
        );
        Ok(Installed::default())
    }

    fn renew(&self, job: &JobInstall) -> Result<Vec<u32>, PlaneError> {
        let failed = |what: String| PlaneError::Failed {
            doing: "going on as a parameter host with another worker",
            what,
        };
        let mut host = host_job(job).map_err(|problem| failed(problem.into()))?;
        let number = host.job;
        let known = self.hub.guests.get(number);
        host.upstream = known.ok_or_else(|| failed(format!("job {number} is not summed here")))?.upstream;
        let firsts = self.hub.carrier.renew_host(&host).map_err(|failure| failed(failure.to_string()))?;
        self.hub.guests.renew(host);
        tracing::info!(job = number, epoch = job.terms.epoch, ?firsts, "a worker of a job was replaced");
        Ok(firsts)
    }

    fn resize(&self, job: u16, _slots: u32, _reason: &str) -> Result<(), PlaneError> {
        let what = format!("job {job} has no slots at a parameter host");
        Err(PlaneError::Failed { doing: "changing a job's slots", what })
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        self.hub.guests.remove(job);
        self.hub.carrier.unhost_job(job).map_err(|failure| PlaneError::Failed {
            doing: "letting go of a job that was summed here",
            what: failure.to_string(),
        })
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        Ok(self.instance)
    }
}

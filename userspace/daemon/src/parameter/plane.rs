//! What a control plane sees of this parameter host.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sumac_control::plane::{Installed, JobInstall, LastEpoch, PlaneError, PlaneInfo};
use sumac_control::{DataPlane, PlaneKind};
use sumac_wire::PAGE_ELEMENTS;

use crate::carrier::host_job;
use crate::hub::Hub;
use crate::path;

/// See the module.
#[derive(Debug)]
pub(super) struct HostPlane {
    hub: Arc<Hub>,
    control: SocketAddr,
    /// Names the sums: those of another process are others.
    instance: u64,
}

impl HostPlane {
    pub(super) fn new(hub: Arc<Hub>, control: SocketAddr) -> HostPlane {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Nobody starts twice in a nanosecond; 0 is the number of a clock that has none.
        let instance = u64::try_from(since.as_nanos()).unwrap_or(0) ^ u64::from(std::process::id());
        HostPlane { hub, control, instance }
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

impl DataPlane for HostPlane {
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

    fn take_over(&self) -> Result<Vec<LastEpoch>, PlaneError> {
        self.hub.guests.orphan();
        self.sweep();
        // Nothing is remembered of a job that is gone.
        Ok(Vec::new())
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        let failed =
            |what: String| PlaneError::Failed { doing: "making this host a job's parameter host", what };
        if self.hub.guests.has_orphan(job.job) {
            return Err(failed(format!("an earlier control plane's job {} is still summed here", job.job)));
        }
        self.remove(job.job)?;
        let host = host_job(job).map_err(|problem| failed(problem.into()))?;
        self.hub.carrier.host_job(&host).map_err(|failure| failed(failure.to_string()))?;
        self.hub.guests.add(host, Instant::now());
        tracing::info!(job = job.job, epoch = job.epoch, workers = job.workers.len(), "summing for a job");
        Ok(Installed { aggregator_ips: Vec::new(), result_group: None, host_sides: Vec::new() })
    }

    fn renew(&self, job: &JobInstall) -> Result<Vec<u32>, PlaneError> {
        let failed = |what: String| PlaneError::Failed {
            doing: "going on as a parameter host with another worker",
            what,
        };
        let mut host = host_job(job).map_err(|problem| failed(problem.into()))?;
        let known = self.hub.guests.get(job.job);
        host.upstream = known.ok_or_else(|| failed(format!("job {} is not summed here", job.job)))?.upstream;
        let firsts = self.hub.carrier.renew_host(&host).map_err(|failure| failed(failure.to_string()))?;
        self.hub.guests.renew(host);
        tracing::info!(job = job.job, epoch = job.epoch, ?firsts, "a worker of a job was replaced");
        Ok(firsts)
    }

    fn resume(&self, job: &JobInstall) -> Result<(), PlaneError> {
        let failed = |what: String| PlaneError::Failed {
            doing: "going on as a parameter host for another control plane",
            what,
        };
        let host = host_job(job).map_err(|problem| failed(problem.into()))?;
        if !self.hub.guests.take_up(&host) {
            return Err(failed(format!("job {} of epoch {} is not what is summed here", job.job, job.epoch)));
        }
        tracing::info!(job = job.job, epoch = job.epoch, "a control plane has taken a job up again");
        Ok(())
    }

    fn resize(&self, job: u16, _lane_slots: u32, _reason: &str) -> Result<(), PlaneError> {
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

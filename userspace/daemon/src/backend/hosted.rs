//! The jobs that this host is a parameter host of.

use sumac_api::{Code, Failure};
use sumac_datapath::{ParameterJob, Peer};
use sumac_netutil::neighbour::ResolveError;
use sumac_parameter::HostJob;

use super::admission::Role;
use super::{Backend, datapath, terms};

impl Backend {
    /// Installs a job that this host is a parameter host of. It may wait for ARP.
    pub(crate) fn host_job(&self, job: &HostJob) -> Result<(), Failure> {
        self.users.host(job.job)?;
        let peers = self.admit_hosted(job).inspect_err(|_| self.users.unhost(job.job))?;
        let hosted = self.datapath().add_parameter_job(ParameterJob { job: job.clone(), peers });
        if hosted.is_err() {
            // The first error is returned.
            let _ = self.unhost_job(job.job);
        }
        hosted.map_err(datapath)
    }

    fn admit_hosted(&self, job: &HostJob) -> Result<Vec<Peer>, Failure> {
        self.set_routes()?;
        let upstream = job.upstream.iter().map(|to| self.peer(*to, job.checksum));
        let upstream = upstream.collect::<Result<_, _>>();
        let unreachable = |error: ResolveError| Failure::new(Code::Unreachable, error.to_string());
        let peers = self.hosted_peers(job, upstream.map_err(unreachable)?)?;
        if let Some(mut admitted) = self.admitted() {
            admitted.program.check_current().map_err(datapath)?;
            admitted
                .admit(job.job, Role::ParameterHost(job.job), terms::host_entry(job, self.local().ip))
                .map_err(datapath)?;
        }
        Ok(peers)
    }

    /// As [`sumac_datapath::Datapath::renew_parameter_job`]. It may wait for ARP.
    pub(crate) fn renew_host(&self, job: &HostJob) -> Result<Vec<u32>, Failure> {
        // The aggregators' addresses do not change; the job continues without one that has died.
        let upstream = job.upstream.iter().filter_map(|to| self.peer(*to, job.checksum).ok());
        let peers = self.hosted_peers(job, upstream.collect())?;
        let workers = job.workers.clone();
        let firsts =
            self.datapath().renew_parameter_job(job.job, job.epoch, workers, peers).map_err(datapath)?;
        if let Some(mut admitted) = self.admitted() {
            admitted
                .admit(job.job, Role::ParameterHost(job.job), terms::host_entry(job, self.local().ip))
                .map_err(datapath)?;
        }
        Ok(firsts)
    }

    /// Returns the paths to a hosted job's aggregators, which are given, and to its workers.
    fn hosted_peers(&self, job: &HostJob, mut peers: Vec<Peer>) -> Result<Vec<Peer>, Failure> {
        let workers = job.workers.iter().map(|worker| worker.address);
        peers.extend(self.paths(job.job, "worker", workers, job.checksum, peers.first())?);
        Ok(peers)
    }

    pub(crate) fn unhost_job(&self, job: u16) -> Result<(), Failure> {
        self.users.unhost(job);
        self.datapath().remove_parameter_job(job);
        self.dismiss(Role::ParameterHost(job))
    }
}

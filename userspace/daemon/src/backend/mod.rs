//! The backend of this host's packets, XDP or UDP, and the installation of jobs in it.

mod admission;
mod kind;
mod report;
mod terms;

use std::net::{Ipv4Addr, SocketAddrV4};

use serde_json::{Map, Value};
use sumac_api::{Code, Failure};
use sumac_control::neighbour::ResolveError;
use sumac_control::{Grant, PlaneKind};
use sumac_job::OperationId;
use sumac_parameter::HostJob;
use sumac_transport::{JobError, Operation};
use sumac_wire::MAX_ELEMENTS;
use sumac_wire::header::{ELEMENT_LEN, HEADER_LEN};

use self::admission::{AdmittedJobs, Role};
use self::kind::{BackendKind, udp, xdp};
use crate::config::{BackendChoice, Config};
use crate::datapath::{Datapath, DatapathStats, EventSink, ParameterJob, Peer, WorkerJob};

pub use self::kind::BackendError;
pub(crate) use self::report::{Measured, MeasuredJob};
pub(crate) use self::terms::host_job;

/// This host's address in the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) ip: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) mac: [u8; 6],
}

/// The chosen backend with its data path.
pub(crate) struct Backend {
    kind: BackendKind,
    datapath: Datapath,
    fallback: String,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Backend {
    /// Sets up the configured backend; `auto` falls back to UDP with a warning.
    pub(crate) fn start(config: &Config, sink: EventSink) -> Result<Backend, BackendError> {
        let (kind, ios, fallback) = match config.backend {
            BackendChoice::Udp => udp(config).map(|(kind, ios)| (kind, ios, String::new()))?,
            BackendChoice::Xdp => xdp(config).map(|(kind, ios)| (kind, ios, String::new()))?,
            BackendChoice::Auto => match xdp(config) {
                Ok((kind, ios)) => (kind, ios, String::new()),
                Err(error) => {
                    tracing::warn!(%error, "falling back to UDP; `sumac doctor` says what is missing");
                    udp(config).map(|(kind, ios)| (kind, ios, error.to_string()))?
                }
            },
        };
        let datapath =
            Datapath::start("sumac-datapath", ios, &config.cpus, sink).map_err(BackendError::Thread)?;
        Ok(Backend { kind, datapath, fallback })
    }

    /// Returns `xdp` or `udp`.
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns the reason of a fallback; empty without one.
    pub(crate) fn fallback(&self) -> &str {
        &self.fallback
    }

    /// Returns this host's address in the data plane.
    pub(crate) fn local(&self) -> Local {
        self.kind.local()
    }

    /// Admits a job's results, and starts its handshake. It may wait for ARP.
    pub(crate) fn add_job(&self, grant: &Grant) -> Result<(), Failure> {
        let Grant { terms, placement } = grant;
        match &self.kind {
            BackendKind::Udp { .. } => {
                if let Some(group) = placement.result_group {
                    return Err(Failure::new(
                        Code::Unsupported,
                        format!(
                            "the aggregator sends results to the group {group}, which UDP sockets do not join"
                        ),
                    )
                    .hint("use the XDP backend, or attach the aggregator without a result group"));
                }
            }
            BackendKind::Xdp { admitted, .. } => {
                AdmittedJobs::lock(admitted).program.check_current().map_err(datapath)?;
            }
        }
        let aggregator = self.aggregator(grant)?;
        let plan = WorkerJob {
            lanes: (0..terms.lanes()).map(|lane| terms::params(grant, lane)).collect(),
            hosts: self.hosts(grant, aggregator.as_ref())?,
            peer: aggregator,
            resume: terms.resume.clone(),
        };
        if let BackendKind::Xdp { admitted, local, groups, .. } = &self.kind {
            if let Some(group) = placement.result_group {
                groups.join(terms.job, group, local.ip).map_err(|error| {
                    let message =
                        format!("cannot join {group}, which results are sent to, on {}: {error}", local.ip);
                    Failure::new(Code::Datapath, message)
                        .hint("give `address` in the daemon's configuration an address of the interface")
                })?;
            }
            let entry = terms::worker_entry(grant);
            AdmittedJobs::lock(admitted).admit(terms.job, Role::Worker, entry).map_err(datapath)?;
        }
        self.datapath.add_job(plan).map_err(datapath)
    }

    /// The path to a job's aggregator, where it has one. A dynamic job does without one that cannot be reached.
    fn aggregator(&self, Grant { terms, placement }: &Grant) -> Result<Option<Peer>, Failure> {
        if placement.aggregator == PlaneKind::None {
            return Ok(None);
        }
        match self.kind.peer(placement.aggregator_ip, placement.base_port, terms.checksum) {
            Ok(peer) => Ok(Some(peer)),
            Err(error) if terms.is_dynamic() => {
                tracing::warn!(job = terms.job, %error, "no path to the aggregator; sending straight to the parameter hosts");
                Ok(None)
            }
            Err(error) => Err(Failure::new(Code::Unreachable, format!("the data plane: {error}"))),
        }
    }

    /// The paths to a job's parameter hosts; none of a static job. One that does not answer is reached by way of the
    /// aggregator.
    fn hosts(&self, Grant { terms, .. }: &Grant, aggregator: Option<&Peer>) -> Result<Vec<Peer>, Failure> {
        let path = |host: &SocketAddrV4| match (
            self.kind.peer(*host.ip(), host.port(), terms.checksum),
            aggregator,
        ) {
            (Ok(peer), _) => Ok(peer),
            (Err(error), Some(aggregator)) => {
                tracing::warn!(job = terms.job, %error, "no path of its own to a parameter host; sending to it by the aggregator");
                Ok(Peer { ip: *host.ip(), base_port: host.port(), ..*aggregator })
            }
            (Err(error), None) => {
                Err(Failure::new(Code::Unreachable, format!("the parameter host: {error}")))
            }
        };
        terms.parameter_hosts.iter().map(path).collect()
    }

    /// Installs a job that this host is a parameter host of. It may wait for ARP.
    pub(crate) fn host_job(&self, job: &HostJob) -> Result<(), Failure> {
        let upstream = job.upstream.iter().map(|to| self.kind.peer(*to.ip(), to.port(), job.checksum));
        let upstream = upstream.collect::<Result<_, _>>().map_err(unreachable)?;
        let peers = self.peers(job, upstream)?;
        if let BackendKind::Xdp { admitted, .. } = &self.kind {
            let mut admitted = AdmittedJobs::lock(admitted);
            admitted.program.check_current().map_err(datapath)?;
            admitted.admit(job.job, Role::ParameterHost, terms::host_entry(job)).map_err(datapath)?;
        }
        let hosted = self.datapath.add_parameter_job(ParameterJob { job: job.clone(), peers });
        if hosted.is_err() {
            // The first error is returned.
            let _ = self.unhost_job(job.job);
        }
        hosted.map_err(datapath)
    }

    /// Goes on as one of a job's parameter hosts, under another incarnation, with another worker in one's place. Gives the first
    /// chunk of each lane that is not summed here. May wait for ARP.
    pub(crate) fn renew_host(&self, job: &HostJob) -> Result<Vec<u32>, Failure> {
        // They are where they were, and one that has died is done without.
        let upstream = job.upstream.iter().map(|to| self.kind.peer(*to.ip(), to.port(), job.checksum));
        let peers = self.peers(job, upstream.filter_map(Result::ok).collect())?;
        let workers = job.workers.clone();
        let firsts =
            self.datapath.renew_parameter_job(job.job, job.epoch, workers, peers).map_err(datapath)?;
        if let BackendKind::Xdp { admitted, .. } = &self.kind {
            let entry = terms::host_entry(job);
            AdmittedJobs::lock(admitted).admit(job.job, Role::ParameterHost, entry).map_err(datapath)?;
        }
        Ok(firsts)
    }

    /// The ways to a job's aggregators, which are known, and to its workers. One that does not answer is looked for behind an
    /// aggregator, which may know the way.
    fn peers(&self, job: &HostJob, upstream: Vec<Peer>) -> Result<Vec<Peer>, Failure> {
        let way = |to: &SocketAddrV4| self.kind.peer(*to.ip(), to.port(), job.checksum);
        let mut peers = upstream;
        let behind = peers.first().map(|peer| peer.mac);
        for worker in job.workers.iter().map(|worker| worker.address) {
            peers.push(match (way(&worker), behind) {
                (Ok(peer), _) => peer,
                (Err(error), Some(mac)) => {
                    tracing::warn!(job = job.job, %error, "no way of its own to a worker; sending to it by its aggregator");
                    Peer { ip: *worker.ip(), base_port: worker.port(), mac, checksum: job.checksum }
                }
                (Err(error), None) => return Err(unreachable(error)),
            });
        }
        Ok(peers)
    }

    /// Removes a job that this host is a parameter host of, if it is installed.
    pub(crate) fn unhost_job(&self, job: u16) -> Result<(), Failure> {
        self.datapath.remove_parameter_job(job);
        match &self.kind {
            BackendKind::Udp { .. } => Ok(()),
            BackendKind::Xdp { admitted, .. } => {
                AdmittedJobs::lock(admitted).dismiss(job, Role::ParameterHost).map_err(datapath)
            }
        }
    }

    /// Continues a dynamic job in another epoch, after a worker was replaced.
    pub(crate) fn renew_job(&self, grant: &Grant) -> Result<(), Failure> {
        let terms = &grant.terms;
        if let BackendKind::Xdp { admitted, .. } = &self.kind {
            let entry = terms::worker_entry(grant);
            AdmittedJobs::lock(admitted).admit(terms.job, Role::Worker, entry).map_err(datapath)?;
        }
        self.datapath.renew_job(terms.job, terms.epoch, terms.resume.clone()).map_err(datapath)
    }

    /// Sets the number of slots in each lane of a measured job.
    pub(crate) fn start_job(&self, job: u16, slots: u32) -> Result<(), Failure> {
        self.datapath.start_job(job, slots).map_err(datapath)
    }

    /// Returns the 32-bit words of the longest packet.
    pub(crate) fn most_words(&self) -> u16 {
        let words = self.datapath.capacity().saturating_sub(HEADER_LEN) / ELEMENT_LEN;
        u16::try_from(words.min(MAX_ELEMENTS)).unwrap_or(u16::MAX)
    }

    /// Returns the number of shards that a job can have.
    pub(crate) fn shards(&self) -> u16 {
        self.datapath.shards()
    }

    /// Submits a fragment of an operation to its lane; its end is an event with the operation's id.
    pub(crate) fn submit(
        &self,
        job: u16,
        lane: u16,
        id: OperationId,
        operation: Operation,
    ) -> Result<(), Failure> {
        if self.datapath.submit(job, lane, id, operation) {
            return Ok(());
        }
        Err(Failure::new(Code::ShuttingDown, "the data path has stopped"))
    }

    /// Fails a job's operations.
    pub(crate) fn fail_job(&self, job: u16, error: JobError) {
        self.datapath.fail_job(job, &error);
    }

    /// Removes a job. All its events have been delivered when this returns.
    pub(crate) fn remove_job(&self, job: u16) -> Result<(), Failure> {
        self.datapath.remove_job(job);
        match &self.kind {
            BackendKind::Udp { .. } => Ok(()),
            BackendKind::Xdp { admitted, groups, .. } => {
                groups.leave(job);
                AdmittedJobs::lock(admitted).dismiss(job, Role::Worker).map_err(datapath)
            }
        }
    }

    /// Returns all counters.
    pub(crate) fn stats(&self) -> Result<Measured, Failure> {
        let stopped = || Failure::new(Code::ShuttingDown, "the data path has stopped");
        let stats = self.datapath.stats().ok_or_else(stopped)?;
        let host_program = self.host_program()?;
        report::measured(&stats, host_program)
            .map_err(|error| Failure::new(Code::Internal, format!("the counters have no JSON form: {error}")))
    }

    /// Returns the number of packets received for each job that this host is a parameter host of.
    pub(crate) fn hosted_packets(&self) -> Vec<(u16, u64)> {
        let threads = self.datapath.stats().unwrap_or_default();
        let jobs = DatapathStats::merge_hosted(&threads).jobs.into_iter();
        jobs.map(|job| (job.job, job.contributions + job.partial_sums + job.full_sums + job.probes)).collect()
    }

    /// Returns the number of results received of a job.
    pub(crate) fn results(&self, job: u16) -> Option<u64> {
        let stats = self.datapath.stats()?;
        let lanes = stats.iter().flat_map(|thread| &thread.jobs).filter(|lane| lane.job == job);
        lanes.map(|lane| lane.engine.results).reduce(|sum, more| sum + more)
    }

    /// Returns the host program's counters by reason; none over UDP.
    fn host_program(&self) -> Result<Map<String, Value>, Failure> {
        let BackendKind::Xdp { admitted, .. } = &self.kind else { return Ok(Map::new()) };
        let counters = AdmittedJobs::lock(admitted).program.counters().map_err(datapath)?;
        Ok(counters.into_iter().map(|(reason, count)| (reason.name().to_owned(), count.into())).collect())
    }

    /// Stops the data path's threads, and checks that every frame is accounted for.
    pub(crate) fn stop(&self) {
        for thread in self.datapath.shutdown().unwrap_or_default() {
            let (name, sent, received) = (thread.name.as_str(), thread.port.sent, thread.port.received);
            if thread.frames_are_conserved() {
                tracing::info!(backend = self.name(), name, sent, received, "data path stopped");
            } else {
                tracing::error!(name, frames = ?thread.port.frames, sent, received, "frames are missing; please report it");
            }
        }
    }
}

fn unreachable(error: ResolveError) -> Failure {
    Failure::new(Code::Unreachable, error.to_string())
}

fn datapath(error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Datapath, error.to_string())
}

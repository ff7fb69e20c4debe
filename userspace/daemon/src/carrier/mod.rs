//! How this host's packets move: the backend that was chosen, and what a job needs of it.

mod backend;
mod gate;
mod report;
mod terms;

use std::net::{Ipv4Addr, SocketAddrV4};

use serde_json::{Map, Value};
use sumac_api::{Code, Failure};
use sumac_control::neighbour::ResolveError;
use sumac_control::{Grant, PlaneKind};
use sumac_parameter::HostJob;
use sumac_transport::JobError;
use sumac_wire::MAX_ELEMENTS;
use sumac_wire::header::{ELEMENT_LEN, HEADER_LEN};

use self::backend::{Way, udp, xdp};
use self::gate::{Gate, Part};
use crate::config::{Backend, Config};
use crate::datapath::{Datapath, DatapathStats, EventSink, ParameterJob, Peer, WorkerJob};
use crate::stream::Errand;

pub use self::backend::CarrierError;
pub(crate) use self::report::{Measured, MeasuredJob};
pub(crate) use self::terms::host_job;

/// This host's end of all paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) ip: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) mac: [u8; 6],
}

/// The chosen backend with its data path.
pub(crate) struct Carrier {
    way: Way,
    datapath: Datapath,
    fallback: String,
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carrier").field("backend", &self.backend()).finish_non_exhaustive()
    }
}

impl Carrier {
    /// Sets up the configured backend; `auto` falls back to UDP, and says so.
    pub(crate) fn start(config: &Config, sink: EventSink) -> Result<Carrier, CarrierError> {
        let (way, ports, fallback) = match config.backend {
            Backend::Udp => udp(config).map(|(way, ports)| (way, ports, String::new()))?,
            Backend::Xdp => xdp(config).map(|(way, ports)| (way, ports, String::new()))?,
            Backend::Auto => match xdp(config) {
                Ok((way, ports)) => (way, ports, String::new()),
                Err(error) => {
                    tracing::warn!(%error, "falling back to UDP; `sumac doctor` says what is missing");
                    udp(config).map(|(way, ports)| (way, ports, error.to_string()))?
                }
            },
        };
        let datapath =
            Datapath::start("sumac-datapath", ports, &config.cpus, sink).map_err(CarrierError::Thread)?;
        Ok(Carrier { way, datapath, fallback })
    }

    /// `xdp` or `udp`.
    pub(crate) fn backend(&self) -> &'static str {
        self.way.name()
    }

    /// Why the backend is not the one that was asked for; empty when it is.
    pub(crate) fn fallback(&self) -> &str {
        &self.fallback
    }

    /// This host's end of all paths.
    pub(crate) fn local(&self) -> Local {
        self.way.local()
    }

    /// Lets a job's results in, and starts its handshake. May wait for ARP.
    pub(crate) fn add_job(&self, grant: &Grant) -> Result<(), Failure> {
        let Grant { terms, placement } = grant;
        match &self.way {
            Way::Udp { .. } => {
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
            Way::Xdp { gate, .. } => {
                Gate::lock(gate).program.check_current().map_err(datapath)?;
            }
        }
        let aggregator = self.aggregator(grant)?;
        let plan = WorkerJob {
            lanes: (0..terms.lanes()).map(|lane| terms::params(grant, lane)).collect(),
            hosts: self.hosts(grant, aggregator.as_ref())?,
            peer: aggregator,
            resume: terms.resume.clone(),
        };
        if let Way::Xdp { gate, local, groups, .. } = &self.way {
            if let Some(group) = placement.result_group {
                groups.join(terms.job, group, local.ip).map_err(|error| {
                    let message =
                        format!("cannot join {group}, which results are sent to, on {}: {error}", local.ip);
                    Failure::new(Code::Datapath, message)
                        .hint("give `address` in the daemon's configuration an address of the interface")
                })?;
            }
            let entry = terms::worker_entry(grant);
            Gate::lock(gate).admit(terms.job, Part::Worker, entry).map_err(datapath)?;
        }
        self.datapath.add_job(plan).map_err(datapath)
    }

    /// The path to a job's aggregator, where it has one. A dynamic job does without one that cannot be reached.
    fn aggregator(&self, Grant { terms, placement }: &Grant) -> Result<Option<Peer>, Failure> {
        if placement.aggregator == PlaneKind::None {
            return Ok(None);
        }
        match self.way.peer(placement.aggregator_ip, placement.base_port, terms.checksum) {
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
            self.way.peer(*host.ip(), host.port(), terms.checksum),
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

    /// Takes contributions of a dynamic job, as one of its parameter hosts. May wait for ARP.
    pub(crate) fn host_job(&self, job: &HostJob) -> Result<(), Failure> {
        let upstream = job.upstream.iter().map(|to| self.way.peer(*to.ip(), to.port(), job.checksum));
        let upstream = upstream.collect::<Result<_, _>>().map_err(unreachable)?;
        let peers = self.ways(job, upstream)?;
        if let Way::Xdp { gate, .. } = &self.way {
            let mut gate = Gate::lock(gate);
            gate.program.check_current().map_err(datapath)?;
            gate.admit(job.job, Part::ParameterHost, terms::host_entry(job)).map_err(datapath)?;
        }
        let hosted = self.datapath.add_parameter_job(ParameterJob { job: job.clone(), peers });
        if hosted.is_err() {
            // What went wrong is told, not that it cannot be undone.
            let _ = self.unhost_job(job.job);
        }
        hosted.map_err(datapath)
    }

    /// Goes on as one of a job's parameter hosts, under another incarnation, with another worker in one's place. Gives the first
    /// chunk of each lane that is not summed here. May wait for ARP.
    pub(crate) fn renew_host(&self, job: &HostJob) -> Result<Vec<u32>, Failure> {
        // They are where they were, and one that has died is done without.
        let upstream = job.upstream.iter().map(|to| self.way.peer(*to.ip(), to.port(), job.checksum));
        let peers = self.ways(job, upstream.filter_map(Result::ok).collect())?;
        let workers = job.workers.clone();
        let firsts =
            self.datapath.renew_parameter_job(job.job, job.epoch, workers, peers).map_err(datapath)?;
        if let Way::Xdp { gate, .. } = &self.way {
            let entry = terms::host_entry(job);
            Gate::lock(gate).admit(job.job, Part::ParameterHost, entry).map_err(datapath)?;
        }
        Ok(firsts)
    }

    /// The ways to a job's aggregators, which are known, and to its workers. One that does not answer is looked for behind an
    /// aggregator, which may know the way.
    fn ways(&self, job: &HostJob, upstream: Vec<Peer>) -> Result<Vec<Peer>, Failure> {
        let way = |to: &SocketAddrV4| self.way.peer(*to.ip(), to.port(), job.checksum);
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

    /// Takes no more contributions of a job. One that is not summed here is no error.
    pub(crate) fn unhost_job(&self, job: u16) -> Result<(), Failure> {
        self.datapath.remove_parameter_job(job);
        match &self.way {
            Way::Udp { .. } => Ok(()),
            Way::Xdp { gate, .. } => Gate::lock(gate).dismiss(job, Part::ParameterHost).map_err(datapath),
        }
    }

    /// Goes on in a dynamic job under another incarnation, after a worker of it was replaced.
    pub(crate) fn renew_job(&self, grant: &Grant) -> Result<(), Failure> {
        let terms = &grant.terms;
        if let Way::Xdp { gate, .. } = &self.way {
            let entry = terms::worker_entry(grant);
            Gate::lock(gate).admit(terms.job, Part::Worker, entry).map_err(datapath)?;
        }
        self.datapath.renew_job(terms.job, terms.epoch, terms.resume.clone()).map_err(datapath)
    }

    /// Starts the lanes of a job whose path has been measured, each with so many slots.
    pub(crate) fn start_job(&self, job: u16, slots: u32) -> Result<(), Failure> {
        self.datapath.start_job(job, slots).map_err(datapath)
    }

    /// The most 32-bit words that a packet can have.
    pub(crate) fn most_words(&self) -> u16 {
        let words = self.datapath.capacity().saturating_sub(HEADER_LEN) / ELEMENT_LEN;
        u16::try_from(words.min(MAX_ELEMENTS)).unwrap_or(u16::MAX)
    }

    /// The most shards that a job can have.
    pub(crate) fn shards(&self) -> u16 {
        self.datapath.shards()
    }

    /// Hands a part of an operation to its lane; its end comes as an event with its number.
    pub(crate) fn submit(&self, errand: Errand) -> Result<(), Failure> {
        let Errand { wire_job, lane, number, operation } = errand;
        if self.datapath.submit(wire_job, lane, u64::from(number), operation) {
            return Ok(());
        }
        Err(Failure::new(Code::ShuttingDown, "the data path has stopped"))
    }

    /// Ends a job's operations with this error.
    pub(crate) fn fail_job(&self, job: u16, error: JobError) {
        self.datapath.fail_job(job, &error);
    }

    /// Lets no more of a job's results in. All its events have been delivered when this returns.
    pub(crate) fn remove_job(&self, job: u16) -> Result<(), Failure> {
        self.datapath.remove_job(job);
        match &self.way {
            Way::Udp { .. } => Ok(()),
            Way::Xdp { gate, groups, .. } => {
                groups.leave(job);
                Gate::lock(gate).dismiss(job, Part::Worker).map_err(datapath)
            }
        }
    }

    /// All counters.
    pub(crate) fn stats(&self) -> Result<Measured, Failure> {
        let stopped = || Failure::new(Code::ShuttingDown, "the data path has stopped");
        let stats = self.datapath.stats().ok_or_else(stopped)?;
        let host_program = self.host_program()?;
        report::measured(&stats, host_program)
            .map_err(|error| Failure::new(Code::Internal, format!("the counters have no JSON form: {error}")))
    }

    /// How many packets have come for each job that is summed here.
    pub(crate) fn hosted_packets(&self) -> Vec<(u16, u64)> {
        let threads = self.datapath.stats().unwrap_or_default();
        let jobs = DatapathStats::merge_hosted(&threads).jobs.into_iter();
        jobs.map(|job| (job.job, job.contributions + job.partial_sums + job.full_sums + job.probes)).collect()
    }

    /// How many results of a job have arrived.
    pub(crate) fn results(&self, job: u16) -> Option<u64> {
        let stats = self.datapath.stats()?;
        let lanes = stats.iter().flat_map(|thread| &thread.jobs).filter(|lane| lane.job == job);
        lanes.map(|lane| lane.engine.results).reduce(|sum, more| sum + more)
    }

    /// The host program's counters by reason; none over UDP.
    fn host_program(&self) -> Result<Map<String, Value>, Failure> {
        let Way::Xdp { gate, .. } = &self.way else { return Ok(Map::new()) };
        let counters = Gate::lock(gate).program.counters().map_err(datapath)?;
        Ok(counters.into_iter().map(|(reason, count)| (reason.name().to_owned(), count.into())).collect())
    }

    /// Ends the data path's thread, and looks whether every frame came back.
    pub(crate) fn stop(&self) {
        for thread in self.datapath.shutdown().unwrap_or_default() {
            let (name, sent, received) = (thread.name.as_str(), thread.port.sent, thread.port.received);
            if thread.frames_are_conserved() {
                tracing::info!(backend = self.backend(), name, sent, received, "data path stopped");
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

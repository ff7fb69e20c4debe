//! The backend of this host's packets, XDP or UDP, and the installation of jobs in it.

mod admission;
mod arrival;
mod choice;
mod follow;
mod handover;
mod hosted;
mod local;
mod rechoice;
mod routes;
mod setup;
mod terms;
mod users;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use sumac_api::{Code, Failure};
use sumac_control::{Grant, PlaneKind};
use sumac_datapath::{
    Datapath, DatapathStats, EventSink, FrameIo, Peer, ResultGroup, ResumedLane, UdpFrameIo, WorkerJob,
};
use sumac_host::JobId;
use sumac_host::terms::lane_params;
use sumac_netutil::neighbour::{self, ResolveError};
use sumac_wire::MAX_ELEMENTS;
use sumac_wire::header::{ELEMENT_LEN, HEADER_LEN};
use tokio::sync::SetOnce;

use self::admission::{AdmittedJobs, Role};
pub(crate) use self::local::Local;
use self::routes::Outlet;
use self::setup::{FormerJobs, Setup, udp, udp_beside, udp_instead, xdp};
use self::users::Users;
pub(crate) use self::users::{Fallback, InUse};
use crate::config::{BackendChoice, Config};

pub(crate) use self::choice::FramePath;
pub(crate) use self::follow::Followed;
pub(crate) use self::handover::HandedBackend;
pub use self::setup::BackendError;
pub(crate) use self::setup::attach_program;
pub(crate) use self::terms::host_job;

pub(crate) struct Backend {
    local: Mutex<Local>,
    /// Empty over UDP.
    admitted: OnceLock<Mutex<AdmittedJobs>>,
    /// The data path of the start.
    first: Datapath,
    /// The data path of AF_XDP, where `auto` has chosen it later.
    later: SetOnce<Datapath>,
    fallback: Mutex<Option<Fallback>>,
    /// The address of the UDP sockets beside AF_XDP, where `auto` has opened them.
    udp_beside: OnceLock<Ipv4Addr>,
    /// The time when nothing arrived at them.
    udp_silent_at: Mutex<Option<Instant>>,
    users: Users,
    /// The addresses of the control plane whose route has the interface, where the configuration does not
    /// name it.
    control: Vec<SocketAddr>,
    config: Arc<Config>,
    sink: EventSink,
}

/// The time without another attempt at UDP after there was no answer: an attempt takes half a second.
const UDP_PAUSE: Duration = Duration::from_secs(600);

/// A backend whose sockets and maps are open, and whose threads are not started.
pub(crate) struct PreparedBackend {
    setup: Setup,
    /// Beside AF_XDP.
    udp: Vec<UdpFrameIo>,
    fallback: Option<Fallback>,
    control: Vec<SocketAddr>,
}

impl PreparedBackend {
    pub(crate) fn is_xdp(&self) -> bool {
        self.setup.1.is_some()
    }

    /// Returns whether the running daemon may still use XDP.
    pub(crate) fn may_be_xdp(&self) -> bool {
        self.is_xdp() || self.fallback.as_ref().is_some_and(|fallback| fallback.may_end)
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Backend {
    /// Sets up the configured backend, without threads. `auto` logs its choice; UDP is a warning, since it is
    /// slower.
    pub(crate) fn set_up(config: &Config, control: Vec<SocketAddr>) -> Result<PreparedBackend, BackendError> {
        let mut fallback = None;
        let setup = match config.backend {
            BackendChoice::Udp => udp(config)?,
            BackendChoice::Xdp => xdp(config, &control, FormerJobs::Removed)?,
            BackendChoice::Auto => match xdp(config, &control, FormerJobs::Removed) {
                Ok(setup) => {
                    let reports: Vec<_> = setup.2.iter().map(|io| io.report()).collect();
                    let reason = FramePath::of(reports.iter()).reason();
                    tracing::info!(reason, "backend auto: AF_XDP");
                    setup
                }
                Err(error) => {
                    tracing::warn!(%error,
                        "backend auto: falling back to UDP; `sumac doctor` says what is missing");
                    fallback = Some(Fallback::because(&error));
                    udp_instead(config)?
                }
            },
        };
        let udp = udp_beside(config, &setup);
        Ok(PreparedBackend { setup, udp, fallback, control })
    }

    pub(crate) fn start(
        PreparedBackend { setup: (local, mut admitted, ios), udp, fallback, control }: PreparedBackend,
        config: Arc<Config>,
        sink: EventSink,
    ) -> Result<Backend, BackendError> {
        if let Some(admitted) = &mut admitted {
            admitted.follow_log();
        }
        let udp_beside = udp.first().map(|udp| OnceLock::from(*udp.local().ip())).unwrap_or_default();
        let first = start_datapath(ios, udp, &config, &sink)?;
        let admitted = admitted.map(|admitted| OnceLock::from(Mutex::new(admitted))).unwrap_or_default();
        let (local, fallback, later) = (Mutex::new(local), Mutex::new(fallback), SetOnce::new());
        let users = Users::default();
        let udp_silent_at = Mutex::default();
        Ok(Backend {
            local,
            admitted,
            first,
            later,
            fallback,
            udp_beside,
            udp_silent_at,
            users,
            control,
            config,
            sink,
        })
    }

    pub(crate) fn datapath(&self) -> &Datapath {
        self.later.get().unwrap_or(&self.first)
    }

    /// Waits until a thread of the data path has panicked. Returns which, with its message.
    pub(crate) async fn died(&self) -> String {
        tokio::select! {
            why = self.first.died() => why,
            why = async { self.later.wait().await.died().await } => why,
        }
    }

    pub(crate) fn local(&self) -> Local {
        *self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the interface of the XDP backend, with its index.
    pub(crate) fn interface(&self) -> Option<(String, u32)> {
        let admitted = self.admitted()?;
        let interface = admitted.program.interface();
        Some((interface.name.clone(), interface.index))
    }

    /// Opens the interface of the XDP backend again, after it was made anew: attaches the program, and passes
    /// the threads their sockets. It may wait for ARP.
    pub(crate) fn reopen(&self) -> Result<(), BackendError> {
        if let Some(mut admitted) = self.admitted() {
            admitted.program.release();
        }
        let (local, admitted, ios) = xdp(&self.config, &self.control, FormerJobs::Removed)?;
        let (Some(mut before), Some(admitted)) = (self.admitted(), admitted) else { return Ok(()) };
        before.replace(admitted).map_err(|error| BackendError::Xdp(error.to_string()))?;
        drop(before);
        *self.local.lock().unwrap_or_else(PoisonError::into_inner) = local;
        if self.datapath().replace_io(ios) {
            return Ok(());
        }
        let changed = "the interface has another number of queues than before; restart the daemon";
        Err(BackendError::Xdp(changed.into()))
    }

    /// Returns `xdp` or `udp`.
    pub(crate) fn name(&self) -> &'static str {
        if self.admitted.get().is_some() { "xdp" } else { "udp" }
    }

    /// Whether jobs can use UDP sockets: they do, or can in place of AF_XDP.
    pub(crate) fn has_udp(&self) -> bool {
        let is_silent = || self.udp_silent().is_some_and(|at| at.elapsed() < UDP_PAUSE);
        let is_here = |ip: &Ipv4Addr| *ip == self.local().ip && !is_silent();
        self.admitted.get().is_none() || self.udp_beside.get().is_some_and(is_here)
    }

    fn udp_silent(&self) -> MutexGuard<'_, Option<Instant>> {
        self.udp_silent_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has jobs not measure UDP sockets for some time, at which no answer arrives.
    pub(crate) fn udp_is_silent(&self) {
        if self.admitted.get().is_some() {
            *self.udp_silent() = Some(Instant::now());
            tracing::warn!(
                "no answer to packets of full size over UDP, while AF_XDP has one: a packet filter of this \
                host? Jobs use AF_XDP, and try UDP again after {UDP_PAUSE:?}"
            );
        }
    }

    fn admitted(&self) -> Option<MutexGuard<'_, AdmittedJobs>> {
        // After a panic the next change of a job writes its entry again.
        self.admitted.get().map(|admitted| admitted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resolves the addresses of a peer. It may wait for ARP.
    fn peer(&self, to: SocketAddrV4, checksum: bool) -> Result<Peer, ResolveError> {
        let (ip, base_port) = (*to.ip(), to.port());
        let mac = match self.admitted.get() {
            // Packets to this host itself are not sent.
            Some(_) if ip != self.local().ip => neighbour::resolve(ip)?.mac,
            _ => self.local().mac,
        };
        Ok(Peer { ip, base_port, mac, checksum })
    }

    /// Resolves the explicit paths anew, for the next packets of all jobs. It may wait for ARP.
    fn set_routes(&self) -> Result<(), Failure> {
        let Some((name, index)) = self.interface().filter(|_| !self.config.routes.is_empty()) else {
            return Ok(());
        };
        let routes = routes::resolve(&self.config.routes, &Outlet { name, index }, neighbour::resolve)
            .map_err(|error| Failure::new(Code::Unreachable, error.to_string()))?;
        self.datapath().set_routes(&routes);
        Ok(())
    }

    /// Admits a job's results, and starts its handshake. It may wait for ARP.
    pub(crate) fn add_job(&self, id: JobId, grant: &Grant) -> Result<(), Failure> {
        let plan = self.admit(id, grant)?;
        self.datapath().add_job(plan).map_err(datapath)
    }

    /// Begins a job anew, which has sent no chunk, over the other backend. It may wait for ARP.
    pub(crate) fn add_job_again(&self, id: JobId, grant: &Grant) -> Result<(), Failure> {
        let plan = self.admit(id, grant)?;
        self.datapath().add_job_again(plan).map_err(datapath)
    }

    /// Continues a job of another daemon. It may wait for ARP.
    pub(crate) fn resume_job(
        &self,
        id: JobId,
        grant: &Grant,
        lanes: Vec<ResumedLane>,
    ) -> Result<(), Failure> {
        let plan = self.admit(id, grant)?;
        self.datapath().resume_job(plan, lanes).map_err(datapath)
    }

    /// Admits a job's results. Returns the job as the data path installs it.
    fn admit(&self, id: JobId, grant: &Grant) -> Result<WorkerJob, Failure> {
        self.set_routes()?;
        let Grant { terms, placement } = grant;
        // An upgraded daemon may lack the sockets of the one before.
        let over_udp = terms.over_udp && (self.admitted.get().is_none() || self.udp_beside.get().is_some());
        if let Some(admitted) = self.admitted() {
            admitted.program.check_current().map_err(datapath)?;
        }
        let aggregator = self.aggregator(grant)?;
        let hosts = terms.parameter_hosts.iter().copied();
        let line_rate = if terms.is_direct() { self.line_rate() } else { 0 };
        let paths = self.datapath().paths;
        let plan = WorkerJob {
            id,
            lanes: (0..terms.lanes()).map(|lane| lane_params(grant, lane, line_rate, paths)).collect(),
            hosts: self.paths(terms.job, "parameter host", hosts, terms.checksum, aggregator.as_ref())?,
            workers: self.paths(terms.job, "worker", terms.workers.iter().copied(), terms.checksum, None)?,
            peer: aggregator,
            resume: terms.resume.clone(),
            over_udp,
            group: placement.result_group.map(|address| ResultGroup {
                address,
                aggregator: SocketAddrV4::new(placement.aggregator_ip, placement.base_port),
            }),
        };
        if let Some(mut admitted) = self.admitted() {
            if let Some(group) = placement.result_group {
                let ip = self.local().ip;
                admitted.groups.join(id, group, ip).map_err(|error| {
                    let message = format!("cannot join {group}, which results are sent to, on {ip}: {error}");
                    Failure::new(Code::Datapath, message)
                        .hint("give `address` in the daemon's configuration an address of the interface")
                })?;
            }
            admitted
                .admit(terms.job, Role::Worker(id), terms::worker_entry(grant, self.local().ip, over_udp))
                .map_err(datapath)?;
        }
        Ok(plan)
    }

    /// The rate of the link that data goes through, in bits per second; one that is not known is taken for
    /// 100 Gbit/s.
    fn line_rate(&self) -> u64 {
        const UNKNOWN: u64 = 100_000;
        let ip = self.local().ip;
        let interface = self.interface().map(|(name, _)| name).or_else(|| crate::path::interface_of(ip));
        let speed =
            interface.and_then(|name| std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok());
        // Megabits per second; -1 where the driver does not know.
        let megabits = speed.and_then(|speed| speed.trim().parse::<i64>().ok()).filter(|speed| *speed > 0);
        megabits.map_or(UNKNOWN, i64::unsigned_abs) * 1_000_000
    }

    /// Returns the path to a job's aggregator, where it has one. A dynamic job does without one that cannot
    /// be reached.
    fn aggregator(&self, Grant { terms, placement }: &Grant) -> Result<Option<Peer>, Failure> {
        if placement.aggregator == PlaneKind::None {
            return Ok(None);
        }
        let address = SocketAddrV4::new(placement.aggregator_ip, placement.base_port);
        match self.peer(address, terms.checksum) {
            Ok(peer) => Ok(Some(peer)),
            Err(error) if terms.is_dynamic() => {
                log_limited!(warn, job = terms.job, %error,
                    "no path to the aggregator; sending straight to the parameter hosts");
                Ok(None)
            }
            Err(error) => Err(Failure::new(Code::Unreachable, format!("the data plane: {error}"))),
        }
    }

    /// Returns the paths to parameter hosts or workers. One that does not answer is reached by way of an
    /// aggregator.
    fn paths(
        &self,
        job: u16,
        role: &str,
        to: impl Iterator<Item = SocketAddrV4>,
        checksum: bool,
        aggregator: Option<&Peer>,
    ) -> Result<Vec<Peer>, Failure> {
        let path = |to: SocketAddrV4| match (self.peer(to, checksum), aggregator) {
            (Ok(peer), _) => Ok(peer),
            (Err(error), Some(aggregator)) => {
                log_limited!(warn, job, %error,
                    "no path of its own to a {role}; sending to it by the aggregator");
                Ok(Peer { ip: *to.ip(), base_port: to.port(), ..*aggregator })
            }
            (Err(error), None) => Err(Failure::new(Code::Unreachable, format!("the {role}: {error}"))),
        };
        to.map(path).collect()
    }

    pub(crate) fn renew_job(&self, id: JobId, grant: &Grant) -> Result<(), Failure> {
        let terms = &grant.terms;
        if let Some(mut admitted) = self.admitted() {
            admitted
                .admit(terms.job, Role::Worker(id), terms::worker_entry(grant, self.local().ip, false))
                .map_err(datapath)?;
        }
        self.datapath().renew_job(id, terms.epoch, terms.resume.clone()).map_err(datapath)
    }

    pub(crate) fn start_job(&self, job: JobId, slots: u32) -> Result<(), Failure> {
        self.datapath().start_job(job, slots).map_err(datapath)
    }

    /// Returns the 32-bit words of the longest packet.
    pub(crate) fn most_words(&self) -> u16 {
        let words = self.datapath().capacity().saturating_sub(HEADER_LEN) / ELEMENT_LEN;
        u16::try_from(words.min(MAX_ELEMENTS)).unwrap_or(u16::MAX)
    }

    /// Removes a job. All its events have been delivered when this returns.
    pub(crate) fn remove_job(&self, job: JobId) -> Result<(), Failure> {
        self.datapath().remove_job(job);
        if let Some(mut admitted) = self.admitted() {
            admitted.groups.leave(job);
        }
        self.dismiss(Role::Worker(job))
    }

    /// Closes the host program to a role of a job.
    fn dismiss(&self, role: Role) -> Result<(), Failure> {
        self.admitted().map_or(Ok(()), |mut admitted| admitted.dismiss(role)).map_err(datapath)
    }

    pub(crate) fn stats(&self) -> Result<Vec<DatapathStats>, Failure> {
        self.thread_stats().ok_or_else(|| Failure::new(Code::ShuttingDown, "the data path has stopped"))
    }

    /// `None`: the data path has stopped.
    fn thread_stats(&self) -> Option<Vec<DatapathStats>> {
        // The change from UDP to AF_XDP may stop the first data path between the look-up and the question.
        self.datapath().stats().or_else(|| self.datapath().stats())
    }

    pub(crate) fn hosted_packets(&self) -> Vec<(u16, u64)> {
        let threads = self.thread_stats().unwrap_or_default();
        let jobs = DatapathStats::merge_hosted(&threads).jobs.into_iter();
        jobs.map(|job| (job.job, job.contributions + job.partial_sums + job.full_sums + job.probes)).collect()
    }

    pub(crate) fn results(&self, job: JobId) -> Option<u64> {
        let lanes = self.datapath().lanes_of(job, |lane| lane.engine.results)?;
        lanes.into_iter().reduce(|sum, more| sum + more)
    }

    pub(crate) fn peer_left(&self, job: JobId, worker: u16) {
        self.datapath().peer_left(job, worker);
    }

    /// Returns the transfers of a job whose other end was not posted.
    pub(crate) fn unposted(&self, job: JobId) -> Option<Vec<sumac_host::OperationKey>> {
        Some(self.datapath().lanes_of(job, |lane| lane.unposted.clone())?.concat())
    }

    pub(crate) fn host_program(&self) -> Result<Map<String, Value>, Failure> {
        let Some(admitted) = self.admitted() else { return Ok(Map::new()) };
        let counters = admitted.program.counters().map_err(datapath)?;
        Ok(counters.into_iter().map(|(reason, count)| (reason.name().to_owned(), count.into())).collect())
    }

    /// Stops the data path's threads, and checks that every frame is accounted for.
    pub(crate) fn stop(&self) {
        stop(self.datapath(), self.name());
    }
}

/// Stops threads, and checks that every frame is accounted for.
fn stop(datapath: &Datapath, backend: &'static str) {
    for thread in datapath.shutdown().unwrap_or_default() {
        let (name, sent, received) =
            (thread.name.as_str(), thread.port.counts.sent, thread.port.counts.received);
        if thread.frames_are_conserved() {
            tracing::info!(backend, name, sent, received, "data path stopped");
        } else {
            tracing::error!(name, frames = ?thread.port.frames, sent, received,
                "frames are missing; please report it");
        }
    }
}

fn start_datapath(
    ios: Vec<Box<dyn FrameIo>>,
    udp: Vec<UdpFrameIo>,
    config: &Config,
    sink: &EventSink,
) -> Result<Datapath, BackendError> {
    Datapath::start("sumac-datapath", ios, udp, &config.cpus, sink.clone()).map_err(BackendError::Thread)
}

fn datapath(error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Datapath, error.to_string())
}

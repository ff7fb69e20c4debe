//! The daemon: its start from a configuration, and its shutdown.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use sumac_api::SandboxReply;
use sumac_control::Endpoint;
use sumac_host::quotas::QuotaLimits;
use sumac_host::{Host, HostConfig, HostState};
use sumac_hostprog::Attached;
use sumac_memory::HeldRegions;
use sumac_metrics::MetricsError;
use sumac_sandbox::{Sandbox, SandboxError};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch as state_watch};

use crate::access::{self, UnknownPrincipal};
use crate::arena::Arena;
use crate::backend::{Backend, BackendError, PreparedBackend, attach_program};
use crate::config::{BackendChoice, Config};
use crate::control_planes::{ControlPlaneError, ControlPlanes};
use crate::core::Core;
use crate::handover::{self, HandoverError, Listeners, Parts, Predecessor, Successor, Takeover, Versions};
use crate::job::{self, JobContext};
use crate::metrics::DaemonMetrics;
use crate::parameter::{self, ParameterHostError, ParameterHostTask, ParameterJobs};
use crate::plan::Planner;
use crate::sandbox;
use crate::server::{Permissions, ServeError, Server, Sessions, listen};
use crate::service::Service;
use crate::spans::{Collector, Spans, SpansError, SpansTask};
use crate::state::DaemonState;
use crate::stats::StatsSource;
use crate::sum_threads;
use crate::watch;

/// The time for jobs to leave their coordinators at shutdown.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The files that are left for what the daemon opens itself.
const RESERVED_FILES: u64 = 64;

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    #[error(transparent)]
    Principal(#[from] UnknownPrincipal),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    ParameterHost(#[from] ParameterHostError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Spans(#[from] SpansError),
    #[error(transparent)]
    Handover(#[from] HandoverError),
    #[error("cannot start the thread that hands over to a new daemon: {0}")]
    Predecessor(std::io::Error),
    #[error("cannot start the daemon's asynchronous part: {0}")]
    Runtime(std::io::Error),
    #[error("a thread of the data path has panicked ({0}); please report it, and start the daemon again")]
    Datapath(String),
}

#[derive(Debug)]
pub struct Daemon {
    state: Arc<DaemonState>,
    parts: Arc<Parts>,
    predecessor: Option<Predecessor>,
    spans: Option<SpansTask>,
    runtime: Option<Runtime>,
}

/// The parts of a configuration that refer to other files, to names and to users: all resolved and read.
struct Resolved {
    control_planes: ControlPlanes,
    permissions: Permissions,
    role: Option<(Endpoint, String)>,
}

impl Resolved {
    fn new(config: &Config) -> Result<Resolved, DaemonError> {
        let rules = access::resolve(&config.allow, rustix::process::geteuid().as_raw())?;
        Ok(Resolved {
            control_planes: ControlPlanes::resolve(config, rules)?,
            permissions: Permissions::of(config)?,
            role: parameter::registration(config)?,
        })
    }

    /// Returns the addresses of the control plane whose route the data plane takes unless the configuration
    /// states more.
    fn default_control(&self) -> Vec<SocketAddr> {
        let role = || self.role.as_ref().map(|(endpoint, _)| endpoint);
        let of_role = || role().into_iter().flat_map(|it| [&[it.address], &*it.others].concat()).collect();
        self.control_planes.default_addresses().map_or_else(of_role, <[_]>::to_vec)
    }
}

/// Checks what a start would read besides the configuration: host names, secrets, certificates, users and
/// groups.
pub fn check(config: &Config) -> Result<(), DaemonError> {
    Resolved::new(config).map(drop)
}

/// Attaches the host program to the interface of the configuration, in place of a former one; `None` over
/// UDP.
pub fn attach(config: &Config) -> Result<Option<Attached>, DaemonError> {
    if config.backend == BackendChoice::Udp {
        return Ok(None);
    }
    let control = Resolved::new(config)?.default_control();
    Ok(Some(attach_program(config, &control)?))
}

/// A daemon whose sockets and maps are open, without threads: privileges are a thread's, and those that start
/// later have no more than this one.
pub struct PreparedDaemon {
    config: Config,
    resolved: Resolved,
    backend: PreparedBackend,
    listeners: Listeners,
    metrics: Option<TcpListener>,
    collector: Option<Collector>,
    takeover: Option<Takeover>,
    versions: Versions,
    sandbox: Option<SandboxReply>,
}

impl PreparedDaemon {
    /// Drops the privileges that a running daemon does not need, in this thread.
    pub fn confine(mut self) -> Result<PreparedDaemon, DaemonError> {
        let Sandbox { capabilities, no_new_privs, seccomp } =
            sandbox::confine(self.backend.may_be_xdp(), self.config.seccomp)?;
        self.sandbox = Some(SandboxReply { capabilities, no_new_privs, seccomp });
        Ok(self)
    }

    pub fn start(self) -> Result<Daemon, DaemonError> {
        let PreparedDaemon {
            config,
            resolved,
            backend,
            listeners,
            metrics,
            collector,
            takeover,
            versions,
            sandbox,
        } = self;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("sumac-control")
            .enable_all()
            .build()
            .map_err(DaemonError::Runtime)?;
        let config = Arc::new(config);
        let control_planes = resolved.control_planes;
        let (starts, started) = mpsc::unbounded_channel();
        let quotas = QuotaLimits {
            mapped: config.memory_bytes(),
            held: config.buffer_bytes(),
            descriptors: sumac_sandbox::raise_open_files().saturating_sub(RESERVED_FILES),
        };
        let core_config = HostConfig {
            quotas,
            backend: if backend.is_xdp() { "xdp" } else { "udp" }.to_owned(),
            daemon: format!("sumac {}", env!("CARGO_PKG_VERSION")),
            has_spans: collector.is_some(),
            sum_threads: sum_threads::number(),
        };
        let (takeover, host) = match takeover {
            Some(mut takeover) => {
                let host = takeover.host();
                (Some(takeover), host)
            }
            None => (None, HostState::default()),
        };
        let planner = Arc::new(Planner { config: config.clone(), control_planes });
        let arena = Arena::new(planner, runtime.handle().clone());
        let core = Arc::new(Core::new(Host::resume(core_config, host), arena, starts));
        let sink = core.clone();
        let backend = Backend::start(backend, config.clone(), Arc::new(move |event| sink.deliver(event)))?;
        let backend = Arc::new(backend);
        core.set_backend(&backend);
        core.start_sums().map_err(DaemonError::Runtime)?;
        let (spans, spans_task) = match collector {
            Some(collector) => {
                let (spans, task) = SpansTask::start(collector, runtime.handle());
                (spans, Some(task))
            }
            None => (Spans::default(), None),
        };
        let context = JobContext {
            core: core.clone(),
            backend: backend.clone(),
            spans: Arc::new(spans),
            opens: Arc::default(),
        };
        runtime.spawn(job::spawn(context.clone(), started));
        let stats = Arc::new(StatsSource {
            config: config.clone(),
            backend: backend.clone(),
            core: core.clone(),
            sandbox,
        });
        let sessions = Sessions { config: config.clone(), core: core.clone(), stats };
        let state = Arc::new(DaemonState {
            config,
            backend,
            core,
            parameter_jobs: ParameterJobs::default(),
            opens: context.opens.clone(),
            spans: context.spans.clone(),
            service: takeover.as_ref().map_or_else(Service::of_environment, Takeover::service),
            runtime: runtime.handle().clone(),
        });
        let kept = metrics.as_ref().map(TcpListener::try_clone).transpose().map_err(DaemonError::Runtime)?;
        let has_taken_over = takeover.is_some();
        let server = match takeover {
            Some(takeover) => {
                state.backend.datapath().freeze();
                let server = Server::resume(sessions.clone(), listeners.trainers)?;
                match takeover.resume(context, &sessions) {
                    Ok(resumed) => resumed.start(runtime.handle()),
                    Err(error) => {
                        // The socket is the other daemon's.
                        server.hand_over();
                        return Err(error.into());
                    }
                }
                server.thaw();
                server
            }
            None => Server::start(sessions, listeners.trainers)?,
        };
        if let Some(listener) = metrics {
            let metrics = DaemonMetrics(state.clone());
            let served = sumac_metrics::serve(listener, metrics, runtime.handle());
            unless_taken_over(has_taken_over, served.map_err(DaemonError::Runtime))?;
        }
        let role = resolved.role.map(|role| ParameterHostTask::begin(state.clone(), runtime.handle(), role));
        let parts = Arc::new(Parts {
            state: state.clone(),
            server: Mutex::new(Some(server)),
            successors: listeners.successors,
            role: Mutex::new(role),
            metrics: kept,
            versions,
            is_handed_over: state_watch::Sender::new(false),
        });
        let predecessor = Predecessor::start(parts.clone()).map_err(DaemonError::Predecessor);
        let predecessor = unless_taken_over(has_taken_over, predecessor)?;
        Ok(Daemon { state, parts, predecessor, spans: spans_task, runtime: Some(runtime) })
    }
}

impl Daemon {
    /// Opens the data path's sockets and maps, and the socket for trainers.
    pub fn prepare(config: Config) -> Result<PreparedDaemon, DaemonError> {
        let resolved = Resolved::new(&config)?;
        let backend = Backend::set_up(&config, resolved.default_control())?;
        let trainers = listen(&config.socket, &resolved.permissions)?;
        let listeners =
            Listeners { trainers, successors: handover::listen(&handover::path(&config.socket))? };
        let metrics = config.metrics.map(sumac_metrics::listen).transpose()?;
        let collector = config.tracing.as_ref().map(Collector::new).transpose()?;
        let (takeover, versions, sandbox) = (None, Versions::own(), None);
        Ok(PreparedDaemon {
            config,
            resolved,
            backend,
            listeners,
            metrics,
            collector,
            takeover,
            versions,
            sandbox,
        })
    }

    /// Has the daemon that serves the configuration's socket stand still, and opens what it has left to this
    /// one. `versions`: those of this daemon, [`Versions::own`].
    ///
    /// # Errors
    /// Whatever fails, also in [`PreparedDaemon::start`]: the other daemon goes on.
    pub fn prepare_takeover(config: Config, versions: Versions) -> Result<PreparedDaemon, DaemonError> {
        let resolved = Resolved::new(&config)?;
        let collector = config.tracing.as_ref().map(Collector::new).transpose()?;
        let successor = Successor::connect(&config, versions.clone())?;
        let (mut takeover, listeners, backend) = successor.take()?;
        let backend = Backend::take_over(&config, resolved.default_control(), backend)?;
        let metrics = match (config.metrics, takeover.metrics.take()) {
            (Some(address), Some(socket)) if socket.local_addr().is_ok_and(|own| own == address) => {
                Some(socket)
            }
            (address, _) => address.map(sumac_metrics::listen).transpose()?,
        };
        let (takeover, sandbox) = (Some(takeover), None);
        Ok(PreparedDaemon {
            config,
            resolved,
            backend,
            listeners,
            metrics,
            collector,
            takeover,
            versions,
            sandbox,
        })
    }

    /// Starts a daemon that keeps the privileges of the process.
    pub fn start(config: Config) -> Result<Daemon, DaemonError> {
        Daemon::prepare(config)?.start()
    }

    /// Returns `xdp` or `udp`.
    pub fn backend(&self) -> &'static str {
        self.state.backend.name()
    }

    /// Serves until SIGTERM or SIGINT, then stops; also when a thread of the data path has panicked. Notifies
    /// systemd, if it has started the daemon with a notification socket.
    pub fn run(self) -> Result<(), DaemonError> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        runtime.spawn(watch::backend(self.state.clone()));
        runtime.spawn(watch::watchdog(self.state.clone()));
        let mut is_handed_over = self.parts.is_handed_over.subscribe();
        let ended = async {
            tokio::select! {
                biased;
                _ = is_handed_over.wait_for(|is| *is) => Ok(()),
                signal = termination() => signal.map_err(DaemonError::Runtime),
                thread = self.state.backend.died() => Err(DaemonError::Datapath(thread)),
            }
        };
        self.state.service.notify(&NotifyState::Ready);
        let ended = runtime.block_on(ended);
        if *self.parts.is_handed_over.borrow() {
            self.stop();
            return ended;
        }
        self.state.service.notify(&NotifyState::Stopping);
        tracing::info!("stopping");
        self.stop();
        ended
    }

    /// Stops: trainers are notified, and jobs fail on the other hosts with this host's rank. The host's XDP
    /// program stays attached. A daemon that has handed over stays until its trainers' memory is released.
    pub fn stop(mut self) {
        let held = self.shut_down();
        drop(self);
        if let Some(held) = held {
            // It is what `ps` and `top` show of it from here on.
            let _ = rustix::thread::set_name(c"sumac-memory");
            held.keep();
        }
    }

    /// Returns the memory that this process is to keep for a daemon that has taken over.
    fn shut_down(&mut self) -> Option<HeldRegions> {
        // It ends, or has handed over.
        let held = self.predecessor.take().and_then(Predecessor::end);
        let server = self.parts.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(server) = server else {
            // Trainers and jobs go on in another daemon.
            self.stop_runtime();
            return held;
        };
        server.stop();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while self.state.core.totals().jobs > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // After its own jobs, which it may be summing.
        drop(self.parts.role.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.state.backend.stop();
        self.stop_runtime();
        held
    }

    /// Stops the asynchronous part, after the spans of the last operations were sent.
    fn stop_runtime(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if let Some(spans) = self.spans.take() {
            spans.close(&runtime);
        }
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(held) = self.shut_down() {
            held.keep();
        }
    }
}

/// Returns a part of a daemon. One that has taken over goes on without it: the jobs are its own by then.
fn unless_taken_over<T>(
    has_taken_over: bool,
    part: Result<T, DaemonError>,
) -> Result<Option<T>, DaemonError> {
    match part {
        Err(error) if has_taken_over => {
            tracing::error!(%error, "this daemon goes on without that part");
            Ok(None)
        }
        part => part.map(Some),
    }
}

async fn termination() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

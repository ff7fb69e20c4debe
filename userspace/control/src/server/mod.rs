//! The TLS service around the [`Coordinator`]: sockets, clock, journal, and
//! the one task that talks to the data planes.

pub(crate) mod connections;
mod data_networks;
mod outdated;
mod planes;
pub(crate) mod recorder;
pub(crate) mod session;
mod shared;
pub mod stats;

use std::{
    future::Future,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use rand::{SeedableRng, rngs::OsRng, rngs::StdRng};
use thiserror::Error;
use tokio::{net::TcpListener, task::JoinSet, time::MissedTickBehavior};

use self::{
    connections::STOP_TIMEOUT,
    planes::Planes,
    recorder::Recorder,
    session::Sessions,
    shared::{Shared, State},
};
pub use self::{
    data_networks::{DataNetwork, DataNetworkError},
    shared::Secrets,
};
use crate::{
    DataPlane, Identity, TlsError,
    coordinator::{Action, Coordinator, JoinLimits, Restart, Time, overview::Overview},
    journal::{Journal, JournalError},
    plane::{PlaneError, blocking, report},
};

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks at the plane.
const PLANE_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}; choose another with --listen")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the control plane cannot start: {0}")]
    Plane(#[from] PlaneError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("the system gives no random numbers: {0}")]
    Random(String),
    #[error("the task that talks to the data plane ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

#[derive(Clone, Debug)]
pub struct ServerOptions {
    pub identity: Identity,
    pub secrets: Secrets,
    pub state_dir: PathBuf,
    /// Whether a completed slot takes the next chunk of its lane, whichever that is; SwitchML as published
    /// does not.
    pub stealing: bool,
    /// Time in which a dead worker of a dynamic job may be replaced (ATP appendix A.3); zero: the job fails.
    pub rejoin_grace: Duration,
    /// The longest outage of a worker's network that jobs survive, in whole seconds.
    pub longest_outage: Duration,
    pub join_limits: JoinLimits,
    /// Networks of hosts whose control connection comes from another network than their packets.
    pub data_networks: Vec<DataNetwork>,
}

/// Shows the state of a control plane that is served.
#[derive(Clone, Default)]
pub struct Monitor(Arc<OnceLock<Arc<Shared>>>);

impl Monitor {
    pub fn overview(&self) -> Option<Overview> {
        self.0.get().map(|shared| Overview { server: shared.stats(), ..shared.lock().coordinator.overview() })
    }
}

/// The socket of a control plane. Nothing is answered before that is served.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Listener {
    pub async fn bind(address: SocketAddr) -> Result<Listener, ServeError> {
        let failed = |source| ServeError::Listen { address, source };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        Ok(Listener { socket, address })
    }
}

/// A control plane that listens already; [`Listening::serve`] runs it.
pub struct Listening<P> {
    listener: Listener,
    plane: Arc<P>,
    options: ServerOptions,
    monitor: Monitor,
}

impl<P: DataPlane> Listening<P> {
    #[must_use]
    pub fn on(listener: Listener, plane: Arc<P>, options: ServerOptions) -> Self {
        Listening { listener, plane, options, monitor: Monitor::default() }
    }

    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.address
    }

    /// Serves until `stop` is ready. Then all jobs are failed by name and removed from the plane, but dynamic
    /// ones that go on without.
    pub async fn serve(self, stop: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let Listening { listener, plane, options, monitor, .. } = self;
        let tls = options.identity.server()?;
        let local = plane.clone();
        let shared = tokio::task::spawn_blocking(move || start(&*plane, options)).await??;
        // It is set once: a control plane is served once.
        let _ = monitor.0.set(shared.clone());
        let mut driver = JoinSet::new();
        driver.spawn(drive(shared.clone(), local));
        let stopping = async {
            stop.await;
            shared.update(|coordinator, _| coordinator.stop());
            wait_until_idle(&shared, STOP_TIMEOUT).await;
        };
        let connections = shared.connections.clone();
        connections::serve(listener.socket, tls, connections, Sessions(shared.clone()), stopping).await;
        Ok(())
    }
}

fn start<P: DataPlane>(plane: &P, options: ServerOptions) -> Result<Arc<Shared>, ServeError> {
    let ServerOptions { secrets, state_dir, data_networks, .. } = options;
    let (journal, records) = Journal::open(&state_dir)?;
    let restart = Restart::new(records);
    let taken = plane.take_over(&restart.known_jobs())?;
    let (info, instance) = (plane.info()?, plane.instance()?);
    let random = StdRng::try_from_rng(&mut OsRng).map_err(|error| ServeError::Random(error.to_string()))?;
    let mut coordinator = Coordinator::restore(Time::ZERO, info, instance, &taken, restart, Box::new(random));
    (coordinator.stealing, coordinator.join_limits) = (options.stealing, options.join_limits);
    (coordinator.rejoin_grace, coordinator.longest_outage) = (options.rejoin_grace, options.longest_outage);
    let recorder = Recorder::new(journal, Time::ZERO, &mut coordinator);
    let state = State { coordinator, recorder };
    Ok(Arc::new(Shared::new(Instant::now(), state, secrets, data_networks)))
}

/// Lets time pass for the coordinator and executes its commands on the data planes.
async fn drive<P: DataPlane>(shared: Arc<Shared>, local: Arc<P>) {
    let planes = Planes { local: local.clone(), links: &shared.links };
    tokio::join!(pass_time(&shared), watch_plane(&shared, &local), execute_all(&shared, &planes));
}

async fn pass_time(shared: &Shared) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.update(Coordinator::tick);
    }
}

async fn watch_plane<P: DataPlane>(shared: &Shared, plane: &Arc<P>) {
    loop {
        tokio::time::sleep(PLANE_INTERVAL).await;
        let report = blocking(plane, report).await;
        shared.update(|coordinator, now| coordinator.on_plane(now, report));
    }
}

async fn execute_all<P: DataPlane>(shared: &Shared, planes: &Planes<'_, P>) {
    let mut changed = shared.changed.subscribe();
    loop {
        while let Some(action) = shared.poll_action() {
            execute(shared, planes, action).await;
        }
        // The sender is part of `shared`.
        let _ = changed.changed().await;
    }
}

async fn execute<P: DataPlane>(shared: &Shared, planes: &Planes<'_, P>, action: Action) {
    match action {
        Action::Install(run, order) => {
            let result = planes.install(order).await;
            shared.update(|coordinator, _| coordinator.on_installed(run, result));
        }
        Action::Resize(run, order) => {
            let result = planes.resize(&order).await;
            shared.update(|coordinator, _| coordinator.on_resized(run, result));
        }
        Action::Restore { run, order, at } => {
            let result = planes.restore(&order, at).await;
            shared.update(|coordinator, now| coordinator.on_restored(now, run, at, result));
        }
        Action::Renew(run, order) => {
            let result = planes.renew(&order).await;
            shared.update(|coordinator, now| coordinator.on_replaced(now, run, result));
        }
        Action::Remove { run, job, from } => {
            let result = planes.remove(job, &from).await;
            shared.update(|coordinator, now| coordinator.on_removed(now, run, result));
        }
    }
}

/// Waits until the planes have no job left, and then until members had time to receive it; at most `longest`.
async fn wait_until_idle(shared: &Shared, longest: Duration) {
    let idle = async {
        while !shared.lock().coordinator.is_idle() {
            tokio::time::sleep(TICK / 4).await;
        }
        tokio::time::sleep(TICK * 2).await;
    };
    if tokio::time::timeout(longest, idle).await.is_err() {
        tracing::warn!("ended before the data plane had removed all jobs");
    }
}

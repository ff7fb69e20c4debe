//! The gRPC service around the [`Coordinator`]: sockets, clock, journal, and
//! the one task that talks to the data planes.

pub(crate) mod connections;
pub(crate) mod driver;
mod links;
mod planes;
mod rack_session;
pub(crate) mod session;

use std::{
    collections::HashMap,
    future::Future,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use rand::{SeedableRng, rngs::OsRng, rngs::StdRng};
use thiserror::Error;
use tokio::{net::TcpListener, sync::watch};

use self::{links::Links, planes::Planes, session::Sessions};
use crate::{
    DataPlane, Identity, Secret, TlsError,
    coordinator::{Action, Coordinator, Restart, Time, overview::Overview},
    journal::{Journal, JournalError},
    plane::PlaneError,
    rate_limiter::RateLimiter,
};

/// Time that members have, when the server ends, to receive the end of their jobs.
const STOP_TIMEOUT: Duration = Duration::from_millis(1200);

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

#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The secret of jobs without one of their own; `None`: there are no other jobs.
    pub default: Option<Secret>,
    pub jobs: HashMap<String, Secret>,
    /// The secret of racks and parameter hosts; `None`: there are none.
    pub racks: Option<Secret>,
}

impl Secrets {
    fn accepts(&self, job: &str, given: &Secret) -> bool {
        self.jobs.get(job).or(self.default.as_ref()).is_some_and(|secret| secret == given)
    }
}

#[derive(Clone, Debug)]
pub struct ServerOptions {
    pub identity: Identity,
    pub secrets: Secrets,
    pub state_dir: PathBuf,
    /// Whether a completed slot takes the next chunk of its lane, whichever that is; SwitchML as published does not.
    pub stealing: bool,
    /// Time in which a dead worker of a dynamic job may be replaced (ATP appendix A.3); zero: the job fails.
    pub rejoin_grace: Duration,
}

pub(crate) struct Shared {
    start: Instant,
    state: Mutex<State>,
    secrets: Secrets,
    /// Counts the moments at which something may have changed for somebody.
    pub changed: watch::Sender<u64>,
    links: Links,
    refused: RateLimiter,
}

struct State {
    coordinator: Coordinator,
    journal: Journal,
}

impl Shared {
    /// A panic elsewhere does not make the state worse than it is: every change is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the coordinator, journals the change, and lets everybody look.
    fn update<T>(&self, change: impl FnOnce(&mut Coordinator, Time) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state.coordinator, self.start.elapsed());
        let records = state.coordinator.poll_records();
        if let Err(error) = state.append(&records) {
            tracing::error!(%error, "running jobs will not be found again after a restart");
        }
        while let Some(rack) = state.coordinator.poll_lost_rack() {
            self.links.close(rack);
        }
        drop(state);
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        result
    }

    /// As [`Shared::update`] for what changes nothing for others.
    fn touch<T>(&self, change: impl FnOnce(&mut Coordinator, Time) -> T) -> T {
        change(&mut self.lock().coordinator, self.start.elapsed())
    }

    fn poll_action(&self) -> Option<Action> {
        self.lock().coordinator.poll_action()
    }
}

impl State {
    fn append(&mut self, records: &[crate::coordinator::Record]) -> Result<(), JournalError> {
        if !records.is_empty() {
            self.journal.append(records)?;
        }
        if self.journal.is_large() {
            self.journal.compact(&self.coordinator.all_records())?;
        }
        Ok(())
    }
}

/// Shows the state of a control plane that is served.
#[derive(Clone, Default)]
pub struct Overseer(Arc<OnceLock<Arc<Shared>>>);

impl Overseer {
    pub fn overview(&self) -> Option<Overview> {
        self.0.get().map(|shared| shared.lock().coordinator.overview())
    }
}

/// A control plane that listens already; [`Listening::serve`] runs it.
pub struct Listening<P> {
    listener: TcpListener,
    address: SocketAddr,
    plane: Arc<P>,
    options: ServerOptions,
    overseer: Overseer,
}

impl<P: DataPlane> Listening<P> {
    /// Opens the socket. Nothing is answered before [`Listening::serve`].
    pub async fn open(
        address: SocketAddr,
        plane: Arc<P>,
        options: ServerOptions,
    ) -> Result<Self, ServeError> {
        let (listener, address) = bind(address).await?;
        Ok(Listening { listener, address, plane, options, overseer: Overseer::default() })
    }

    pub fn overseer(&self) -> Overseer {
        self.overseer.clone()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready. Then all jobs are failed by name and removed from the plane, but dynamic ones that
    /// go on without.
    pub async fn serve(self, stop: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let Listening { listener, plane, options, overseer, .. } = self;
        let links = Links::default();
        let planes = Arc::new(Planes { local: plane, links: links.clone() });
        let tls = options.identity.server()?;
        let started = {
            let planes = planes.clone();
            tokio::task::spawn_blocking(move || start(&*planes.local, options, links)).await??
        };
        // It is set once: a control plane is served once.
        let _ = overseer.0.set(started.clone());
        let running = Running { shared: started.clone(), driver: tokio::spawn(driver::run(started, planes)) };
        let shared = &running.shared;
        let stopping = async {
            stop.await;
            shared.update(|coordinator, _| coordinator.stop());
            driver::wait_until_idle(shared, STOP_TIMEOUT).await;
        };
        connections::serve(listener, tls, Sessions(shared.clone()), stopping).await;
        Ok(())
    }
}

struct Running {
    shared: Arc<Shared>,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.driver.abort();
        self.shared.links.close_all();
    }
}

pub(crate) async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let failed = |source| ServeError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

fn start<P: DataPlane>(plane: &P, options: ServerOptions, links: Links) -> Result<Arc<Shared>, ServeError> {
    let ServerOptions { secrets, state_dir, stealing, rejoin_grace, .. } = options;
    let (journal, records) = Journal::open(&state_dir)?;
    let restart = Restart::new(records);
    let taken = plane.take_over(&restart.known_jobs())?;
    let (info, instance) = (plane.info()?, plane.instance()?);
    let random = StdRng::try_from_rng(&mut OsRng).map_err(|error| ServeError::Random(error.to_string()))?;
    let coordinator = Coordinator::restore(Time::ZERO, info, instance, &taken, restart, Box::new(random))
        .with_rejoin_grace(rejoin_grace);
    let mut coordinator = if stealing { coordinator } else { coordinator.without_stealing() };
    coordinator.poll_records();
    let mut state = State { coordinator, journal };
    state.journal.compact(&state.coordinator.all_records())?;
    let now = Instant::now();
    Ok(Arc::new(Shared {
        start: now,
        state: Mutex::new(state),
        secrets,
        changed: watch::Sender::new(0),
        links,
        refused: RateLimiter::new(now),
    }))
}

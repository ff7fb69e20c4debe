//! The gRPC service around the [`Coordinator`]: sockets, clock, and
//! the one task that talks to the data plane.

mod desk;
mod driver;
pub(crate) mod limit;
mod noise;
mod racks;
mod renewal;
pub(crate) mod service;
mod tree;

use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use rand::{SeedableRng, TryRngCore, rngs::OsRng, rngs::StdRng};
use thiserror::Error;
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};
use tonic::transport::Server;

use self::{desk::Desks, limit::Limited, service::Service, tree::Tree};
use crate::{
    DataPlane, Secrets,
    coordinator::{Coordinator, Time, overview::Overview},
    gate::Gate,
    plane::PlaneError,
    rpc::control_server::{Control, ControlServer},
};

/// Messages are some hundred bytes, and up to 8 KiB with posts or events.
const LARGEST_MESSAGE: usize = 16 << 10;
/// Requests of one connection that may be under way at once: a rack passes on two for each of its workers.
const REQUESTS_PER_CONNECTION: usize = 256;
/// How long a call may take, its own arrival included: one that is sent by half ends then.
const LONGEST_CALL: Duration = Duration::from_secs(5);
/// How long members have, when the server ends, to hear of it.
const FAREWELL: Duration = Duration::from_millis(1200);

/// Why the control plane cannot be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The data plane is not there at the start.
    #[error("the control plane cannot start: {0}")]
    Plane(#[from] PlaneError),
    /// There is no randomness.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
    /// The server ended by itself.
    #[error("the gRPC server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// Setting it up on the data plane was interrupted.
    #[error("the task that talks to the data plane ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// What all connections share.
pub(crate) struct Shared {
    start: Instant,
    state: Mutex<State>,
    /// Counts the moments at which something may have changed for somebody.
    news: watch::Sender<u64>,
    /// Wakes the driver.
    orders: tokio::sync::Notify,
    /// What racks are told to do.
    desks: Arc<Desks>,
}

struct State {
    coordinator: Coordinator,
    gate: Gate,
}

impl Shared {
    fn now(&self) -> Time {
        self.start.elapsed()
    }

    /// A panic elsewhere does not make the state worse than it is: every change is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the books on racks that are gone.
    fn forget_racks(&self, state: &mut State) {
        while let Some(rack) = state.coordinator.poll_lost_rack() {
            state.gate.forget_rack(rack);
            self.desks.close(rack);
        }
    }

    /// Tells waiting members and the driver that something has changed.
    fn announce(&self) {
        self.news.send_modify(|count| *count = count.wrapping_add(1));
        self.orders.notify_one();
    }
}

/// Asks a control plane that is served how things stand.
#[derive(Clone, Default)]
pub struct Overseer(Arc<OnceLock<Arc<Shared>>>);

impl Overseer {
    /// How things stand; none before the control plane is served.
    pub fn overview(&self) -> Option<Overview> {
        self.0.get().map(|shared| shared.lock().coordinator.overview())
    }
}

/// A control plane that listens already; [`Listening::serve`] runs it.
pub struct Listening<P> {
    listener: TcpListener,
    address: SocketAddr,
    plane: Arc<Tree<P>>,
    secrets: Secrets,
    stealing: bool,
    rejoin_grace: Duration,
    overseer: Overseer,
}

impl<P: DataPlane> Listening<P> {
    /// Opens the socket. Nothing is answered before [`Listening::serve`].
    pub async fn open(address: SocketAddr, plane: P, secrets: Secrets) -> Result<Self, ServeError> {
        let listen = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let plane = Arc::new(Tree::new(plane));
        Ok(Listening {
            listener,
            address,
            plane,
            secrets,
            stealing: true,
            rejoin_grace: Duration::ZERO,
            overseer: Overseer::default(),
        })
    }

    /// Jobs take the chunks of each lane in turn, as SwitchML published it, and steal no work.
    #[must_use]
    pub fn without_stealing(self) -> Self {
        Listening { stealing: false, ..self }
    }

    /// A dead worker of a dynamic job may be replaced within so long (ATP appendix A.3); without this the job fails.
    #[must_use]
    pub fn with_rejoin_grace(self, grace: Duration) -> Self {
        Listening { rejoin_grace: grace, ..self }
    }

    /// Who can say how things stand, while it is served.
    pub fn overseer(&self) -> Overseer {
        self.overseer.clone()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready. Then all jobs are failed by name and removed from the plane.
    pub async fn serve(self, stop: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let plane = self.plane.clone();
        let shared = tokio::task::spawn_blocking(move || {
            shared(&plane, self.secrets, self.stealing, self.rejoin_grace)
        })
        .await??;
        // Nobody else sets it: a control plane is served once.
        let _ = self.overseer.0.set(shared.clone());
        let driver = tokio::spawn(driver::run(shared.clone(), self.plane.clone()));
        let control = service(Service::new(shared.clone()));
        let (said_farewell, farewell_said) = oneshot::channel();
        let farewell = async {
            stop.await;
            shared.lock().coordinator.stop();
            shared.announce();
            driver::wait_until_idle(&shared, FAREWELL).await;
            // Whoever waits for this has been dropped only when serving ended by itself.
            let _ = said_farewell.send(());
        };
        // Connections may go on for a moment; those that say nothing more do not hold up the end.
        let overdue = async {
            if farewell_said.await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(FAREWELL).await;
        };
        let served = builder()
            .add_service(control)
            .serve_with_incoming_shutdown(Limited::new(self.listener), farewell);
        let result = tokio::select! {
            result = served => result,
            () = overdue => Ok(()),
        };
        driver.abort();
        shared.desks.close_all();
        Ok(result?)
    }
}

/// What roots and racks serve with: nobody holds up others, or a place that it does not use.
pub(crate) fn builder() -> Server {
    Server::builder()
        .timeout(LONGEST_CALL)
        .concurrency_limit_per_connection(REQUESTS_PER_CONNECTION)
        .max_concurrent_streams(REQUESTS_PER_CONNECTION as u32)
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
}

/// The service, with messages of bounded size.
pub(crate) fn service<S: Control>(service: S) -> ControlServer<S> {
    ControlServer::new(service)
        .max_decoding_message_size(LARGEST_MESSAGE)
        .max_encoding_message_size(LARGEST_MESSAGE)
}

fn shared<P: DataPlane>(
    plane: &Tree<P>,
    secrets: Secrets,
    stealing: bool,
    rejoin_grace: Duration,
) -> Result<Arc<Shared>, ServeError> {
    let last_epochs = plane.local.take_over()?;
    let (info, instance) = (plane.local.info()?, plane.local.instance()?);
    let mut boot_key = [0; 32];
    OsRng.try_fill_bytes(&mut boot_key).map_err(|error| ServeError::Random(error.to_string()))?;
    let random = StdRng::try_from_rng(&mut OsRng).map_err(|error| ServeError::Random(error.to_string()))?;
    let coordinator = Coordinator::new(Time::ZERO, info, instance, &last_epochs, Box::new(random));
    let coordinator = coordinator.with_rejoin_grace(rejoin_grace);
    let coordinator = if stealing { coordinator } else { coordinator.without_stealing() };
    Ok(Arc::new(Shared {
        start: Instant::now(),
        state: Mutex::new(State { coordinator, gate: Gate::new(secrets, boot_key) }),
        news: watch::Sender::new(0),
        orders: tokio::sync::Notify::new(),
        desks: plane.desks.clone(),
    }))
}

//! The daemon as a whole: started from a configuration, stopped in the order that leaves nothing behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::carrier::{Carrier, CarrierError};
use crate::config::Config;
use crate::hub::Hub;
use crate::parameter::{self, Role, RoleError};
use crate::routes::Routes;
use crate::server::{ServeError, Server};

/// How long jobs have to tell their aggregators that this host leaves.
const PARTING: Duration = Duration::from_secs(3);

/// Why the daemon does not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The way to the network.
    #[error(transparent)]
    Carrier(#[from] CarrierError),
    /// The socket for trainers.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The secret of the configuration.
    #[error(transparent)]
    Secret(#[from] sumac_control::SecretError),
    /// The role of a parameter host.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// Threads, timers or signals.
    #[error("cannot start the daemon's asynchronous part: {0}")]
    Runtime(std::io::Error),
}

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    hub: Arc<Hub>,
    server: Option<Server>,
    role: Option<Role>,
    runtime: Option<Runtime>,
}

impl Daemon {
    /// Opens the path to the network, then the door to trainers.
    ///
    /// # Errors
    /// See [`DaemonError`]; nothing is left behind.
    pub fn start(config: Config) -> Result<Daemon, DaemonError> {
        // Found out now rather than at the first job.
        config.default_credential()?;
        let role = parameter::Terms::new(&config)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("sumac-control")
            .enable_all()
            .build()
            .map_err(DaemonError::Runtime)?;
        let routes = Arc::new(Routes::default());
        let news = routes.clone();
        let carrier = Carrier::start(&config, Arc::new(move |event| news.deliver(event)))?;
        let hub = Arc::new(Hub::new(config, carrier, routes, runtime.handle().clone()));
        let server = Server::start(hub.clone())?;
        let role = role.map(|terms| Role::begin(hub.clone(), runtime.handle(), terms));
        Ok(Daemon { hub, server: Some(server), role, runtime: Some(runtime) })
    }

    /// How packets move: `xdp` or `udp`.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.hub.carrier.backend()
    }

    /// Serves until the process is told to end (SIGTERM or SIGINT), then stops.
    ///
    /// # Errors
    /// When the signals cannot be waited for.
    pub fn run(self) -> Result<(), DaemonError> {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(told_to_end()).map_err(DaemonError::Runtime)?;
        }
        tracing::info!("stopping");
        self.stop();
        Ok(())
    }

    /// Stops: trainers are told, jobs fail on the other hosts by name, frames are counted. The host's XDP program stays.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        let Some(server) = self.server.take() else { return };
        server.stop();
        let deadline = Instant::now() + PARTING;
        while self.hub.open_jobs() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Not before its own jobs, which it may be summing.
        drop(self.role.take());
        self.hub.carrier.stop();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.shut_down();
    }
}

async fn told_to_end() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

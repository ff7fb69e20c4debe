//! The daemon: its start from a configuration, and its shutdown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::backend::{Backend, BackendError};
use crate::config::Config;
use crate::jobs::JobTable;
use crate::parameter::{self, ParameterHostError, ParameterHostTask};
use crate::server::{ServeError, Server};
use crate::state::DaemonState;

/// The time for jobs to leave their coordinators at shutdown.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Secret(#[from] sumac_control::SecretError),
    #[error(transparent)]
    ParameterHost(#[from] ParameterHostError),
    #[error("cannot start the daemon's asynchronous part: {0}")]
    Runtime(std::io::Error),
}

#[derive(Debug)]
pub struct Daemon {
    state: Arc<DaemonState>,
    server: Option<Server>,
    role: Option<ParameterHostTask>,
    runtime: Option<Runtime>,
}

impl Daemon {
    /// Starts the data path, then listens for trainers.
    pub fn start(config: Config) -> Result<Daemon, DaemonError> {
        // An unreadable secret fails the start, rather than the first job.
        config.default_credential()?;
        let role = parameter::registration(&config)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("sumac-control")
            .enable_all()
            .build()
            .map_err(DaemonError::Runtime)?;
        let jobs = Arc::new(JobTable::default());
        let sink = jobs.clone();
        let backend = Backend::start(&config, Arc::new(move |event| sink.deliver(event)))?;
        let state = Arc::new(DaemonState::new(config, backend, jobs, runtime.handle().clone()));
        let server = Server::start(state.clone())?;
        let role = role.map(|role| ParameterHostTask::begin(state.clone(), runtime.handle(), role));
        Ok(Daemon { state, server: Some(server), role, runtime: Some(runtime) })
    }

    /// Returns `xdp` or `udp`.
    pub fn backend(&self) -> &'static str {
        self.state.backend.name()
    }

    /// Serves until SIGTERM or SIGINT, then stops.
    pub fn run(self) -> Result<(), DaemonError> {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(termination()).map_err(DaemonError::Runtime)?;
        }
        tracing::info!("stopping");
        self.stop();
        Ok(())
    }

    /// Stops: trainers are notified, and jobs fail on the other hosts with this host's rank. The host's XDP program stays
    /// attached.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        let Some(server) = self.server.take() else { return };
        server.stop();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while self.state.jobs.len() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // After its own jobs, which it may be summing.
        drop(self.role.take());
        self.state.backend.stop();
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

async fn termination() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

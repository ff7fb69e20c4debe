//! The daemon: its start from a configuration, its shutdown, and the state that all sessions share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use sumac_api::{Code, Failure, Open, StatsReply};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::backend::{Backend, BackendError};
use crate::config::Config;
use crate::datapath::DatapathStats;
use crate::job::{Job, JobHandle, Plan};
use crate::jobs::JobTable;
use crate::operations::Client;
use crate::parameter::{self, ParameterHostError, ParameterHostTask, ParameterJobs};
use crate::server::{ServeError, Server, Sessions};
use crate::session::MemoryBudget;

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

#[derive(Debug)]
pub(crate) struct DaemonState {
    pub(crate) config: Config,
    pub(crate) backend: Backend,
    pub(crate) jobs: Arc<JobTable>,
    /// The jobs that this host is a parameter host of.
    pub(crate) parameter_jobs: ParameterJobs,
    pub(crate) sessions: Sessions,
    pub(crate) memory: Arc<MemoryBudget>,
    runtime: tokio::runtime::Handle,
}

impl DaemonState {
    pub(crate) fn new(
        config: Config,
        backend: Backend,
        jobs: Arc<JobTable>,
        runtime: tokio::runtime::Handle,
    ) -> DaemonState {
        let memory = Arc::new(MemoryBudget::new(config.memory_bytes()));
        let (parameter_jobs, sessions) = (ParameterJobs::default(), Sessions::default());
        DaemonState { config, backend, jobs, parameter_jobs, sessions, memory, runtime }
    }

    /// Starts a job's task. The client is notified when the job is open, or cannot be opened.
    pub(crate) fn open(
        self: &Arc<DaemonState>,
        open: Open,
        client: Client,
        request: u64,
    ) -> Result<JobHandle, Failure> {
        let plan = Plan::new(&self.config, &open)?;
        let (events, received) = mpsc::unbounded_channel();
        let handle = JobHandle(events.clone());
        let job = Job { daemon: self.clone(), plan, client, request, events };
        self.runtime.spawn(job.run(received));
        Ok(handle)
    }

    pub(crate) fn stats(&self) -> Result<StatsReply, Failure> {
        let threads = self.backend.stats()?;
        let hosted = self.config.parameter_host.as_ref().map(|_| DatapathStats::merge_hosted(&threads).jobs);
        Ok(StatsReply {
            backend: self.backend.name().to_owned(),
            fallback: self.backend.fallback.clone(),
            clients: u32::try_from(self.sessions.len()).unwrap_or(u32::MAX),
            jobs: self.jobs.stats(DatapathStats::merge_jobs(&threads))?,
            parameter_host: hosted.map(|jobs| json_list(&jobs)).transpose()?,
            ports: json_list(threads.iter().map(|thread| &thread.port))?,
            threads: json_list(&threads)?,
            frames: json(&DatapathStats::frames(&threads))?,
            host_program: self.backend.host_program()?,
        })
    }
}

pub(crate) fn json(counters: &impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(counters)
        .map_err(|error| Failure::new(Code::Internal, format!("the counters have no JSON form: {error}")))
}

pub(crate) fn json_list<T: Serialize>(all: impl IntoIterator<Item = T>) -> Result<Vec<Value>, Failure> {
    all.into_iter().map(|counters| json(&counters)).collect()
}

async fn termination() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

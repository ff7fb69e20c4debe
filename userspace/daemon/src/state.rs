//! The state that all sessions share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sumac_api::{Failure, Open, StatsReply};
use tokio::sync::mpsc;

use crate::backend::Backend;
use crate::config::Config;
use crate::job;
use crate::job_event::JobHandle;
use crate::jobs::JobTable;
use crate::operations::Client;
use crate::parameter::ParameterJobs;
use crate::session::MemoryBudget;

#[derive(Debug)]
pub(crate) struct DaemonState {
    pub(crate) config: Config,
    pub(crate) backend: Backend,
    pub(crate) jobs: Arc<JobTable>,
    /// The jobs that this host is a parameter host of.
    pub(crate) parameter_jobs: ParameterJobs,
    /// The number of connections.
    pub(crate) clients: AtomicU32,
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
        let (parameter_jobs, clients) = (ParameterJobs::default(), AtomicU32::new(0));
        DaemonState { config, backend, jobs, parameter_jobs, clients, memory, runtime }
    }

    /// Starts a job's task. The client is notified when the job is open, or cannot be opened.
    pub(crate) fn open(
        self: &Arc<DaemonState>,
        open: Open,
        client: Client,
        request: u64,
    ) -> Result<JobHandle, Failure> {
        let plan = job::Plan::new(&self.config, &open)?;
        let (events, received) = mpsc::unbounded_channel();
        let handle = JobHandle::new(events.clone());
        let job = job::Job { daemon: self.clone(), plan, client, request, events };
        self.runtime.spawn(job.run(received));
        Ok(handle)
    }

    /// Returns all counters.
    pub(crate) fn stats(&self) -> Result<StatsReply, Failure> {
        let measured = self.backend.stats()?;
        Ok(StatsReply {
            backend: self.backend.name().to_owned(),
            fallback: self.backend.fallback().to_owned(),
            clients: self.clients.load(Ordering::Relaxed),
            jobs: self.jobs.stats(measured.jobs),
            parameter_host: self.config.parameter_host.is_some().then_some(measured.hosted),
            ports: measured.ports,
            threads: measured.threads,
            frames: measured.frames,
            host_program: measured.host_program,
        })
    }
}

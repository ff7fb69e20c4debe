//! The state that all sessions share.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use sumac_api::{Code, Failure, Open, StatsReply};
use tokio::sync::mpsc;

use crate::backend::Backend;
use crate::config::Config;
use crate::datapath::DatapathStats;
use crate::job::{Job, JobHandle, Plan};
use crate::jobs::JobTable;
use crate::operations::Client;
use crate::parameter::ParameterJobs;
use crate::server::Sessions;
use crate::session::MemoryBudget;

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

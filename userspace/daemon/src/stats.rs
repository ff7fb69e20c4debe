//! The answer to `stats`.

use std::sync::Arc;

use sumac_api::{Failure, SandboxReply, StatsReply};

use crate::backend::{Backend, FramePath};
use crate::config::{BackendChoice, Config};
use crate::core::Core;
use crate::datapath::DatapathStats;
use crate::json::{json, json_list};

/// The parts of the daemon that `stats` describes.
#[derive(Debug)]
pub(crate) struct StatsSource {
    pub(crate) config: Arc<Config>,
    pub(crate) backend: Arc<Backend>,
    pub(crate) core: Arc<Core>,
    pub(crate) sandbox: Option<SandboxReply>,
}

impl StatsSource {
    /// Returns why `auto` has chosen AF_XDP, by the sockets as they are bound; empty for another backend.
    fn backend_reason(&self, threads: &[DatapathStats]) -> &'static str {
        let is_chosen = self.config.backend == BackendChoice::Auto && self.backend.interface().is_some();
        let path = || FramePath::of(threads.iter().map(|thread| &thread.port));
        if is_chosen { path().reason() } else { "" }
    }

    pub(crate) fn stats(&self) -> Result<StatsReply, Failure> {
        let threads = self.backend.stats()?;
        let hosted = self.config.parameter_host.as_ref().map(|_| DatapathStats::merge_hosted(&threads).jobs);
        Ok(StatsReply {
            backend: self.backend.name().to_owned(),
            fallback: self.backend.fallback.clone(),
            backend_reason: self.backend_reason(&threads).into(),
            sandbox: self.sandbox.clone(),
            clients: u32::try_from(self.core.totals().connections).unwrap_or(u32::MAX),
            jobs: self.core.job_stats(DatapathStats::merge_jobs(&threads))?,
            parameter_host: hosted.map(|jobs| json_list(&jobs)).transpose()?,
            ports: json_list(threads.iter().map(|thread| &thread.port))?,
            threads: json_list(&threads)?,
            frames: json(&DatapathStats::frames(&threads))?,
            host_program: self.backend.host_program()?,
        })
    }
}

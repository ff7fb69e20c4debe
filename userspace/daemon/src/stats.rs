//! The answer to `stats`.

mod page;

use std::sync::Arc;

use sumac_api::{Failure, JobStats, SandboxReply, StatsReply};
use sumac_datapath::{DatapathStats, JobStats as LaneStats};
use sumac_host::{JobId, JobSummary};

use crate::backend::{Backend, FramePath};
use crate::config::{BackendChoice, Config};
use crate::core::Core;
use crate::json::json;

use self::page::{List, Page, Position};

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

    /// Returns a page. `job`: the only job that is on it.
    pub(crate) fn page(&self, job: Option<JobId>, after: Option<u64>) -> Result<StatsReply, Failure> {
        let threads = self.backend.stats()?;
        let mut page = Page::after(after);
        let (backend, fallback) = self.backend.name_and_fallback();
        let mut reply = StatsReply {
            backend: backend.to_owned(),
            fallback,
            backend_reason: self.backend_reason(&threads).into(),
            sandbox: self.sandbox.clone(),
            clients: u32::try_from(self.core.totals().connections).unwrap_or(u32::MAX),
            jobs: Vec::new(),
            parameter_host: None,
            ports: Vec::new(),
            threads: Vec::new(),
            frames: json(&DatapathStats::frames(&threads))?,
            host_program: self.backend.host_program()?,
            next: None,
        };
        if job.is_none() {
            for (number, thread) in threads.iter().enumerate() {
                reply.ports.extend(page.item(Position::new(List::Ports, number, 0), &thread.port)?);
            }
            for (number, thread) in threads.iter().enumerate() {
                reply.threads.extend(page.item(Position::new(List::Threads, number, 0), thread)?);
            }
        }
        let mut jobs = DatapathStats::merge_jobs(&threads);
        jobs.retain(|(sum, _)| job.is_none_or(|job| sum.id == job));
        jobs.sort_by_key(|(sum, _)| sum.id);
        for (sum, lanes) in jobs {
            reply.jobs.extend(self.job(sum, &lanes, &mut page)?);
        }
        if job.is_none() && self.config.parameter_host.is_some() {
            let mut hosted = DatapathStats::merge_hosted(&threads).jobs;
            hosted.sort_by_key(|job| job.job);
            let items =
                hosted.iter().map(|job| page.item(Position::new(List::Hosted, job.job.into(), 0), job));
            reply.parameter_host = Some(items.filter_map(Result::transpose).collect::<Result<_, _>>()?);
        }
        reply.next = page.next();
        Ok(reply)
    }

    /// Returns a job with those of its lanes that are on the page, if there are some.
    fn job(&self, sum: LaneStats, lanes: &[LaneStats], page: &mut Page) -> Result<Option<JobStats>, Failure> {
        let Some(summary) = self.core.summary(sum.id) else { return Ok(None) };
        let position = |lane: &LaneStats| Position::new(List::Jobs, lane.id as usize, lane.lane);
        let items = lanes.iter().map(|lane| page.item(position(lane), lane));
        let lanes: Vec<_> = items.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        if lanes.is_empty() {
            return Ok(None);
        }
        let JobSummary { name, reply, submitted, ended, clients, .. } = summary;
        let job = JobStats {
            name,
            job: sum.job,
            epoch: reply.epoch,
            rank: reply.rank,
            world: reply.world,
            servers: reply.servers,
            state: sum.state.to_owned(),
            error: sum.error.unwrap_or_default(),
            clients,
            mode: reply.mode,
            slots: reply.slots,
            slots_reason: reply.slots_reason,
            backend: reply.backend,
            dynamic: reply.dynamic,
            elements: reply.elements,
            operations_submitted: submitted,
            operations_ended: ended,
            engine: json(&sum.engine)?,
            lanes: Vec::new(),
        };
        page.charge(&job);
        Ok(Some(JobStats { lanes, ..job }))
    }
}

//! The ranks of a job come together on this host: each takes its place under the job's name. With the last
//! one a job of one host opens; otherwise its leader joins the other hosts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sumac_api::{Code, Failure, JobSpec, Open, OpenReply};
use sumac_control::{PlaneKind, difference};
use sumac_job::limits::MIN_WINDOW;
use sumac_job::{JobTerms, Mode, ResumePoint};
use sumac_transport::JobError;
use sumac_wire::PAGE_ELEMENTS;

use super::LocalJob;
use super::rounds::Rounds;
use crate::host::Host;
use crate::job::{JobPhase, RunningJob};
use crate::job_end::JobEnd;
use crate::lifecycle::open_reply;
use crate::quotas::{Quota, job_bytes};
use crate::{JobId, Output, Resources};

/// The reason that a job does not get its name.
#[derive(Clone, Debug, PartialEq)]
pub enum NameRefusal {
    /// A job of this host has it, as this rank; that may end soon.
    Held(u16),
    Refused(Failure),
}

impl Host {
    /// Takes a job's name, of which a host has one job, or one of each of its ranks.
    ///
    /// # Errors
    /// The name is in use, or the job's ranks do not want the same.
    pub fn take_name(
        &mut self,
        id: JobId,
        resources: &dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), NameRefusal> {
        let Some(own) = self.state.jobs.get(&id).filter(|own| own.phase == JobPhase::AwaitsName) else {
            return Ok(());
        };
        // Ranks that have been refused have the name until they are gone.
        let waits = |id: &JobId| self.state.jobs.get(id).is_some_and(|job| job.end.is_none());
        let gathering = self
            .state
            .local_jobs
            .get(&own.name)
            .filter(|local| own.is_shared() && !local.is_open && local.members.values().all(waits));
        let holder = match gathering {
            Some(local) => local.members.contains_key(&own.rank).then_some(own.rank),
            None => self.holder(&own.name),
        };
        if let Some(holder) = holder {
            return Err(NameRefusal::Held(holder));
        }
        if own.is_shared() {
            self.gather(id, resources, out).map_err(NameRefusal::Refused)?;
        }
        if let Some(job) = self.state.jobs.get_mut(&id)
            && job.phase == JobPhase::AwaitsName
        {
            job.phase = JobPhase::Starting;
        }
        Ok(())
    }

    /// Whether all of the job's ranks on this host have come.
    #[must_use]
    pub fn is_gathered(&self, id: JobId) -> bool {
        let local = self.state.jobs.get(&id).and_then(|job| self.state.local_jobs.get(&job.name));
        local.is_some_and(LocalJob::is_complete)
    }

    /// Whether the job's workers have joined, of which this host is one.
    #[must_use]
    pub fn is_running(&self, id: JobId) -> bool {
        self.state.jobs.get(&id).is_some_and(|job| job.running.is_some())
    }

    /// Ends the wait of a job's ranks for those that have not come.
    pub fn give_up_gathering(&mut self, id: JobId, out: &mut Vec<Output>) -> Failure {
        let Some(job) = self.state.jobs.get(&id) else {
            return Failure::new(Code::JobFailed, "its trainer went away");
        };
        let name = job.name.clone();
        let Some(local) = self.state.local_jobs.get(&name) else {
            return Failure::new(Code::JobFailed, "its other ranks went away");
        };
        let missing: Vec<u16> = local.ranks().filter(|rank| !local.members.contains_key(rank)).collect();
        let message = format!("job {name:?}: still waiting for ranks {missing:?} at the deadline");
        let failure = Failure::new(Code::RanksMissing, message)
            .hint("start the missing workers on this host, or open with a longer timeout_s")
            .ranks(missing);
        self.refuse_members(&name, &failure, out);
        failure
    }

    fn gather(&mut self, id: JobId, resources: &dyn Resources, out: &mut Vec<Output>) -> Result<(), Failure> {
        let Some(own) = self.state.jobs.get(&id) else { return Ok(()) };
        let (name, rank, uid, open) = (own.name.clone(), own.rank, own.uid, own.open.clone());
        if let Some(local) = self.state.local_jobs.get(&name) {
            check_user(local, uid, &open, resources)?;
            if let Some(failure) = mismatch(local, &open.spec) {
                self.refuse_members(&name, &failure, out);
                return Err(failure);
            }
        }
        let local = self.state.local_jobs.entry(name.clone()).or_insert_with(|| LocalJob {
            id,
            spec: open.spec.clone(),
            uid,
            members: BTreeMap::new(),
            is_open: false,
            is_over: false,
            departed: Vec::new(),
            rounds: Rounds::default(),
            transfers: BTreeMap::new(),
            unposted: Vec::new(),
            shares: VecDeque::new(),
            last_share: 0,
        });
        local.members.insert(rank, id);
        if !local.is_complete() {
            return Ok(());
        }
        if !local.spec.is_local() {
            // The leader goes on.
            out.extend(local.members.values().map(|id| Output::Wake { job: *id }));
            return Ok(());
        }
        self.open_locally(&name, out).inspect_err(|failure| self.refuse_members(&name, failure, out))
    }

    /// Opens a job whose ranks have all come.
    fn open_locally(&mut self, name: &str, out: &mut Vec<Output>) -> Result<(), Failure> {
        let Some(local) = self.state.local_jobs.get_mut(name) else { return Ok(()) };
        let terms = terms(&local.spec, self.config.sum_threads);
        let (members, held) = (local.members.clone(), job_bytes(&terms));
        local.is_open = true;
        for (rank, id) in members {
            let Some(job) = self.state.jobs.get_mut(&id) else { continue };
            let reserved = self.state.quotas.reserve(&self.config.quotas, job.uid, &[(Quota::Held, held)]);
            reserved.map_err(|failure| failure.ranks([rank]))?;
            let point = ResumePoint::default();
            let reply = open_reply(job, &terms, &point, ("memory", PlaneKind::None.name()));
            let running = RunningJob::new(terms.clone(), reply, held, &point);
            job.running = Some(Box::new(RunningJob { clients: BTreeSet::from([job.opener]), ..running }));
            (job.phase, job.is_connected) = (JobPhase::Starting, true);
            out.push(Output::Wake { job: id });
        }
        Ok(())
    }

    /// Opens the jobs of the other ranks of a worker, whose leader has opened.
    pub(crate) fn open_followers(&mut self, leader: JobId, out: &mut Vec<Output>) {
        let Some(own) = self.state.jobs.get(&leader) else { return };
        let (Some(running), Some(local)) = (&own.running, self.state.local_jobs.get_mut(&own.name)) else {
            return;
        };
        let (terms, reply) = (running.terms.clone(), running.reply.clone());
        let next = running.next;
        local.is_open = true;
        for (rank, id) in local.members.iter().filter(|(_, id)| **id != leader) {
            let Some(job) = self.state.jobs.get_mut(id) else { continue };
            let reply = OpenReply { job: job.opener.1, rank: *rank, ..reply.clone() };
            let mut running = RunningJob::new(terms.clone(), reply, 0, &ResumePoint::default());
            running.next = next;
            running.clients.insert(job.opener);
            (job.running, job.is_connected) = (Some(Box::new(running)), true);
            out.push(Output::Wake { job: *id });
        }
    }

    /// Fails the opens of all ranks that have come.
    pub(super) fn refuse_members(&mut self, name: &str, failure: &Failure, out: &mut Vec<Output>) {
        let Some(local) = self.state.local_jobs.get(name) else { return };
        let error = JobError::Ended { reason: failure.message.to_string() };
        for id in local.members.values() {
            if let Some(job) = self.state.jobs.get_mut(id) {
                let end = JobEnd::Failed { error: error.clone(), failure: failure.clone(), outcome: None };
                job.end_with(*id, end, out);
            }
        }
    }
}

/// Refuses a rank of another user that has not the job's secret.
fn check_user(local: &LocalJob, uid: u32, open: &Open, resources: &dyn Resources) -> Result<(), Failure> {
    let first = local.members.values().next();
    let has_secret = || {
        open.secret.as_ref().zip(first).is_some_and(|(secret, first)| resources.is_secret(*first, &secret.0))
    };
    if uid == local.uid || has_secret() {
        return Ok(());
    }
    let (job, owner) = (&local.spec.job, local.uid);
    let message = format!("job {job:?}: user {owner} has opened it on this host, not user {uid}");
    Err(Failure::new(Code::Denied, message)
        .hint("open all ranks as one user, or all with the same `secret`")
        .ranks([open.spec.rank]))
}

/// Returns the refusal of a rank that wants another job than the one that came first, or is of another host.
fn mismatch(local: &LocalJob, asked: &JobSpec) -> Option<Failure> {
    let ranks = local.ranks();
    if asked.world == local.spec.world && !ranks.contains(&asked.rank) {
        let (job, first) = (&asked.job, local.spec.rank.min(asked.rank));
        let (rank, all) = (local.spec.rank.max(asked.rank), ranks.len());
        let message = format!(
            "job `{job}`: ranks {first} and {rank} are on one host, and by local_world {all} on different \
            ones"
        );
        return Some(
            Failure::new(Code::Refused, message)
                .hint("number the ranks of a host one after the other, as torchrun does")
                .ranks([first, rank]),
        );
    }
    let (lower, higher) =
        if local.spec.rank < asked.rank { (&local.spec, asked) } else { (asked, &local.spec) };
    let (what, [one, other]) = difference(lower, higher)?;
    let (job, first, rank) = (&asked.job, lower.rank, higher.rank);
    let message = format!(
        "job `{job}`: rank {first} wants {what} {one}, rank {rank} wants {other}; give all workers the same"
    );
    Some(Failure::new(Code::Refused, message).ranks([first, rank]))
}

/// Returns the terms of a job of one host. Packets have no part in it; they are the unit of quotas alone.
fn terms(spec: &JobSpec, threads: u16) -> JobTerms {
    let mode = spec.mode.unwrap_or_default();
    JobTerms {
        mode,
        elements: spec.elements.unwrap_or(PAGE_ELEMENTS as u16),
        shards: threads.max(1),
        slots_reason: "a job of one host has none".into(),
        wire: spec.wire.unwrap_or_default(),
        not_finite: spec.not_finite.unwrap_or_default(),
        order: spec.order.unwrap_or_default(),
        window: if mode == Mode::Static { 0 } else { MIN_WINDOW },
        topology: spec.topology.unwrap_or_default(),
        owners: spec.owners.unwrap_or(spec.world),
        ..JobTerms::new(0, 0, 0, spec.world)
    }
}

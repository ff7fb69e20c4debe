//! Parameter hosts of dynamic jobs (ATP section 3.6), and the choice of those that a job gets.

use std::{collections::HashSet, net::SocketAddrV4};

use sumac_job::JobTerms;
use sumac_wire::{MAX_HOSTS, MAX_JOBS};

use super::{
    Coordinator,
    agreement::Limits,
    ids::RackId,
    rack::Rack,
    run::{InstallState, MissingAt, Phase, Run, Shared},
    time::Time,
};
use crate::{
    failure::{COMPILED_IN, FailureKind, JobFailure, Refusal, RefusalKind, invalid},
    plane::PlaneKind,
};

/// Time that a job whose ranks are all there waits for parameter hosts: they start with the workers, and
/// enter anew within this after they have lost the control plane.
pub(super) const HOSTS_TIMEOUT: Time = Time::from_secs(3);
/// Parameter hosts at once: one on each worker of the largest job.
pub(super) const MAX_PARAMETER_HOSTS: usize = sumac_wire::MAX_WORKERS * sumac_wire::MAX_WORKERS;

impl Coordinator {
    pub(super) fn lacks_hosts(&self, run: &Run) -> bool {
        run.is_dynamic() && self.free_hosts(run).len() < usize::from(run.asked_hosts().unwrap_or(1)).max(1)
    }

    pub(super) fn waits_for_hosts(&self, run: &Run) -> bool {
        let is_free = self.names.get(&run.name).is_some_and(|name| name.on_plane.is_none());
        run.phase == Phase::Ready && is_free && self.lacks_hosts(run)
    }

    pub(super) fn no_hosts(&self, run: &Run) -> Refusal {
        let (wanted, registered) = (run.asked_hosts().unwrap_or(1), self.free_hosts(run).len());
        let message = format!(
            "a dynamic job needs {wanted} parameter hosts, and {registered} that can sum for it are \
            registered here: start `sumac daemon --parameter-host` on a host for it (not on its workers \
            below racks), or ask for fewer"
        );
        Refusal::new(RefusalKind::Hosts, &[], message)
    }

    /// The parameter hosts of a run: those that have the fewest jobs. None for a static one.
    pub(super) fn choose_hosts(&self, run: &Run) -> Result<Vec<RackId>, Refusal> {
        if !run.is_dynamic() {
            return Ok(Vec::new());
        }
        if self.lacks_hosts(run) {
            return Err(self.no_hosts(run));
        }
        let mut free = self.free_hosts(run);
        // One that carries less than the others of the job would hold all of them back.
        let (need, _) = self.terms(run, &[])?;
        let is_able = |host: &RackId| {
            let plane = self.racks.get(host).map(|rack| &rack.plane);
            plane.is_some_and(|plane| plane.shards >= need.shards && plane.max_elements >= need.elements)
        };
        if free.iter().filter(|host| is_able(host)).count() >= run.asked_hosts().unwrap_or(1).into() {
            free.retain(is_able);
        }
        let load = |host: &RackId| self.runs.values().filter(|run| run.is_at_host(*host)).count();
        free.sort_by_cached_key(|host| (load(host), self.racks.get(host).map(|rack| rack.name.clone())));
        free.truncate(run.asked_hosts().map_or(MAX_HOSTS, usize::from));
        Ok(free)
    }

    pub(super) fn share(
        &self,
        run: &Run,
        terms: &mut JobTerms,
        limits: &Limits,
        mut hosts: Vec<RackId>,
    ) -> Result<Shared, Refusal> {
        match run.asked_hosts() {
            Some(asked) if asked > terms.shards => {
                return invalid(format!(
                    "{asked} parameter hosts for {} shards: each sums for whole shards; ask for fewer, or \
                    for more shards",
                    terms.shards
                ));
            }
            _ => hosts.truncate(terms.shards.into()),
        }
        let has_aggregator = self.plane.kind != PlaneKind::None;
        let asked = run.members.values().find_map(|member| member.asked.spec.dynamic_slots);
        terms.slots = match asked {
            _ if !has_aggregator => 0,
            Some(asked) if asked > limits.dynamic_slots => {
                return invalid(format!(
                    "{asked} slots of each shard: the aggregators share out {}; ask for fewer",
                    limits.dynamic_slots
                ));
            }
            asked => asked.unwrap_or(limits.dynamic_slots),
        };
        if terms.slots == 0 && has_aggregator {
            return invalid(format!(
                "an aggregator of this job has no slots for dynamic jobs: give it --dynamic-slots N \
                ({COMPILED_IN})"
            ));
        }
        terms.slots_reason = match terms.slots {
            0 => "there is no aggregator".into(),
            slots => format!("up to {slots} of each shard, shared with other jobs"),
        };
        terms.parameter_hosts = hosts.iter().filter_map(|host| self.address_of(*host)).collect();
        Ok(Shared { hosts, root_port: self.plane.base_port, missing_at: MissingAt::new() })
    }

    /// The parameter hosts that can take a run. One on a worker below a rack cannot: what the root sends to
    /// it, the rack's aggregator takes for results of its own.
    fn free_hosts(&self, run: &Run) -> Vec<RackId> {
        let is_free = |rack: &Rack| rack.is_host() && rack.is_in_service();
        let is_below_rack = |id: RackId| {
            let ip = self.address_of(id).map(|address| *address.ip());
            run.members.values().any(|member| member.rack.is_some() && Some(member.worker.ip) == ip)
        };
        let free = self.racks.iter().filter(|(_, rack)| is_free(rack)).map(|(id, _)| *id);
        free.filter(|id| !is_below_rack(*id)).collect()
    }

    /// The address of a rack or parameter host, with its port for contributions of shard 0.
    pub(super) fn address_of(&self, id: RackId) -> Option<SocketAddrV4> {
        let rack = self.racks.get(&id)?;
        Some(SocketAddrV4::new(rack.plane.address.unwrap_or(rack.ip), rack.plane.base_port))
    }

    /// The largest job number that all aggregators and parameter hosts have.
    pub(super) fn most_jobs(&self) -> u16 {
        let planes = self.racks.values().map(|rack| &rack.plane).chain([&self.plane]);
        planes.map(|plane| plane.jobs).min().unwrap_or(0).min(MAX_JOBS as u16 - 1)
    }

    /// Job numbers that no job gets: those that some aggregator does not have, and those that parameter hosts
    /// still have of jobs that are unknown here.
    pub(super) fn withheld(&self) -> HashSet<u16> {
        let kept = self.racks.values().flat_map(|rack| rack.plane.kept.iter().copied());
        kept.chain(self.most_jobs() + 1..MAX_JOBS as u16).collect()
    }

    pub(super) fn hosts_missing(run: &Run) -> JobFailure {
        let terms = run.terms.iter().flat_map(|terms| &terms.parameter_hosts);
        let hosts: Vec<_> = terms.map(ToString::to_string).collect();
        let message = format!(
            "the control plane was started anew, and the parameter hosts at {} did not come back with the \
            job's sums",
            hosts.join(", ")
        );
        JobFailure::new(FailureKind::ParameterHost, &[], message)
    }
}

impl Run {
    fn asked_hosts(&self) -> Option<u16> {
        self.members.values().find_map(|member| member.asked.spec.parameter_hosts)
    }

    pub(super) fn is_dynamic(&self) -> bool {
        self.shared.is_some() || self.members.values().any(|member| member.asked.is_dynamic())
    }

    /// Whether this rack or parameter host takes part in it.
    pub(super) fn needs(&self, rack: RackId) -> bool {
        self.is_below(rack) || self.is_at_host(rack)
    }

    /// Whether a parameter host has this run, or is to remove it.
    pub(super) fn is_at_host(&self, host: RackId) -> bool {
        self.install != InstallState::Absent
            && self.shared.as_ref().is_some_and(|shared| shared.hosts.contains(&host))
    }
}

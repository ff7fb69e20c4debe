//! Parameter hosts of dynamic jobs (ATP section 3.6): which there are, and which of them a job gets.

use std::{collections::HashSet, net::SocketAddrV4};

use sumac_wire::MAX_HOSTS;

use super::{
    Coordinator, End, Hold, Phase, RackId, RunId, Time,
    racks::Rack,
    restore::{Gaps, Known},
    run::{Run, Shared},
    terms::{Limits, Terms},
};
use crate::{
    dynamic::{DEFAULT_WINDOW, DynamicWishes, Mode},
    failure::JobFailure,
    plane::PlaneKind,
    refusal::Refusal,
};

/// How long a job whose ranks are all there waits for parameter hosts: they start with the workers, and enter anew within
/// this after they have lost sight of the control plane.
pub(super) const HOST_PATIENCE: Time = Time::from_secs(3);
/// Parameter hosts at once: one on each worker of the largest job.
pub(super) const MOST_HOSTS: usize = sumac_wire::MAX_WORKERS * sumac_wire::MAX_WORKERS;

impl Coordinator {
    /// Whether a run has to wait for parameter hosts.
    pub(super) fn lacks_hosts(&self, run: &Run) -> bool {
        let wanted = run.wishes().map_or(0, |wishes| wishes.hosts.unwrap_or(1));
        wanted > 0 && self.free_hosts(run).len() < usize::from(wanted)
    }

    /// Gives a run that waits another number when a parameter host that has entered meanwhile keeps a job under its own.
    pub(super) fn renumber(&mut self, id: RunId) -> Result<(), Refusal> {
        let kept = self.kept();
        let is_taken = |run: &&mut Run| run.is_waiting() && kept.contains(&run.job);
        let Some(run) = self.runs.get_mut(&id).filter(is_taken) else { return Ok(()) };
        run.job = self.names.begin(&run.name, id, &kept)?;
        Ok(())
    }

    /// Whether that is all that it waits for.
    pub(super) fn waits_for_hosts(&self, run: &Run) -> bool {
        let is_free = self.names.get(&run.name).is_some_and(|name| name.on_plane.is_none());
        run.phase == Phase::Ready && is_free && self.lacks_hosts(run)
    }

    /// The refusal of a run that lacks some.
    pub(super) fn no_hosts(&self, run: &Run) -> Refusal {
        let wanted = run.wishes().and_then(|wishes| wishes.hosts).unwrap_or(1);
        Refusal::Hosts { wanted, registered: self.free_hosts(run).len() }
    }

    /// The parameter hosts of a run: those that have the fewest jobs. None for a static one.
    pub(super) fn choose_hosts(&self, run: &Run) -> Result<Vec<RackId>, Refusal> {
        let Some(wishes) = run.wishes() else { return Ok(Vec::new()) };
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
        if free.iter().filter(|host| is_able(host)).count() >= wishes.hosts.unwrap_or(1).into() {
            free.retain(is_able);
        }
        let load = |host: &RackId| self.runs.values().filter(|run| run.is_at_host(*host)).count();
        free.sort_by_cached_key(|host| (load(host), self.racks.get(host).map(|rack| rack.name.clone())));
        free.truncate(wishes.hosts.map_or(MAX_HOSTS, usize::from));
        Ok(free)
    }

    /// What a dynamic run gets instead of slots of its own.
    pub(super) fn share(
        &self,
        racks: &[Option<RackId>],
        wishes: DynamicWishes,
        terms: &Terms,
        limits: &Limits,
        mut hosts: Vec<RackId>,
    ) -> Result<Shared, Refusal> {
        let invalid = |what: String| Err(Refusal::Invalid { what });
        match wishes.hosts {
            Some(asked) if asked > terms.shards => {
                return invalid(format!(
                    "{asked} parameter hosts for {} shards: each sums for whole shards; ask for fewer, or for more shards",
                    terms.shards
                ));
            }
            _ => hosts.truncate(terms.shards.into()),
        }
        let slots = match wishes.slots {
            _ if self.plane.kind == PlaneKind::None => 0,
            Some(asked) if asked > limits.dynamic_slots => {
                return invalid(format!(
                    "{asked} slots of each shard: the aggregators share out {}; ask for fewer",
                    limits.dynamic_slots
                ));
            }
            asked => asked.unwrap_or(limits.dynamic_slots),
        };
        if slots == 0 && self.plane.kind != PlaneKind::None {
            return invalid(
                "an aggregator of this job has no slots for dynamic jobs: attach it with --dynamic-slots N"
                    .into(),
            );
        }
        let known = racks.iter().flatten().filter_map(|id| {
            let rack = self.racks.get(id)?;
            let (name, ip, base_port) = (rack.name.clone(), rack.ip, rack.plane.base_port);
            Some((*id, Known { name, ip, base_port }))
        });
        Ok(Shared {
            slots,
            window: wishes.window.unwrap_or(DEFAULT_WINDOW),
            linear: wishes.linear,
            congestion: wishes.congestion,
            addresses: hosts.iter().filter_map(|host| self.host_address(*host)).collect(),
            hosts,
            racks: known.collect(),
            root_port: self.plane.base_port,
            gaps: Gaps::new(),
            resume: Vec::new(),
        })
    }

    /// Those that can take a run. One on a worker below a rack cannot: what the root sends to it, the rack's aggregator takes
    /// for results of its own.
    fn free_hosts(&self, run: &Run) -> Vec<RackId> {
        let is_free = |rack: &Rack| rack.is_host() && rack.is_in_service() && !rack.keeps(run.job);
        let is_below_rack = |id: RackId| {
            let ip = self.host_address(id).map(|address| *address.ip());
            run.seats.values().any(|seat| seat.rack.is_some() && Some(seat.worker.ip) == ip)
        };
        let free = self.racks.iter().filter(|(_, rack)| is_free(rack)).map(|(id, _)| *id);
        free.filter(|id| !is_below_rack(*id)).collect()
    }

    /// Where a parameter host takes contributions of shard 0.
    pub(super) fn host_address(&self, host: RackId) -> Option<SocketAddrV4> {
        let rack = self.racks.get(&host)?;
        Some(SocketAddrV4::new(rack.plane.address.unwrap_or(rack.ip), rack.plane.base_port))
    }

    /// Job numbers that parameter hosts still have of an earlier control plane.
    pub(super) fn kept(&self) -> HashSet<u16> {
        self.racks.values().flat_map(|rack| rack.plane.kept.iter().copied()).collect()
    }

    /// Ends all runs that a parameter host sums for.
    pub(super) fn fail_at_host(&mut self, id: RackId, what: &str) {
        let Some(host) = self.racks.get(&id) else { return };
        let failure = JobFailure::parameter_host(&host.name, host.ip, what);
        let served = self.runs.iter().filter(|(_, run)| run.is_live() && run.is_at_host(id));
        for run in served.map(|(run, _)| *run).collect::<Vec<_>>() {
            self.end(run, End::Failed(failure.clone()));
        }
    }
}

impl Mode {
    /// What is asked of a dynamic job.
    pub(super) fn dynamic(self) -> Option<DynamicWishes> {
        match self {
            Mode::Static => None,
            Mode::Dynamic(wishes) => Some(wishes),
        }
    }
}

impl Run {
    /// What its ranks together want of a dynamic job; none when it is static.
    fn wishes(&self) -> Option<DynamicWishes> {
        Terms::mode(self.seats.values().map(|seat| &seat.wishes)).dynamic()
    }

    /// Whether it is one.
    pub(super) fn is_dynamic(&self) -> bool {
        self.shared.is_some() || self.wishes().is_some()
    }

    /// Whether a parameter host has this run, or is to give it up.
    pub(super) fn is_at_host(&self, host: RackId) -> bool {
        self.hold != Hold::Nothing && self.shared.as_ref().is_some_and(|shared| shared.hosts.contains(&host))
    }
}

//! Running dynamic jobs of a control plane that is no more: this one takes them up when all members have said what they
//! had, and all parameter hosts that they keep it. Aggregators get such a job back as any that they have lost.

use super::{
    Action, Coordinator, Door, End, Hold, JoinRequest, Layout, MemberId, RackId, RunId, Time,
    restore::{Gap, Known},
    run::{Phase, Run, Seat, Shared, Slots},
    terms::Terms,
};
use crate::{
    assignment::Assignment,
    failure::JobFailure,
    plane::{LastEpoch, PlaneKind, WorkerInstall},
    post::OperationOrder,
    refusal::Refusal,
};

/// How many jobs that have ended are remembered: those whose members may not have heard of it.
const MOST_ENDED: usize = 1024;

impl Coordinator {
    /// The run that gathers the members of a job of which this one `had` its part.
    pub(super) fn claimed_run(&mut self, request: &JoinRequest, had: &Assignment) -> Result<RunId, Refusal> {
        let job = request.job.clone();
        if had.dynamic.is_none() || request.wishes.order != OperationOrder::Submission {
            return Err(invalid("only dynamic jobs in order of submission go on at another control plane"));
        }
        if self.ended.contains(&had.token) {
            return Err(Refusal::Over { job });
        }
        let Some((id, run)) = self.run_called(&job) else {
            return self.new_claimed_run(request, had);
        };
        if run.is_live() && run.token == had.token && run.epoch != had.epoch {
            return Err(Refusal::Replaced { job, rank: request.rank });
        }
        if let Some(seat) = run.seats.get(&request.rank).filter(|seat| !seat.departed) {
            return Err(Refusal::RankTaken { job, rank: request.rank, holder: seat.worker.ip });
        }
        if !run.is_waiting()
            || !run.is_claimed && self.names.get(&job).is_some_and(|name| name.on_plane.is_some())
        {
            return Err(Refusal::Held { job, ranks: run.present() });
        }
        if !run.is_claimed {
            // Those who came to open it anew shall wait until it has ended.
            self.end(id, End::Refused(Refusal::Held { job, ranks: vec![request.rank] }));
            return self.new_claimed_run(request, had);
        }
        if let Some(refusal) = run.mismatch(request.rank, &request.wishes) {
            return Err(refusal);
        }
        if run.claims().any(|(_, other)| !is_same(other, had)) {
            return Err(invalid("the others had another incarnation of the job"));
        }
        Ok(id)
    }

    /// Gives a worker its own place once more, in a run that it has come back to before: the answer to that was lost, or it
    /// was told falsely that nobody knows it. What it had of the run's events it does not hear again.
    pub(super) fn retake(&mut self, now: Time, request: &JoinRequest, had: &Assignment) -> Option<MemberId> {
        let (id, run) = self.run_called(&request.job)?;
        let is_same = (run.job, run.token) == (had.job, had.token) && had.epoch <= run.epoch;
        let is_it = |seat: &&Seat| is_same && !run.is_over() && seat.is_of(request);
        run.seats.get(&request.rank).filter(is_it)?;
        let member = self.new_member();
        let run = self.runs.get_mut(&id)?;
        let seat = run.seats.get_mut(&request.rank)?;
        let before = std::mem::replace(&mut seat.member, member);
        (seat.seen, seat.vacant, seat.posted, seat.since) = (now, None, 0, seat.heard);
        tracing::info!(name = run.name, job = run.job, rank = request.rank, "a worker came back once more");
        self.forget(before);
        self.members.insert(member, (id, request.rank));
        Some(member)
    }

    /// The run that has a name, or that the planes still have under it.
    fn run_called(&self, name: &str) -> Option<(RunId, &Run)> {
        let name = self.names.get(name)?;
        let id = name.current.or(name.on_plane)?;
        Some((id, self.runs.get(&id)?))
    }

    fn new_claimed_run(&mut self, request: &JoinRequest, had: &Assignment) -> Result<RunId, Refusal> {
        let id = RunId(self.next_run);
        self.names.adopt(&request.job, id, LastEpoch { job: had.job, epoch: had.epoch })?;
        self.next_run += 1;
        let mut run = Run::new(request, had.job, had.token);
        (run.epoch, run.is_claimed) = (had.epoch, true);
        tracing::info!(name = run.name, job = run.job, epoch = run.epoch, "an earlier control plane's job");
        self.runs.insert(id, run);
        Ok(id)
    }

    /// Takes a run up if all of its ranks and parameter hosts are there.
    pub(super) fn take_up(&mut self, id: RunId) {
        let Some(run) = self.runs.get(&id).filter(|run| run.phase == Phase::Ready) else { return };
        let hosts = self.keepers(run);
        let Some((_, had)) = run.claims().next().filter(|(_, had)| had.hosts() == hosts.len()) else {
            return;
        };
        let racks: Vec<_> = run.seats.values().map(|seat| seat.rack).collect();
        let layout = Layout::new(&racks, had.plane != PlaneKind::None);
        if !run.claims().all(|(rank, had)| is_placed(&layout, rank, had)) {
            let what = "its workers are below other aggregators than they were; let them open it anew";
            return self.end(id, End::Refused(invalid(what)));
        }
        let (terms, shared) = (run.claimed_terms(had), self.claimed_share(run, had, hosts));
        if let Some(name) = self.names.get_mut(&run.name) {
            name.on_plane = Some(id);
        }
        let Some(run) = self.runs.get_mut(&id) else { return };
        (run.terms, run.layout, run.hold) = (Some(terms), layout, Hold::Installed);
        run.slots = Slots::shared(shared.as_ref().map_or(0, |shared| shared.slots));
        run.shared = shared;
        run.enter(Phase::Installing);
        let order = run.order(false);
        self.actions.extend(order.map(|order| Action::Resume(id, order)));
    }

    /// The parameter hosts that members of a claimed run name, as far as they are there and keep it.
    fn keepers(&self, run: &Run) -> Vec<RackId> {
        let mut found: Vec<RackId> = Vec::new();
        let addresses = run.claims().next().and_then(|(_, had)| had.dynamic.as_ref());
        for address in addresses.into_iter().flat_map(|terms| &terms.hosts) {
            let is_it = |id: &&RackId| {
                let keeps =
                    self.racks.get(id).is_some_and(|rack| rack.is_in_service() && rack.keeps(run.job));
                keeps && self.host_address(**id) == Some(*address) && !found.contains(id)
            };
            let keeper = self.racks.keys().find(is_it).copied();
            found.extend(keeper);
        }
        found
    }

    /// What a claimed run shares with others.
    fn claimed_share(&self, run: &Run, had: &Assignment, hosts: Vec<RackId>) -> Option<Shared> {
        let terms = had.dynamic.as_ref()?;
        let known = run.seats.values().filter_map(|seat| {
            let (id, had) = (seat.rack?, seat.had.as_ref()?);
            let rack = self.racks.get(&id)?;
            Some((id, Known { name: rack.name.clone(), ip: rack.ip, base_port: had.base_port }))
        });
        let at_root = run.seats.values().find(|seat| seat.rack.is_none()).and_then(|seat| seat.had.as_ref());
        Some(Shared {
            slots: terms.slots,
            window: terms.window,
            linear: terms.linear,
            congestion: terms.congestion,
            hosts,
            addresses: terms.hosts.clone(),
            racks: known.collect(),
            root_port: at_root.map_or(self.plane.base_port, |had| had.base_port),
            gaps: super::restore::Gaps::new(),
            resume: Vec::new(),
        })
    }

    /// The parameter hosts of a claimed run have taken it up, or not.
    pub fn on_resumed(&mut self, now: Time, id: RunId, result: Result<(), String>) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        match result {
            Ok(()) if run.phase == Phase::Installing => {
                tracing::info!(name = run.name, job = run.job, epoch = run.epoch, "job goes on here");
                let doors = run.claims().map(|(_, had)| door(had)).collect();
                let places: Vec<_> = run.seats.values().map(|seat| seat.rack).chain([None]).collect();
                if let Some(shared) = run.shared.as_mut().filter(|shared| shared.slots > 0) {
                    shared.gaps.extend(places.into_iter().map(|at| (at, Gap::Due(now))));
                }
                run.seats.values_mut().for_each(|seat| seat.had = None);
                run.enter(Phase::Running(doors));
                let last = LastEpoch { job: run.job, epoch: run.epoch };
                self.names.raise(&[last]);
            }
            // It ended meanwhile.
            Ok(()) => self.remove(id),
            Err(what) => {
                self.end(id, End::Failed(JobFailure::plane(&what)));
                self.remove(id);
            }
        }
    }
}

impl Coordinator {
    /// A run has ended here: none of its members can have it taken up again.
    pub(super) fn remember_end(&mut self, id: RunId) {
        let is_known = |run: &&Run| run.is_dynamic() && !matches!(run.phase, Phase::Over(End::Refused(_)));
        let Some(run) = self.runs.get(&id).filter(is_known) else { return };
        if self.ended.len() == MOST_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(run.token);
    }
}

impl Run {
    /// What each rank had, of a run that is yet to be taken up.
    fn claims(&self) -> impl Iterator<Item = (usize, &Assignment)> {
        self.seats.iter().filter_map(|(rank, seat)| Some((usize::from(*rank), seat.had.as_ref()?)))
    }

    fn claimed_terms(&self, had: &Assignment) -> Terms {
        Terms {
            elements: had.elements,
            shards: had.shards,
            slots: None,
            checksum: self.seats.values().any(|seat| seat.wishes.checksum),
            order: OperationOrder::Submission,
            dynamic: Terms::mode(self.seats.values().map(|seat| &seat.wishes)).dynamic(),
        }
    }

    /// The failure of a claimed run whose parameter hosts did not come back with what they had summed.
    pub(super) fn forgotten(&self) -> JobFailure {
        let hosts = self.claims().next().and_then(|(_, had)| had.dynamic.as_ref());
        let hosts: Vec<_> =
            hosts.into_iter().flat_map(|terms| &terms.hosts).map(ToString::to_string).collect();
        JobFailure::forgotten(&hosts)
    }
}

impl Seat {
    /// Whether this place is that of the worker that comes with what it had.
    fn is_of(&self, request: &JoinRequest) -> bool {
        let address = |worker: &WorkerInstall| (worker.ip, worker.port);
        address(&self.worker) == address(&request.worker)
            && self.rack == request.rack
            && self.wishes.order == OperationOrder::Submission
            && (self.had.is_none() || self.had == request.resumes)
            && !(self.departed || self.is_new)
    }
}

impl Assignment {
    /// How many parameter hosts it names.
    fn hosts(&self) -> usize {
        self.dynamic.as_ref().map_or(0, |terms| terms.hosts.len())
    }
}

/// Whether two members had the same job: all but what each has for itself.
fn is_same(one: &Assignment, other: &Assignment) -> bool {
    let terms = |had: &Assignment| {
        let terms = had.dynamic.clone()?;
        Some((terms.slots, terms.window, terms.hosts, terms.linear, terms.congestion, terms.fan_in_1))
    };
    let numbers = |had: &Assignment| (had.job, had.epoch, had.token, had.elements, had.shards);
    numbers(one) == numbers(other) && terms(one) == terms(other)
}

/// Whether a rank had the place that it has in this layout.
fn is_placed(layout: &Layout, rank: usize, had: &Assignment) -> bool {
    let (Some(spot), Some(terms)) = (layout.spot(rank), &had.dynamic) else { return false };
    let above = (layout.fan_in_1(), layout.bitmap_1(spot), layout.is_beside_racks(spot));
    (usize::from(had.rack_rank), usize::from(had.rack_world)) == (spot.bit, spot.fan_in)
        && (terms.fan_in_1, terms.bitmap_1, terms.beside_root) == above
}

fn door(had: &Assignment) -> Door {
    Door {
        aggregator_ip: had.aggregator_ip,
        base_port: had.base_port,
        plane: had.plane,
        result_group: had.result_group,
        rack_rank: had.rack_rank,
        rack_world: had.rack_world,
    }
}

fn invalid(what: &str) -> Refusal {
    Refusal::Invalid { what: what.into() }
}

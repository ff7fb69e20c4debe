//! Aggregators of racks, which are below this one (SwitchML section 7), and parameter hosts: their
//! registration, and the consequences of their loss.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::Ipv4Addr,
};

use sumac_job::{JobTerms, Mode};
use sumac_wire::{MAX_WORKERS, PAGE_ELEMENTS};

use super::{
    Coordinator,
    agreement::{Limits, agree},
    hosts::MAX_PARAMETER_HOSTS,
    ids::{RackId, RunId},
    rack::{MAX_RACKS_UP, RACK_NAME_LEN, Rack, RackEntry},
    record::Record,
    run::Run,
    time::{PLANE_TIMEOUT, Time},
};
use crate::{
    failure::{FailureKind, JobFailure, Refusal, invalid},
    message::End,
    plane::{KnownJob, PlaneInfo, PlaneKind, TakenOver},
};

impl Coordinator {
    /// The rack of this name and address, if it has entered there: through the rack `above`, or here.
    pub fn entered_rack(&self, name: &str, ip: Ipv4Addr, above: Option<RackId>) -> Option<RackId> {
        let id = self.rack_named(name, false)?;
        let is_it = |rack: &Rack| rack.is_connected && rack.ip == ip && rack.above == above;
        self.racks.get(&id).is_some_and(is_it).then_some(id)
    }

    /// A rack and those above it, up to the one below the root; one more than may be where it does not end.
    fn way_up(&self, rack: RackId) -> impl Iterator<Item = RackId> {
        let above = |rack: &RackId| self.racks.get(rack).and_then(|rack| rack.above);
        std::iter::successors(Some(rack), above).take(MAX_RACKS_UP + 1)
    }

    /// The racks on the ways up from these that are not below the root itself, each with the one above it.
    pub(super) fn uplinks(&self, racks: impl IntoIterator<Item = RackId>) -> BTreeMap<RackId, RackId> {
        let all = racks.into_iter().flat_map(|rack| self.way_up(rack));
        all.filter_map(|rack| Some((rack, self.racks.get(&rack)?.above?))).collect()
    }

    /// Refuses a worker of a dynamic job whose rack is not below the root itself.
    pub(super) fn check_depth(&self, rank: u16, rack: Option<RackId>) -> Result<(), Refusal> {
        let Some(rack) = rack.and_then(|rack| self.racks.get(&rack)) else { return Ok(()) };
        let Some(above) = rack.above else { return Ok(()) };
        let above = self.racks.get(&above).map_or("", |above| &above.name);
        invalid(format!(
            "rank {rank} joined at rack `{}`, which is below rack `{above}`: dynamic jobs have two levels of \
            aggregators; let it join at a rack below the root itself, or at the root, or make the job static",
            rack.name
        ))
    }

    /// Refuses a rack that cannot be below another, with the reason.
    fn check_above(&self, above: RackId, name: &str, is_host: bool) -> Result<(), String> {
        if is_host {
            return Err("a parameter host registers with the root: give the root's address".into());
        }
        let Some(rack) = self.racks.get(&above).filter(|rack| !rack.is_host()) else {
            return Err("the rack above is gone".into());
        };
        if self.way_up(above).any(|rack| self.racks.get(&rack).is_some_and(|rack| rack.name == name)) {
            return Err(format!("{} is below it: a tree of racks has no circles", rack.title()));
        }
        if self.way_up(above).count() >= MAX_RACKS_UP {
            return Err(format!(
                "there are {MAX_RACKS_UP} racks from {} up to the root already, which is the most",
                rack.title()
            ));
        }
        Ok(())
    }

    /// The running jobs that the rack or parameter host of this name has. It is to remove all others.
    pub fn known_jobs(&self, name: &str, is_host: bool) -> Vec<KnownJob> {
        let Some(id) = self.rack_named(name, is_host) else { return Vec::new() };
        let has = |run: &&Run| run.is_live() && run.needs(id);
        self.runs.values().filter(has).filter_map(Run::known).collect()
    }

    pub(super) fn rack_named(&self, name: &str, is_host: bool) -> Option<RackId> {
        let is_it = |rack: &Rack| rack.name == name && rack.is_host() == is_host;
        self.racks.iter().find(|(_, rack)| is_it(rack)).map(|(id, _)| *id)
    }

    /// A rack's aggregator, or a parameter host, enters, and keeps the id that its name has. The name of
    /// another is refused, in a text for people.
    pub fn rack_enters(&mut self, now: Time, entry: RackEntry) -> Result<RackId, String> {
        let RackEntry { name, ip, above, plane, instance, jobs } = entry;
        let is_host = plane.kind == PlaneKind::Parameter;
        if name.is_empty() || name.len() > RACK_NAME_LEN || name.chars().any(char::is_control) {
            return Err(format!("a rack's name has 1 to {RACK_NAME_LEN} bytes and no control characters"));
        }
        let namesake = self.rack_named(&name, is_host);
        if let Some(rack) = namesake.and_then(|id| self.racks.get(&id)).filter(|rack| rack.ip != ip) {
            return Err(format!("a {} is there already, at {}; give another name", rack.title(), rack.ip));
        }
        if let Some(above) = above {
            self.check_above(above, &name, is_host)?;
        }
        let (most, what) =
            if is_host { (MAX_PARAMETER_HOSTS, "parameter hosts") } else { (MAX_WORKERS, "racks") };
        let is_beside = |rack: &Rack| rack.is_host() == is_host && rack.above == above;
        let count = self.racks.values().filter(|rack| is_beside(rack) && rack.name != name).count();
        if count >= most {
            let whose = if above.is_some() { "rack" } else { "root" };
            return Err(format!("there are {most} {what} already, which is all that one {whose} can have"));
        }
        self.names.raise(&jobs.last_epochs);
        let is_recorded = namesake.and_then(|id| self.racks.get(&id)).is_some_and(|rack| rack.is_recorded);
        let (seen, since, away) = (now, now, None);
        let is_open = false;
        let rack = Rack {
            name,
            ip,
            above,
            plane,
            instance,
            is_connected: true,
            is_open,
            seen,
            since,
            is_recorded,
            away,
        };
        self.silence.on_message(now);
        let PlaneInfo { kind, slots, kept, .. } = &rack.plane;
        tracing::info!(%ip, kind = kind.name(), slots, ?kept, "{} entered", rack.title());
        let id = namesake.unwrap_or_else(|| {
            self.next_rack += 1;
            RackId(self.next_rack)
        });
        self.records.push(Record::Rack { id, rack: rack.clone() });
        let before = self.racks.insert(id, rack);
        // Elsewhere in the tree it has none of its jobs.
        let has_moved = before.as_ref().is_some_and(|before| before.above != above);
        let jobs = if has_moved { TakenOver::default() } else { jobs };
        self.rack_is_back(now, id, (before.map_or(0, |rack| rack.instance), instance), &jobs);
        Ok(id)
    }

    /// Jobs that a rack or parameter host has lost since it was here last end, or are installed there again.
    fn rack_is_back(&mut self, now: Time, id: RackId, (before, after): (u64, u64), jobs: &TakenOver) {
        let is_same = before == 0 || before == after;
        let is_lost = |run: &Run| run.is_live() && !(is_same && jobs.jobs.contains(&run.job));
        for run in self.runs_with(|run| run.needs(id) && is_lost(run)) {
            self.mark_run_missing(now, run, Some(id));
            self.fail_run_at(run, id, "was started anew");
        }
    }

    /// The state of a rack's data plane. `false`: no such rack (any more).
    pub fn rack_reports(&mut self, now: Time, id: RackId, report: Result<(u64, PlaneInfo), String>) -> bool {
        let Some(rack) = self.racks.get_mut(&id).filter(|rack| rack.is_connected) else { return false };
        rack.seen = now;
        self.silence.on_message(now);
        match report {
            Ok((instance, plane)) => {
                rack.away = None;
                rack.plane = plane;
                let before = std::mem::replace(&mut rack.instance, instance);
                if before != instance {
                    self.fail_with(id, &format!("lost its state (instance {before:x} -> {instance:x})"));
                    self.mark_missing(now, Some(id));
                }
            }
            Err(why) => {
                let (since, why) = rack.away.get_or_insert((now, why)).clone();
                let away = now.saturating_sub(since);
                if away >= PLANE_TIMEOUT {
                    self.fail_with(id, &format!("has been out of service for {away:.1?}: {why}"));
                }
            }
        }
        true
    }

    pub fn rack_heartbeat(&mut self, now: Time, id: RackId) {
        if let Some(rack) = self.racks.get_mut(&id) {
            rack.seen = now;
            self.silence.on_message(now);
        }
    }

    /// `is_excused`: the silence of all counts from now on.
    pub(super) fn expire_racks(&mut self, now: Time, is_excused: bool) {
        if is_excused {
            self.racks.values_mut().for_each(|rack| rack.seen = rack.seen.max(now));
        }
        let is_silent = |rack: &Rack| now.saturating_sub(rack.seen) >= self.patience(rack.is_open);
        let silent = self.racks.iter().filter(|(_, rack)| is_silent(rack)).map(|(id, _)| *id);
        silent.collect::<Vec<_>>().into_iter().for_each(|id| self.rack_lost(id));
    }

    fn rack_lost(&mut self, id: RackId) {
        self.fail_with(id, "stopped answering");
        let Some(rack) = self.racks.get_mut(&id) else { return };
        if std::mem::take(&mut rack.is_connected) {
            tracing::warn!(name = rack.name, ip = %rack.ip, "{} lost: it stopped answering", rack.title());
            self.lost_racks.push(id);
        }
        // Its name stays known while a job waits for it.
        if !self.runs.values().any(|run| !run.is_over() && run.needs(id)) {
            self.racks.remove(&id);
            self.records.push(Record::RackGone(id));
        }
    }

    /// A rack that is no more: its connection is to be closed. Not one of the actions, since
    /// one of those may be waiting for that very rack.
    pub fn poll_lost_rack(&mut self) -> Option<RackId> {
        self.lost_racks.pop()
    }

    fn fail_with(&mut self, id: RackId, what: &str) {
        self.runs_with(|_| true).into_iter().for_each(|run| self.fail_run_at(run, id, what));
    }

    fn fail_run_at(&mut self, id: RunId, at: RackId, what: &str) {
        let (Some(run), Some(rack)) = (self.runs.get(&id), self.racks.get(&at)) else { return };
        if run.is_over() {
            return;
        }
        if run.is_live() && run.is_at_host(at) {
            let failure = match rack.instance {
                0 => Coordinator::hosts_missing(run),
                _ => {
                    let message = format!("the {} ({}) {what}", rack.title(), rack.ip);
                    JobFailure::new(FailureKind::ParameterHost, &[], message)
                }
            };
            return self.end(id, End::Failed(failure));
        }
        if run.is_below(at) && !run.outlives_aggregators() {
            let message = format!("the aggregator of {} ({}) {what}", rack.title(), rack.ip);
            let end = match run.is_live() {
                true => End::Failed(JobFailure::new(FailureKind::Rack, &[], message)),
                false => End::Refused(Refusal::plane(&message)),
            };
            self.end(id, end);
        }
    }

    pub(super) fn limits(&self, run: &Run, hosts: &[RackId]) -> Result<Limits, Refusal> {
        let mut below: HashMap<Option<RackId>, (u16, usize)> = HashMap::new();
        let is_dynamic = run.is_dynamic();
        let mode = run.members.values().next().map_or(Mode::default(), |member| member.asked.mode());
        let has_two_levels = mode == Mode::Static && run.members.values().any(|member| member.rack.is_some());
        let of_aggregator = |plane: &PlaneInfo| match has_two_levels {
            true => plane.limits(mode).at_two_levels(),
            false => plane.limits(mode),
        };
        let mut limits = of_aggregator(&self.plane);
        if is_dynamic {
            limits.max_elements = limits.max_elements.min(PAGE_ELEMENTS as u16);
        }
        for host in hosts.iter().filter_map(|host| self.racks.get(host)) {
            limits = limits.and(host.plane.limits(mode).at(&host.title()));
        }
        for (rank, member) in &run.members {
            below.entry(member.rack).or_insert((*rank, 0)).1 += 1;
            if is_dynamic {
                self.check_depth(*rank, member.rack)?;
            }
            for id in member.rack.into_iter().flat_map(|id| self.way_up(id)) {
                let gone =
                    || Refusal::plane(&format!("rank {rank} is below a rack whose aggregator is gone"));
                let rack = self.racks.get(&id).ok_or_else(gone)?;
                limits = limits.and(of_aggregator(&rack.plane).at(&rack.title()));
            }
        }
        self.check_tree(&below, is_dynamic)?;
        if mode == Mode::Static {
            self.check_middles(&below)?;
        }
        Ok(limits)
    }

    /// Refuses a tree that the aggregators cannot be: of each aggregator, the first rank below it and the
    /// number of ranks.
    fn check_tree(
        &self,
        below: &HashMap<Option<RackId>, (u16, usize)>,
        is_dynamic: bool,
    ) -> Result<(), Refusal> {
        let is_bare = self.plane.kind == PlaneKind::None;
        let in_rack = below.iter().find_map(|(rack, (rank, _))| Some(((*rack)?, *rank)));
        if let (Some((here, _)), Some((rack, there)), false) = (below.get(&None), in_rack, is_dynamic) {
            let name = self.racks.get(&rack).map_or("", |rack| &rack.name);
            return invalid(format!(
                "rank {here} joined at the root itself and rank {there} at rack `{name}`: let all workers of \
                a job join at racks, or all at the root"
            ));
        }
        if let Some((_, rank)) = in_rack.filter(|_| is_bare) {
            return invalid(format!(
                "rank {rank} joined at a rack, but the root has no aggregator to add up racks' sums (--plane \
                none): let all workers join at the root, or give it one"
            ));
        }
        let beside = below.get(&None).map_or(0, |(_, workers)| *workers);
        let under_root = below.keys().flatten().filter_map(|rack| self.way_up(*rack).last());
        let racks = under_root.collect::<HashSet<_>>().len();
        if racks > 0 && racks + beside > MAX_WORKERS {
            return invalid(format!(
                "{racks} racks and {beside} workers beside them below one root: it takes {MAX_WORKERS}"
            ));
        }
        match below.values().find(|(_, workers)| *workers > MAX_WORKERS && !is_bare) {
            Some((rank, workers)) => invalid(format!(
                "{workers} workers (rank {rank} and others) below one aggregator: it takes {MAX_WORKERS}"
            )),
            None => Ok(()),
        }
    }

    /// Refuses racks between others and the root that cannot be there. The number below each is checked when
    /// they enter.
    fn check_middles(&self, below: &HashMap<Option<RackId>, (u16, usize)>) -> Result<(), Refusal> {
        for (_, above) in self.uplinks(below.keys().copied().flatten()) {
            let Some(rack) = self.racks.get(&above) else { continue };
            if let Some((rank, _)) = below.get(&Some(above)) {
                return invalid(format!(
                    "rank {rank} joined at {}, which has racks of the job below it: let all workers join at \
                    the lowest racks",
                    rack.title()
                ));
            }
            if rack.plane.kind == PlaneKind::P4 {
                return invalid(format!(
                    "{} is between other racks and the root, and has a P4 switch for its aggregator, which \
                    can only be the root or a rack of workers: give it --plane ebpf or --plane host",
                    rack.title()
                ));
            }
        }
        Ok(())
    }

    pub(super) fn terms(&self, run: &Run, hosts: &[RackId]) -> Result<(JobTerms, Limits), Refusal> {
        let limits = self.limits(run, hosts)?;
        let asked = run.members.iter().map(|(rank, member)| (*rank, &member.asked));
        let longest_outage_s = u16::try_from(self.longest_outage.as_secs()).unwrap_or(u16::MAX);
        Ok((JobTerms { longest_outage_s, ..agree(asked, &limits)? }, limits))
    }
}

//! Aggregators of racks, which are below this one (SwitchML section 7), and parameter hosts: who is there, and what their
//! loss means.

use std::{collections::HashMap, net::Ipv4Addr};

use sumac_wire::MAX_WORKERS;

use super::{
    Coordinator, End, PLANE_PATIENCE, Run, SILENCE, Time,
    hosts::MOST_HOSTS,
    terms::{Limits, Terms},
};
use crate::{
    failure::JobFailure,
    plane::{LastEpoch, PlaneInfo, PlaneKind},
    refusal::Refusal,
};

/// Longest name of a rack, in bytes.
pub const RACK_NAME_LEN: usize = 64;

/// Names one session of a rack's aggregator, or of a parameter host. Random, so that nobody guesses another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RackId(pub u64);

/// What a rack's aggregator, or a parameter host, says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RackEntry {
    /// How people call it.
    pub name: String,
    /// Where it is, as seen from here: also where its sums come from.
    pub ip: Ipv4Addr,
    /// Its data plane.
    pub plane: PlaneInfo,
    /// Names the memory of its slots.
    pub instance: u64,
    /// The incarnations that its slots know.
    pub last_epochs: Vec<LastEpoch>,
}

#[derive(Debug)]
pub(super) struct Rack {
    pub name: String,
    pub ip: Ipv4Addr,
    pub plane: PlaneInfo,
    instance: u64,
    pub seen: Time,
    away: Option<(Time, String)>,
}

impl Rack {
    /// Whether it is a parameter host.
    pub fn is_host(&self) -> bool {
        self.plane.kind == PlaneKind::Parameter
    }

    /// Whether its plane answers it.
    pub fn is_in_service(&self) -> bool {
        self.away.is_none()
    }

    /// Why it does not.
    pub fn why_away(&self) -> Option<&str> {
        self.away.as_ref().map(|(_, why)| why.as_str())
    }

    /// Whether it is a parameter host that keeps a job of an earlier control plane under this number.
    pub fn keeps(&self, job: u16) -> bool {
        self.is_host() && self.plane.kept.contains(&job)
    }

    /// What people call it.
    fn title(&self) -> String {
        title(self.is_host(), &self.name)
    }
}

fn title(is_host: bool, name: &str) -> String {
    let what = if is_host { "parameter host" } else { "rack" };
    format!("{what} `{name}`")
}

impl Coordinator {
    /// A rack's aggregator, or a parameter host, offers itself under an unused number. Its earlier self is gone then; somebody else's name is
    /// refused, in words for people.
    pub fn rack_enters(&mut self, now: Time, id: RackId, entry: RackEntry) -> Result<(), String> {
        let RackEntry { name, ip, plane, instance, last_epochs } = entry;
        let is_host = plane.kind == PlaneKind::Parameter;
        if name.is_empty() || name.len() > RACK_NAME_LEN || name.chars().any(char::is_control) {
            return Err(format!("a rack's name has 1 to {RACK_NAME_LEN} bytes and no control characters"));
        }
        let is_namesake = |rack: &Rack| rack.name == name && rack.is_host() == is_host;
        if let Some((other, rack)) = self.racks.iter().find(|(_, rack)| is_namesake(rack)) {
            if rack.ip != ip {
                return Err(format!(
                    "a {} is there already, at {}; give another name",
                    rack.title(),
                    rack.ip
                ));
            }
            let other = *other;
            self.rack_gone(other, "was started anew");
        }
        let (most, what) = if is_host { (MOST_HOSTS, "parameter hosts") } else { (MAX_WORKERS, "racks") };
        if self.racks.values().filter(|rack| rack.is_host() == is_host).count() >= most {
            return Err(format!("there are {most} {what} already, which is all that one root can have"));
        }
        self.names.raise(&last_epochs);
        let kind = plane.kind.name();
        tracing::info!(name, %ip, kind, slots = plane.slots, kept = ?plane.kept, "{} entered", title(is_host, &name));
        self.racks.insert(id, Rack { name, ip, plane, instance, seen: now, away: None });
        if !is_host {
            self.rack_is_back(now, id);
        }
        Ok(())
    }

    /// What a rack says of its data plane. `false`: no such rack (any more).
    pub fn rack_reports(&mut self, now: Time, id: RackId, report: Result<(u64, PlaneInfo), String>) -> bool {
        let Some(rack) = self.racks.get_mut(&id) else { return false };
        rack.seen = now;
        match report {
            Ok((instance, plane)) => {
                rack.away = None;
                rack.plane = plane;
                let before = std::mem::replace(&mut rack.instance, instance);
                if before != instance {
                    let what = format!("lost its state (instance {before:x} -> {instance:x})");
                    self.fail_with(id, &what);
                    self.open_gaps(now, Some(id));
                }
            }
            Err(why) => {
                let (since, why) = rack.away.get_or_insert((now, why)).clone();
                let away = now.saturating_sub(since);
                if away >= PLANE_PATIENCE {
                    self.fail_with(id, &format!("has been out of service for {away:.1?}: {why}"));
                }
            }
        }
        true
    }

    /// Racks that do not report are dead.
    pub(super) fn expire_racks(&mut self, now: Time, held_up: bool) {
        if held_up {
            self.racks.values_mut().for_each(|rack| rack.seen = now);
        }
        let is_silent = |rack: &Rack| now.saturating_sub(rack.seen) >= SILENCE;
        let silent: Vec<RackId> =
            self.racks.iter().filter(|(_, rack)| is_silent(rack)).map(|(id, _)| *id).collect();
        for id in silent {
            self.rack_gone(id, "stopped answering");
        }
    }

    /// A rack that is no more: its session is to be forgotten, and what it was told to do. Not one of the actions, since
    /// one of those may be waiting for that very rack.
    pub fn poll_lost_rack(&mut self) -> Option<RackId> {
        self.lost_racks.pop()
    }

    fn rack_gone(&mut self, id: RackId, what: &str) {
        self.fail_with(id, what);
        if let Some(rack) = self.racks.remove(&id) {
            tracing::warn!(name = rack.name, ip = %rack.ip, "{} lost: it {what}", rack.title());
            self.lost_racks.push(id);
        }
    }

    /// Ends all runs that do not go on without this rack or parameter host.
    fn fail_with(&mut self, id: RackId, what: &str) {
        let Some(rack) = self.racks.get(&id) else { return };
        if rack.is_host() {
            return self.fail_at_host(id, what);
        }
        let failure = JobFailure::rack(&rack.name, rack.ip, what);
        let refusal = Refusal::Plane { what: failure.message.clone() };
        let is_bound = |run: &Run| run.is_below(id) && !run.is_over() && !run.outlives_aggregators();
        let below = self.runs.iter().filter(|(_, run)| is_bound(run));
        let below: Vec<_> = below.map(|(id, run)| (*id, run.is_live())).collect();
        for (run, is_live) in below {
            let end = if is_live { End::Failed(failure.clone()) } else { End::Refused(refusal.clone()) };
            self.end(run, end);
        }
    }

    /// What the aggregators between the workers of a run, and its parameter hosts, can do together.
    pub(super) fn limits(&self, run: &Run, hosts: &[RackId]) -> Result<Limits, Refusal> {
        let mut below: HashMap<Option<RackId>, (u16, usize)> = HashMap::new();
        let is_dynamic = run.is_dynamic();
        let mut limits = Limits::of(&self.plane);
        if is_dynamic {
            limits = limits.of_dynamic();
        }
        for host in hosts.iter().filter_map(|host| self.racks.get(host)) {
            limits = limits.and(Limits::of(&host.plane).at(&host.title()));
        }
        for (rank, seat) in &run.seats {
            below.entry(seat.rack).or_insert((*rank, 0)).1 += 1;
            if let Some(id) = seat.rack {
                let rack = self.racks.get(&id).ok_or_else(|| Refusal::Plane {
                    what: format!("rank {rank} is below a rack whose aggregator is gone"),
                })?;
                limits = limits.and(Limits::of(&rack.plane).at(&rack.title()));
            }
        }
        self.check_tree(&below, is_dynamic)?;
        Ok(limits)
    }

    /// Refuses what the aggregators cannot be for workers in these places: of each, who came first and how many.
    fn check_tree(
        &self,
        below: &HashMap<Option<RackId>, (u16, usize)>,
        is_dynamic: bool,
    ) -> Result<(), Refusal> {
        let is_bare = self.plane.kind == PlaneKind::None;
        if let (Some((here, _)), Some((rack, (there, _)))) =
            (below.get(&None), below.iter().find(|(rack, _)| rack.is_some()))
        {
            let name = rack.and_then(|id| self.racks.get(&id)).map_or("", |rack| &rack.name);
            if !is_dynamic {
                return Err(Refusal::Invalid {
                    what: format!(
                        "rank {here} joined at the root itself and rank {there} at rack `{name}`: let all workers of a job \
                     join at racks, or all at the root"
                    ),
                });
            }
        }
        if let Some((_, (rank, _))) = below.iter().find(|(rack, _)| is_bare && rack.is_some()) {
            return Err(Refusal::Invalid {
                what: format!(
                    "rank {rank} joined at a rack, but the root has no aggregator to add up racks' sums (--plane none): let all \
                     workers join at the root, or give it one"
                ),
            });
        }
        let beside = below.get(&None).map_or(0, |(_, workers)| *workers);
        let racks = below.keys().flatten().count();
        if racks > 0 && racks + beside > MAX_WORKERS {
            return Err(Refusal::Invalid {
                what: format!(
                    "{racks} racks and {beside} workers beside them below one root: it takes {MAX_WORKERS}"
                ),
            });
        }
        match below.values().find(|(_, workers)| *workers > MAX_WORKERS && !is_bare) {
            Some((rank, workers)) => Err(Refusal::Invalid {
                what: format!(
                    "{workers} workers (rank {rank} and others) below one aggregator: it takes {MAX_WORKERS}"
                ),
            }),
            None => Ok(()),
        }
    }

    /// What all ranks of a run have in common.
    pub(super) fn terms(&self, run: &Run, hosts: &[RackId]) -> Result<(Terms, Limits), Refusal> {
        let limits = self.limits(run, hosts)?;
        let wishes = run.seats.iter().map(|(rank, seat)| (*rank, &seat.wishes));
        Ok((Terms::of(wishes, &limits)?, limits))
    }
}

//! Aggregators that dynamic jobs have lost and get back. Workers do without meanwhile, as they find out by themselves
//! (fate sharing, ATP section 3.7).

use std::{collections::BTreeMap, net::Ipv4Addr};

use super::{Action, Coordinator, Hold, RackId, RunId, SILENCE, Time, run::Run};
use crate::plane::PlaneInfo;

/// How long until an aggregator that did not take a job back is asked again.
const RETRY: Time = Time::from_secs(1);

/// Where a running job is not installed any more: at racks, or (`None`) at the root.
pub(super) type Gaps = BTreeMap<Option<RackId>, Gap>;

/// When it is to be installed there again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// From this moment on, once the aggregator is in service.
    Due(Time),
    /// The order is on its way.
    Ordered,
}

/// An aggregator that a running job knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub name: String,
    pub ip: Ipv4Addr,
    pub base_port: u16,
}

impl Coordinator {
    /// An aggregator has lost all jobs: dynamic ones are to be installed there again.
    pub(super) fn open_gaps(&mut self, now: Time, at: Option<RackId>) {
        for run in self.runs.values_mut().filter(|run| run.outlives_aggregators()) {
            let is_there = at.is_none_or(|rack| run.is_below(rack));
            if let Some(shared) = run.shared.as_mut().filter(|shared| shared.slots > 0 && is_there) {
                shared.gaps.insert(at, Gap::Due(now));
            }
        }
    }

    /// A rack that dynamic jobs have lost is there under another number.
    pub(super) fn rack_is_back(&mut self, now: Time, id: RackId) {
        let Some(rack) = self.racks.get(&id) else { return };
        for run in self.runs.values_mut().filter(|run| run.outlives_aggregators()) {
            let Some(shared) = &mut run.shared else { continue };
            let before = shared.racks.iter().find(|(_, known)| known.name == rack.name);
            let Some((before, known)) = before.map(|(before, known)| (*before, known.clone())) else {
                continue;
            };
            shared.racks.remove(&before);
            shared.gaps.remove(&Some(before));
            run.layout.rename(before, id);
            // The root expects its sums from where it was.
            if known.ip == rack.ip {
                shared.gaps.insert(Some(id), Gap::Due(now));
            }
            shared.racks.insert(id, known);
            for seat in run.seats.values_mut().filter(|seat| seat.rack == Some(before)) {
                // Its workers could not be heard, and find out only now that they can be.
                (seat.rack, seat.seen) = (Some(id), now + SILENCE);
            }
        }
    }

    /// Orders what is due of a run.
    pub(super) fn close_gaps(&mut self, now: Time, id: RunId) {
        while let Some(at) = self.due(now, id) {
            let fits =
                self.runs.get(&id).zip(self.in_service(at)).is_some_and(|(run, plane)| run.fits(at, plane));
            let Some(run) = self.runs.get_mut(&id) else { return };
            let order = run.order(self.stealing);
            let Some(shared) = &mut run.shared else { return };
            match order.filter(|_| fits) {
                Some(order) => {
                    shared.gaps.insert(at, Gap::Ordered);
                    self.actions.push_back(Action::Restore { run: id, order, at });
                }
                None => {
                    tracing::warn!(
                        name = run.name,
                        "the aggregator is another than before; the job goes on without it"
                    );
                    shared.gaps.remove(&at);
                }
            }
        }
    }

    /// The next of a run's gaps that can be closed.
    fn due(&self, now: Time, id: RunId) -> Option<Option<RackId>> {
        let is_there =
            |run: &&Run| run.outlives_aggregators() && run.renewing.is_none() && run.hold == Hold::Installed;
        let run = self.runs.get(&id).filter(is_there)?;
        let is_due = |gap: &Gap| matches!(gap, Gap::Due(at) if *at <= now);
        let mut gaps = run.shared.as_ref()?.gaps.iter();
        gaps.find(|(at, gap)| is_due(gap) && self.in_service(**at).is_some()).map(|(at, _)| *at)
    }

    /// An aggregator has taken a job again, or not.
    pub fn on_restored(&mut self, now: Time, id: RunId, at: Option<RackId>, result: Result<(), String>) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let Some(shared) = &mut run.shared else { return };
        match result {
            Ok(()) => {
                tracing::info!(name = run.name, job = run.job, "the aggregator has the job again");
                // Unless it has lost the job again meanwhile.
                if shared.gaps.get(&at) == Some(&Gap::Ordered) {
                    shared.gaps.remove(&at);
                }
            }
            Err(error) => {
                tracing::warn!(
                    name = run.name,
                    job = run.job,
                    error,
                    "the aggregator does not take the job back yet"
                );
                if at.is_none_or(|rack| shared.racks.contains_key(&rack)) {
                    shared.gaps.insert(at, Gap::Due(now + RETRY));
                }
            }
        }
    }

    /// The plane of an aggregator that answers.
    fn in_service(&self, at: Option<RackId>) -> Option<&PlaneInfo> {
        match at {
            None => self.plane_down.is_none().then_some(&self.plane),
            Some(rack) => self.racks.get(&rack).filter(|rack| rack.is_in_service()).map(|rack| &rack.plane),
        }
    }
}

impl Run {
    /// Whether an aggregator can have this run as its workers know it.
    fn fits(&self, at: Option<RackId>, plane: &PlaneInfo) -> bool {
        let (Some(shared), Some(terms)) = (&self.shared, &self.terms) else { return false };
        let port = match at {
            None => Some(shared.root_port),
            Some(rack) => shared.racks.get(&rack).map(|known| known.base_port),
        };
        port == Some(plane.base_port)
            && plane.dynamic_slots >= shared.slots
            && plane.max_elements >= terms.elements
            && plane.shards >= terms.shards
    }
}

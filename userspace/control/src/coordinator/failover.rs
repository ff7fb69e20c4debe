//! Aggregators that running dynamic jobs have lost and get back. Workers do without meanwhile, as they find out by
//! themselves (fate sharing, ATP section 3.7).

use std::{collections::BTreeMap, net::Ipv4Addr};

use serde::{Deserialize, Serialize};

use super::{Action, Coordinator, RackId, RunId, Time, run::InstallState, run::Run};
use crate::plane::PlaneInfo;

/// Time until an aggregator that did not take a job back is asked again.
const RETRY: Time = Time::from_secs(1);

/// The aggregators that a running job is not installed at any more: racks, or (`None`) the root.
pub(super) type MissingAt = BTreeMap<Option<RackId>, Restoration>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restoration {
    /// It is to be ordered from this moment on, once the aggregator is in service.
    Due(Time),
    Ordered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownRack {
    pub ip: Ipv4Addr,
    pub base_port: u16,
}

impl Coordinator {
    pub(super) fn mark_missing(&mut self, now: Time, at: Option<RackId>) {
        self.runs_with(|_| true).into_iter().for_each(|id| self.mark_run_missing(now, id, at));
    }

    pub(super) fn mark_run_missing(&mut self, now: Time, id: RunId, at: Option<RackId>) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.outlives_aggregators()) else { return };
        if let Some(rack) = at
            && !run.is_below(rack)
        {
            return;
        }
        let Some(shared) = &mut run.shared else { return };
        if run.terms.as_ref().is_some_and(|terms| terms.slots > 0) {
            shared.missing_at.insert(at, Restoration::Due(now));
        }
    }

    pub(super) fn restore_missing(&mut self, now: Time, id: RunId) {
        while let Some(at) = self.due(now, id) {
            let plane = self.in_service(at);
            let fits = self.runs.get(&id).zip(plane).is_some_and(|(run, plane)| self.fits(run, at, plane));
            let Some(run) = self.runs.get_mut(&id) else { return };
            let order = run.order(self.stealing);
            let Some(shared) = &mut run.shared else { return };
            match order.filter(|_| fits) {
                Some(order) => {
                    shared.missing_at.insert(at, Restoration::Ordered);
                    self.actions.push_back(Action::Restore { run: id, order, at });
                }
                None => {
                    tracing::warn!(
                        name = run.name,
                        "the aggregator is another than before; the job goes on without it"
                    );
                    shared.missing_at.remove(&at);
                }
            }
        }
    }

    fn due(&self, now: Time, id: RunId) -> Option<Option<RackId>> {
        let can_return = |run: &&Run| {
            run.outlives_aggregators() && run.next_epoch.is_none() && run.install == InstallState::Installed
        };
        let run = self.runs.get(&id).filter(can_return)?;
        let is_due = |state: &Restoration| matches!(state, Restoration::Due(at) if *at <= now);
        let mut missing = run.shared.as_ref()?.missing_at.iter();
        missing.find(|(at, state)| is_due(state) && self.in_service(**at).is_some()).map(|(at, _)| *at)
    }

    pub fn on_restored(&mut self, now: Time, id: RunId, at: Option<RackId>, result: Result<(), String>) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let Some(shared) = &mut run.shared else { return };
        let (name, job) = (&run.name, run.job);
        match result {
            Ok(()) => {
                tracing::info!(name, job, "the aggregator has the job again");
                // Unless it has lost the job again meanwhile.
                if shared.missing_at.get(&at) == Some(&Restoration::Ordered) {
                    shared.missing_at.remove(&at);
                }
            }
            Err(error) => {
                tracing::warn!(name, job, error, "the aggregator does not take the job back yet");
                shared.missing_at.insert(at, Restoration::Due(now + RETRY));
            }
        }
    }

    fn in_service(&self, at: Option<RackId>) -> Option<&PlaneInfo> {
        match at {
            None => self.plane_down.is_none().then_some(&self.plane),
            Some(rack) => self.racks.get(&rack).filter(|rack| rack.is_in_service()).map(|rack| &rack.plane),
        }
    }

    /// Whether an aggregator can have this run as its workers know it: the root expects a rack's sums from where it was.
    fn fits(&self, run: &Run, at: Option<RackId>, plane: &PlaneInfo) -> bool {
        let (Some(shared), Some(terms)) = (&run.shared, &run.terms) else { return false };
        let port = match at {
            None => Some(shared.root_port),
            Some(rack) => {
                let ip = self.racks.get(&rack).map(|rack| rack.ip);
                shared.racks.get(&rack).filter(|known| Some(known.ip) == ip).map(|known| known.base_port)
            }
        };
        port == Some(plane.base_port)
            && plane.dynamic_slots >= terms.slots
            && plane.max_elements >= terms.elements
            && plane.shards >= terms.shards
    }
}

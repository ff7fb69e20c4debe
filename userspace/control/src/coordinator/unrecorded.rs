//! Records that the journal does not have: a failed write takes back what would take effect without being on
//! the disk. Running jobs go on, and new ones are refused with the reason.

use super::{
    Coordinator,
    ids::{RackId, RunId},
    orders::Action,
    record::Record,
    run::{Phase, Run},
    time::Time,
};
use crate::{
    failure::{JobFailure, Refusal},
    message::End,
};

impl Coordinator {
    /// All records since the last call of [`Coordinator::poll_records`] are on the disk.
    pub fn on_recorded(&mut self, records: &[Record]) {
        for record in records {
            match record {
                Record::Run(id, _) => {
                    if let Some(run) = self.runs.get_mut(id) {
                        run.on_recorded();
                    }
                }
                Record::Rack { id, .. } => {
                    if let Some(rack) = self.racks.get_mut(id) {
                        rack.is_recorded = true;
                    }
                }
                _ => {}
            }
        }
    }

    /// Records could not be written: what they grant is refused or taken back. Ends of jobs and leaves of
    /// members stay: nobody is to wait for a dead rank because of a full disk.
    pub fn on_unrecorded(&mut self, now: Time, why: &str) {
        for id in self.runs_with(|run| !run.is_over()) {
            self.take_back(now, id, why);
        }
        let unrecorded = self.racks.iter().filter(|(_, rack)| !rack.is_recorded).map(|(id, _)| *id);
        for id in unrecorded.collect::<Vec<_>>() {
            self.refuse_rack(id);
        }
    }

    /// Whether a rack or parameter host is in the journal.
    pub fn is_known_rack(&self, name: &str, is_host: bool) -> bool {
        self.rack_named(name, is_host).is_some()
    }

    /// Whether a rack or parameter host of this id has entered.
    pub fn has_rack(&self, id: RackId) -> bool {
        self.racks.contains_key(&id)
    }

    fn take_back(&mut self, now: Time, id: RunId, why: &str) {
        let Some(run) = self.runs.get(&id) else { return };
        match run.phase {
            Phase::Gathering | Phase::Ready => self.end(id, End::Refused(Refusal::journal(why))),
            Phase::Installing => {
                let is_queued = |action: &Action| matches!(action, Action::Install(run, _) if *run == id);
                // The planes may be at work already; then their answer decides.
                if self.actions.iter().any(is_queued) {
                    self.actions.retain(|action| !is_queued(action));
                    self.end(id, End::Refused(Refusal::journal(why)));
                    self.on_removed(now, id, Ok(()));
                }
            }
            Phase::Running if run.recorded.is_none() => self.end(id, End::Refused(Refusal::journal(why))),
            Phase::Running if run.predecessor.is_some() => self.take_back_replacement(id),
            Phase::Running if run.has_unrecorded_terms() => {
                self.end(id, End::Failed(JobFailure::journal(why)));
            }
            Phase::Running | Phase::Over(_) => {}
        }
    }

    /// The rank is vacant again, as before its new worker joined.
    fn take_back_replacement(&mut self, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let Some((rank, before)) = run.predecessor.take() else { return };
        self.members.insert(before.id, (id, rank));
        if let Some(new) = run.members.insert(rank, *before) {
            self.members.remove(&new.id);
            run.wake();
        }
        (run.next_epoch, run.is_renewal_due) = (None, false);
        self.actions.retain(|action| !matches!(action, Action::Renew(run, _) if *run == id));
    }

    fn refuse_rack(&mut self, id: RackId) {
        let is_needed = self.runs.values().any(|run| !run.is_over() && run.needs(id));
        if !is_needed && self.racks.remove(&id).is_some() {
            self.lost_racks.push(id);
        }
    }
}

impl Run {
    /// The journal has it as it is.
    pub(super) fn on_recorded(&mut self) {
        (self.recorded, self.is_unrecorded, self.predecessor) = (self.terms.clone(), false, None);
    }

    /// Whether its members would receive terms that are not on the disk.
    fn has_unrecorded_terms(&self) -> bool {
        self.is_unrecorded && self.recorded != self.terms
    }
}

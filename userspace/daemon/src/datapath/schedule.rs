//! The lanes of a thread that a round looks at: those that packets, commands or timers have changed.
//!
//! A round costs what these cost, however many jobs the thread has.

use std::collections::BTreeSet;

use sumac_host::JobId;
use sumac_transport::Time;

/// A lane by its job and its index there.
pub(super) type LanePlace = (JobId, usize);

/// A lane's part of its thread's schedule.
#[derive(Debug, Default)]
pub(super) struct LaneSchedule {
    is_active: bool,
    /// Its entry among the timers.
    due: Option<Time>,
}

#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Lanes that may have something to send or to report, each once.
    active: Vec<LanePlace>,
    /// The timers of all lanes, as of the last round that looked at them.
    timers: BTreeSet<(Time, LanePlace)>,
}

impl Schedule {
    /// Has the next round look at a lane.
    pub(super) fn activate(&mut self, place: LanePlace, lane: &mut LaneSchedule) {
        if !std::mem::replace(&mut lane.is_active, true) {
            self.active.push(place);
        }
    }

    pub(super) fn active(&self) -> &[LanePlace] {
        &self.active
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Returns the lanes whose timers have expired. They keep their entries until the end of the round.
    pub(super) fn expired(&self, now: Time) -> Vec<LanePlace> {
        self.timers.iter().take_while(|(due, _)| *due <= now).map(|(_, place)| *place).collect()
    }

    /// Ends a lane's part of a round: its engine's next timeout is `due`. `keeps`: whether the next round
    /// looks at it again.
    pub(super) fn settle(
        &mut self,
        place: LanePlace,
        lane: &mut LaneSchedule,
        due: Option<Time>,
        keeps: bool,
    ) {
        lane.is_active = keeps;
        if lane.due != due {
            if let Some(former) = lane.due {
                self.timers.remove(&(former, place));
            }
            self.timers.extend(due.map(|due| (due, place)));
            lane.due = due;
        }
    }

    /// Ends a round whose lanes have all been settled.
    pub(super) fn end_round(&mut self) {
        self.active.clear();
    }

    /// Forgets the lanes of a job.
    pub(super) fn forget(&mut self, job: JobId) {
        self.active.retain(|(other, _)| *other != job);
        self.timers.retain(|(_, (other, _))| *other != job);
    }
}

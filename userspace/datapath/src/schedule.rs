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
    /// Whether its last turn ended for want of room.
    pub(super) is_full: bool,
    /// Its entry among the timers.
    due: Option<Time>,
}

impl LaneSchedule {
    /// Ends the lane's part of a round: its engine's next timeout is `due`. `has_had_turn`: unless an error
    /// came before. Returns whether the next round looks at it again.
    pub(super) fn settle(
        &mut self,
        place: LanePlace,
        due: Option<Time>,
        has_had_turn: bool,
        timers: &mut Timers,
    ) -> bool {
        if self.due != due {
            if let Some(former) = self.due {
                timers.remove(&(former, place));
            }
            timers.extend(due.map(|due| (due, place)));
            self.due = due;
        }
        self.is_active = self.is_full || !has_had_turn;
        self.is_active
    }
}

/// The timers of all lanes, as of the last round that looked at them.
type Timers = BTreeSet<(Time, LanePlace)>;

#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Lanes that may have something to send or to report, each once.
    active: Vec<LanePlace>,
    timers: Timers,
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

    /// Ends a round: `settle` ends each lane's part, and returns whether the next round looks at it again.
    pub(super) fn end_round(&mut self, mut settle: impl FnMut(LanePlace, &mut Timers) -> bool) {
        self.active.retain(|place| settle(*place, &mut self.timers));
    }

    /// Forgets the lanes of a job.
    pub(super) fn forget(&mut self, job: JobId) {
        self.active.retain(|(other, _)| *other != job);
        self.timers.retain(|(_, (other, _))| *other != job);
    }
}

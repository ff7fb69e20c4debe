//! Completion of a chunk with the contributions that its slot has (bounded loss).
//!
//! The contributions to an operation's first chunk state its [`Terms`]. A *flush* is a contribution marked
//! [`flag::PARTIAL`](crate::header::flag::PARTIAL). It is taken in like any other, and then completes its
//! slot if at least half of the workers are in it, all have stated terms, and every worker that is left out
//! still has [`Budget`].
//!
//! Below a parent the version becomes a part that nothing is added to any more, and waits for the parent's
//! result. Parents complete nothing by themselves: they note whom parts leave out.

use super::{Action, Contribution, SlotMeta, Then, Version, decide_and_note, state};
use crate::{
    budget::{Budget, Chunks, Flush, Terms, is_quorum},
    header::{exponent, flag},
    lane_budget::LaneBudget,
};

impl Contribution {
    /// Whether it is a flush.
    #[inline(always)]
    pub const fn is_flush(&self) -> bool {
        self.limit != 0 && self.flags & flag::PARTIAL != 0
    }

    /// Whether it states the terms of an operation with a loss bound.
    #[inline(always)]
    pub const fn has_terms(&self) -> bool {
        self.limit != 0 && self.flags & flag::PARTIAL == 0
    }

    /// The terms, where it has some: its chunk is the operation's first.
    #[inline(always)]
    pub const fn terms(&self) -> Terms {
        Terms { owner: self.owner, operation: self.seq, end: self.bound, limit: self.limit }
    }
}

impl Version {
    /// Completes the version with the contributions that it has, which `flush` is one of, or returns `false`.
    /// `ranks` are the job's ranks of the workers that are not in it, by the tables of a child.
    #[inline(always)]
    pub fn flush(&mut self, flush: &Contribution, ranks: u32, budget: &mut impl Chunks) -> bool {
        let left_out = flush.all & !self.seen;
        let has_quorum = is_quorum(self.seen.count_ones(), flush.all.count_ones());
        let is_waiting = !self.is(state::FINAL | state::ROUND | state::PARTIAL) && left_out != 0;
        let has_names = !flush.child || ranks.count_ones() == left_out.count_ones();
        let flush_of = Flush { owner: flush.owner, operation: flush.bound, seq: flush.seq };
        if !is_waiting || !has_quorum || !has_names || !budget.spend(flush_of, flush.all, left_out) {
            return false;
        }
        if flush.child {
            self.state |= state::PARTIAL;
            self.next = ranks;
        } else {
            self.state |= state::FINAL | state::PARTIAL;
        }
        // A worker that is left out may have a larger one: the slot's next chunk needs an exponent round.
        self.next_exponent = exponent::UNKNOWN;
        true
    }
}

impl SlotMeta {
    /// Takes in the terms that a contribution states, or applies a flush to the slot, as [`super::decide`]
    /// left it with this action. Returns the action that counts: with [`Then::Complete`] if the flush
    /// completed the slot, below a parent with [`Then::Up`]. `ranks_of` maps senders to the job's ranks.
    pub fn bounded(
        &mut self,
        action: Action,
        c: &Contribution,
        budget: &mut Budget,
        ranks_of: impl FnOnce(u32) -> u32,
    ) -> Action {
        if c.has_terms() && matches!(action, Action::Store(_) | Action::Add(_)) {
            budget.agree(c.terms(), c.worker);
        }
        self.flushed(action, c, budget, ranks_of)
    }

    #[inline(always)]
    fn flushed(
        &mut self,
        action: Action,
        c: &Contribution,
        budget: &mut impl Chunks,
        ranks_of: impl FnOnce(u32) -> u32,
    ) -> Action {
        let then = if c.child { Then::Up } else { Then::Complete };
        let completed = match action {
            Action::Store(Then::Wait) => Action::Store(then),
            Action::Add(Then::Wait) => Action::Add(then),
            Action::Held(Then::Wait) => Action::Held(then),
            _ => return action,
        };
        let version = &mut self.versions[usize::from(c.version & 1)];
        let is_complete = c.is_flush() && version.flush(c, ranks_of(c.all & !version.seen), budget);
        if is_complete { completed } else { action }
    }
}

/// [`super::decide`] for jobs with [`LANE_BUDGET`](crate::tables::job_flag::LANE_BUDGET), in the order of a
/// switch: a packet's terms, and what its sender has received, are taken in before the decision, and whatever
/// that is.
pub fn decide_by_lane(before: &SlotMeta, c: &Contribution, budget: &mut LaneBudget) -> (SlotMeta, Action) {
    if c.has_terms() {
        budget.agree(c.terms(), c.worker);
    }
    let (mut after, action) = decide_and_note(before, c, true);
    let action = after.flushed(action, c, budget, |_| 0);
    (after, action)
}

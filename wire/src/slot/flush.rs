//! Completion of a chunk with the contributions that its slot has (bounded loss).
//!
//! A *flush* is a contribution marked [`flag::PARTIAL`](crate::header::flag::PARTIAL). It is taken in like
//! any other, and then completes its slot if at least half of the workers are in it and every worker that is
//! left out still has [`Budget`].

use super::{Action, Contribution, SlotMeta, Then, Version, state};
use crate::{
    budget::{Budget, Flush, is_quorum},
    header::exponent,
};

impl Version {
    /// Completes the version with the contributions that it has, which `flush` is one of, or returns `false`.
    #[inline(always)]
    pub fn flush(&mut self, flush: &Contribution, budget: &mut Budget) -> bool {
        let has_quorum = is_quorum(self.seen.count_ones(), flush.all.count_ones());
        let is_waiting = !self.is(state::FINAL | state::ROUND) && self.seen != flush.all;
        let Contribution { owner, operation, limit, .. } = *flush;
        let flush_of = Flush { owner, operation, limit };
        if !is_waiting || !has_quorum || !budget.spend(flush_of, flush.all & !self.seen) {
            return false;
        }
        self.state |= state::FINAL;
        // A worker that is left out may have a larger one: the slot's next chunk needs an exponent round.
        self.next_exponent = exponent::UNKNOWN;
        true
    }
}

impl SlotMeta {
    /// Applies a flush to the slot as [`super::decide`] left it with this action. Returns the action that
    /// counts: with
    /// [`Then::Complete`] if the slot is completed.
    pub fn flush(&mut self, action: Action, flush: &Contribution, budget: &mut Budget) -> Action {
        let completed = match action {
            Action::Store(Then::Wait) => Action::Store(Then::Complete),
            Action::Add(Then::Wait) => Action::Add(Then::Complete),
            Action::Held(Then::Wait) => Action::Held(Then::Complete),
            _ => return action,
        };
        let version = &mut self.versions[usize::from(flush.version & 1)];
        if flush.limit != 0 && version.flush(flush, budget) { completed } else { action }
    }
}

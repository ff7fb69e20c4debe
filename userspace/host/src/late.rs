//! Workers that are always late: they use up their loss budgets in one operation after another.

use serde::{Deserialize, Serialize};
use sumac_api::Loss;

/// Operations in a row after which a worker is reported.
const STREAK: u32 = 8;

/// By rank, the number of last operations in which the worker used up its budget.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LateWorkers {
    streaks: Vec<u32>,
}

impl LateWorkers {
    /// Records an operation. Returns the ranks that have used up their budgets, but for a tenth, in each of
    /// the last
    /// [`STREAK`] ones: once for each row.
    pub(crate) fn record(&mut self, loss: &Loss) -> Vec<usize> {
        self.streaks.resize(loss.by_worker.len(), 0);
        for (streak, left_out) in self.streaks.iter_mut().zip(&loss.by_worker) {
            let has_spent = loss.budget > 0 && left_out.saturating_mul(10) >= loss.budget.saturating_mul(9);
            *streak = if has_spent { streak.saturating_add(1) } else { 0 };
        }
        (0..).zip(&self.streaks).filter(|(_, streak)| **streak == STREAK).map(|(rank, _)| rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_reported_once_it_was_late_several_times_in_a_row() {
        let mut late = LateWorkers::default();
        let loss = |by_worker: [u64; 3]| Loss {
            elements: 100,
            budget: 10,
            by_worker: by_worker.into(),
            missing: vec![],
            own: vec![],
        };
        let mut reports = Vec::new();
        for round in 0..20 {
            let others = if round % 2 == 0 { 10 } else { 8 };
            reports.push(late.record(&loss([0, 9, others])));
        }
        assert_eq!(reports.iter().filter(|ranks| !ranks.is_empty()).count(), 1);
        assert_eq!(reports[7], [1]);
        let without = Loss { budget: 0, ..loss([0; 3]) };
        assert!((0..20).all(|_| late.record(&without).is_empty()), "no budget, nobody late");
    }
}

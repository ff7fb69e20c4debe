//! The budgets of lanes (bounded loss).

use serde::{Deserialize, Serialize};
use sumac_wire::{
    budget::{Agreement, Budget, KEPT_OPERATIONS},
    lane_budget::LaneBudget,
};

/// The fields of [`Budget`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spent {
    pub owner: u32,
    pub operation: u32,
    pub chunks: Vec<u32>,
    /// Operation, end, limit, and the workers that have stated them.
    pub terms: [[u32; 4]; KEPT_OPERATIONS],
}

impl Spent {
    pub(super) fn is_none(&self) -> bool {
        self.owner == 0
    }

    pub fn of(budget: &Budget, world: u16) -> Spent {
        let chunks = budget.spent.iter().take(usize::from(world)).copied().collect();
        if budget.owner == 0 {
            return Spent::default();
        }
        let terms = budget.agreements.map(|kept| [kept.operation, kept.end, kept.limit, kept.workers]);
        Spent { owner: budget.owner, operation: budget.operation, chunks, terms }
    }

    pub fn budget(&self) -> Budget {
        let of = |[operation, end, limit, workers]: [u32; 4]| Agreement { operation, end, limit, workers };
        let agreements = self.terms.map(of);
        let mut budget =
            Budget { owner: self.owner, operation: self.operation, agreements, ..Budget::default() };
        for (spent, chunks) in budget.spent.iter_mut().zip(&self.chunks) {
            *spent = *chunks;
        }
        budget
    }
}

/// The fields of [`LaneBudget`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneSpent {
    pub owner: u32,
    pub operation: u32,
    pub end: u32,
    pub limit: u32,
    pub workers: u32,
    pub spent_of: u32,
    pub spent: u32,
}

impl LaneSpent {
    pub(super) fn is_none(&self) -> bool {
        self.owner == 0
    }

    pub fn of(budget: &LaneBudget) -> LaneSpent {
        let LaneBudget { owner, latest, spent_of, spent } = *budget;
        let Agreement { operation, end, limit, workers } = latest;
        LaneSpent { owner, operation, end, limit, workers, spent_of, spent }
    }

    pub fn budget(&self) -> LaneBudget {
        let LaneSpent { owner, operation, end, limit, workers, spent_of, spent } = *self;
        let latest = Agreement { operation, end, limit, workers };
        LaneBudget { owner, latest, spent_of, spent }
    }
}

//! The contributions that are missing in a run's results.

use serde::Serialize;
use sumac_client::Loss;

/// Missing contributions, as fractions of the workers' elements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossReport {
    /// Of all workers.
    pub spent: f64,
    /// The most that each worker could be left out with.
    pub budget: f64,
    /// By rank.
    pub by_worker: Vec<f64>,
}

impl LossReport {
    /// Adds up the losses of operations; `None` if none had a bound.
    pub(super) fn of(losses: &[Loss]) -> Option<LossReport> {
        let elements: u64 = losses.iter().map(|loss| loss.elements).sum();
        let part = |sum: u64| if elements == 0 { 0.0 } else { sum as f64 / elements as f64 };
        let workers = losses.first()?.by_worker.len();
        let of = |rank: usize| losses.iter().filter_map(|loss| loss.by_worker.get(rank)).sum();
        let by_worker: Vec<f64> = (0..workers).map(|rank| part(of(rank))).collect();
        Some(LossReport {
            spent: by_worker.iter().sum::<f64>() / workers.max(1) as f64,
            budget: part(losses.iter().map(|loss| loss.budget).sum()),
            by_worker,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_several_operations_add_up() {
        let loss = |by_worker: [u64; 2]| Loss {
            elements: 50,
            budget: 10,
            by_worker: by_worker.to_vec(),
            own: vec![],
            missing: vec![],
        };
        let report = LossReport::of(&[loss([0, 10]), loss([5, 10])]);
        assert_eq!(report, Some(LossReport { spent: 0.125, budget: 0.2, by_worker: vec![0.05, 0.2] }));
        assert_eq!(LossReport::of(&[]), None);
    }
}

//! Operations that failed by another worker's value, and the reports of such values.

use std::collections::VecDeque;
use std::time::Duration;

use sumac_control::events::Fault;
use tokio::time::Instant;

use crate::explain::bounded;
use crate::stream::Doubt;

/// How long the report of another worker's value is waited for.
const FAULT_TIMEOUT: Duration = Duration::from_secs(1);
/// How many reports are kept for operations that have not ended here yet.
const KEPT: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PendingFaults {
    open: Vec<(Doubt, Instant)>,
    faults: VecDeque<(u16, Fault)>,
}

impl PendingFaults {
    /// Adds an operation; it is returned at once when the report has come before it.
    pub(super) fn add(&mut self, doubt: Doubt) -> Option<Doubt> {
        match self.faults.iter().find(|(_, fault)| fault.operation.0 == doubt.number) {
            Some((rank, fault)) => Some(settled(doubt, *rank, fault)),
            None => {
                self.open.push((doubt, Instant::now() + FAULT_TIMEOUT));
                None
            }
        }
    }

    /// Takes a report, and returns the operations that it settles.
    pub(super) fn report(&mut self, rank: u16, fault: Fault) -> Vec<Doubt> {
        let (met, open): (Vec<_>, _) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|(doubt, _)| doubt.number == fault.operation.0);
        self.open = open;
        let settled = met.into_iter().map(|(doubt, _)| settled(doubt, rank, &fault)).collect();
        if self.faults.len() == KEPT {
            self.faults.pop_front();
        }
        self.faults.push_back((rank, fault));
        settled
    }

    /// The operations without a report in time.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Doubt> {
        let (late, open): (Vec<_>, _) =
            std::mem::take(&mut self.open).into_iter().partition(|(_, deadline)| *deadline <= now);
        self.open = open;
        late.into_iter().map(|(doubt, _)| doubt).collect()
    }
}

/// Names the worker and its value.
fn settled(mut doubt: Doubt, rank: u16, fault: &Fault) -> Doubt {
    if let Some(failure) = &mut doubt.outcome.error {
        failure.message = bounded(format!("rank {rank}: {}", fault.problem)).into();
        failure.ranks = vec![rank];
        failure.index = fault.index.or(failure.index);
        failure.index_end = failure.index_end.filter(|_| fault.index.is_none());
    }
    doubt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::Outcome;
    use crate::stream::ClientId;
    use sumac_api::{Code, Failure};
    use sumac_job::OperationId;

    fn doubt(number: u32) -> Doubt {
        let error = Failure::new(Code::Saturated, "somebody's").elements("w", 256, Some(512));
        let outcome = Outcome { duration_ns: 1, error: Some(error), missed: Vec::new() };
        Doubt { number, client: ClientId::OPENER, op: 9, outcome }
    }

    fn fault(number: u32, index: Option<u64>, problem: &str) -> Fault {
        Fault { operation: OperationId(number), index, problem: problem.into() }
    }

    #[test]
    fn a_report_settles_operations_before_and_after_it() {
        let mut faults = PendingFaults::default();
        assert!(faults.add(doubt(3)).is_none());
        assert!(faults.add(doubt(4)).is_none());
        let settled = faults.report(2, fault(3, Some(300), "tensor w, element 300 is NaN"));
        let error = settled[0].outcome.error.clone().unwrap();
        assert_eq!((error.ranks, error.index, error.index_end), (vec![2], Some(300), None));
        assert!(error.message.starts_with("rank 2: tensor w"));
        assert!(faults.add(doubt(3)).is_some(), "another of the same, later");
        assert!(faults.expire(Instant::now()).is_empty());
        assert!(faults.report(2, fault(8, None, &"x".repeat(5000))).is_empty());
        let told = faults.add(doubt(8)).unwrap().outcome.error.unwrap();
        assert!(told.message.len() <= crate::explain::MESSAGE_LEN);
        let late = faults.expire(Instant::now() + FAULT_TIMEOUT);
        assert_eq!((late.len(), late[0].number), (1, 4));
    }
}

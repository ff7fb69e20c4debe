//! Operations that failed by another worker's value, and the reports of such values.

use std::collections::VecDeque;
use std::time::Duration;

use sumac_control::events::Fault;
use tokio::time::Instant;

use crate::explain::bounded;
use crate::operations::UnattributedFault;

/// The time to wait for the report of another worker's value.
const FAULT_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of reports that are kept for operations that have not ended here yet.
const KEPT: usize = 64;

#[derive(Debug, Default)]
pub(super) struct PendingFaults {
    open: Vec<(UnattributedFault, Instant)>,
    faults: VecDeque<(u16, Fault)>,
}

impl PendingFaults {
    /// Adds an operation; it is returned at once when the report has come before it.
    pub(super) fn add(&mut self, operation: UnattributedFault) -> Option<UnattributedFault> {
        match self.faults.iter().find(|(_, fault)| fault.operation == operation.id) {
            Some((rank, fault)) => Some(settled(operation, *rank, fault)),
            None => {
                self.open.push((operation, Instant::now() + FAULT_TIMEOUT));
                None
            }
        }
    }

    /// Whether no operation waits for a report.
    pub(super) fn is_settled(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn report(&mut self, rank: u16, fault: Fault) -> Vec<UnattributedFault> {
        let met = self.open.extract_if(.., |(operation, _)| operation.id == fault.operation);
        let settled = met.map(|(operation, _)| settled(operation, rank, &fault)).collect();
        if self.faults.len() == KEPT {
            self.faults.pop_front();
        }
        self.faults.push_back((rank, fault));
        settled
    }

    /// Removes and returns the operations whose report is overdue.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<UnattributedFault> {
        let late = self.open.extract_if(.., |(_, deadline)| *deadline <= now);
        late.map(|(operation, _)| operation).collect()
    }
}

/// Adds the worker and its value to the operation's error.
fn settled(mut operation: UnattributedFault, rank: u16, fault: &Fault) -> UnattributedFault {
    if let Some(failure) = &mut operation.outcome.error {
        failure.message = bounded(format!("rank {rank}: {}", fault.problem)).into();
        failure.ranks = vec![rank];
        failure.index = fault.index.or(failure.index);
        failure.index_end = failure.index_end.filter(|_| fault.index.is_none());
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::ClientId;
    use crate::session::Outcome;
    use sumac_api::{Code, Failure};
    use sumac_job::OperationId;

    fn operation(number: u32) -> UnattributedFault {
        let error = Failure::new(Code::Saturated, "somebody's").elements("w", 256, Some(512));
        let outcome = Outcome { duration_ns: 1, error: Some(error), ..Outcome::default() };
        UnattributedFault { id: OperationId(number), client: ClientId::OPENER, op: 9, outcome, word: None }
    }

    fn fault(number: u32, index: Option<u64>, problem: &str) -> Fault {
        Fault { operation: OperationId(number), index, problem: problem.into() }
    }

    #[test]
    fn a_report_settles_operations_before_and_after_it() {
        let mut faults = PendingFaults::default();
        assert!(faults.add(operation(3)).is_none());
        assert!(faults.add(operation(4)).is_none());
        let settled = faults.report(2, fault(3, Some(300), "tensor w, element 300 is NaN"));
        let error = settled[0].outcome.error.clone().unwrap();
        assert_eq!((error.ranks, error.index, error.index_end), (vec![2], Some(300), None));
        assert!(error.message.starts_with("rank 2: tensor w"));
        assert!(faults.add(operation(3)).is_some(), "another of the same, later");
        assert!(faults.expire(Instant::now()).is_empty());
        assert!(faults.report(2, fault(8, None, &"x".repeat(5000))).is_empty());
        let told = faults.add(operation(8)).unwrap().outcome.error.unwrap();
        assert!(told.message.len() <= crate::explain::MESSAGE_LEN);
        let late = faults.expire(Instant::now() + FAULT_TIMEOUT);
        assert_eq!((late.len(), late[0].id), (1, OperationId(4)));
    }
}

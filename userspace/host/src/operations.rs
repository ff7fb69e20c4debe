//! The operations of a host that have not ended, by key and by job.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::finished::Outcome;
use crate::operation::{Operation, OperationPhase};
use crate::{ConnectionId, JobId, Nanos, OperationKey};

/// A look at a job or at a connection visits its own operations alone, however many others have.
///
/// Serialized as one map by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations {
    by_job: BTreeMap<JobId, BTreeMap<OperationKey, Operation>>,
    jobs: BTreeMap<OperationKey, JobId>,
    /// Operations that await the report of another worker.
    held_back: BTreeSet<(JobId, OperationKey)>,
}

impl Operations {
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(crate) fn contains_key(&self, key: &OperationKey) -> bool {
        self.jobs.contains_key(key)
    }

    pub(crate) fn get(&self, key: &OperationKey) -> Option<&Operation> {
        self.by_job.get(self.jobs.get(key)?)?.get(key)
    }

    /// Its job stays the same.
    pub(crate) fn get_mut(&mut self, key: &OperationKey) -> Option<&mut Operation> {
        self.by_job.get_mut(self.jobs.get(key)?)?.get_mut(key)
    }

    pub(crate) fn insert(&mut self, key: OperationKey, operation: Operation) {
        self.jobs.insert(key, operation.job);
        if matches!(operation.phase, OperationPhase::HeldBack { .. }) {
            self.held_back.insert((operation.job, key));
        }
        self.by_job.entry(operation.job).or_default().insert(key, operation);
    }

    pub(crate) fn remove(&mut self, key: &OperationKey) -> Option<Operation> {
        let job = self.jobs.remove(key)?;
        let own = self.by_job.get_mut(&job)?;
        let operation = own.remove(key);
        self.held_back.remove(&(job, *key));
        if own.is_empty() {
            self.by_job.remove(&job);
        }
        operation
    }

    /// Has an operation that has ended await the report of another worker until a moment.
    pub(crate) fn hold_back(&mut self, key: OperationKey, outcome: Outcome, until: Nanos) {
        if let Some(operation) = self.get_mut(&key) {
            operation.phase = OperationPhase::HeldBack { outcome: Box::new(outcome), until };
            let job = operation.job;
            self.held_back.insert((job, key));
        }
    }

    /// Returns the operations of a job that await the report of another worker.
    pub(crate) fn held_back(&self, job: JobId) -> impl Iterator<Item = (&OperationKey, &Operation)> {
        let key = |connection, op| (job, OperationKey { connection, op });
        let own = self.held_back.range(key(0, 0)..=key(u64::MAX, u64::MAX));
        own.filter_map(|(job, key)| self.by_job.get(job)?.get_key_value(key)).inspect(visit)
    }

    /// Returns all operations in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OperationKey, &Operation)> {
        self.jobs.iter().filter_map(|(key, job)| self.by_job.get(job)?.get_key_value(key)).inspect(visit)
    }

    /// Returns the operations of a job in the order of their keys.
    pub(crate) fn of_job(&self, job: JobId) -> impl Iterator<Item = (&OperationKey, &Operation)> {
        self.by_job.get(&job).into_iter().flatten().inspect(visit)
    }

    /// Returns the operations of a connection in the order of their submission.
    pub(crate) fn of_connection(
        &self,
        connection: ConnectionId,
    ) -> impl Iterator<Item = (&OperationKey, &Operation)> {
        let key = |op| OperationKey { connection, op };
        let own = self.jobs.range(key(0)..=key(u64::MAX));
        own.filter_map(|(key, job)| self.by_job.get(job)?.get_key_value(key)).inspect(visit)
    }
}

impl Serialize for Operations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Operations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Operations, D::Error> {
        let mut operations = Operations::default();
        let all = BTreeMap::<OperationKey, Operation>::deserialize(deserializer)?;
        all.into_iter().for_each(|(key, operation)| operations.insert(key, operation));
        Ok(operations)
    }
}

#[cfg(not(test))]
fn visit(_: &(&OperationKey, &Operation)) {}

#[cfg(test)]
use tests::visit;

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static VISITS: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn visit(_: &(&OperationKey, &Operation)) {
        VISITS.set(VISITS.get() + 1);
    }

    /// Returns how many operations `act` passes.
    pub(crate) fn visits(act: impl FnOnce()) -> u64 {
        let before = VISITS.get();
        act();
        VISITS.get() - before
    }
}

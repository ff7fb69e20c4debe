//! The collective operations of a host's ranks: each rank's n-th operation, or its n-th of a name, is matched
//! with those of the others.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use sumac_job::OperationDescriptor;

use crate::{Nanos, OperationKey};

/// One operation of all ranks, of which some have submitted it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Round {
    pub(super) descriptor: OperationDescriptor,
    /// The time of the first submission.
    pub(super) since: Nanos,
    /// By rank.
    pub(super) submitted: BTreeMap<u16, OperationKey>,
}

/// The rounds that are not complete. In a job in order of names each name has a queue of its own; in order of
/// submission there is one, without a name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rounds {
    queues: BTreeMap<String, VecDeque<Round>>,
}

/// The effect of a submission.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Submitted {
    Waits,
    /// All ranks have submitted it.
    Complete(Round),
    /// This rank has submitted another operation.
    Differs {
        rank: u16,
        descriptor: OperationDescriptor,
    },
}

impl Rounds {
    /// Adds a rank's operation to the first round of its queue that lacks the rank.
    pub(super) fn add(
        &mut self,
        now: Nanos,
        world: u16,
        name: &str,
        (rank, key): (u16, OperationKey),
        descriptor: &OperationDescriptor,
    ) -> Submitted {
        let queue = self.queues.entry(name.to_owned()).or_default();
        let at = queue.iter().position(|round| !round.submitted.contains_key(&rank));
        let at = at.unwrap_or_else(|| {
            let (descriptor, submitted) = (descriptor.clone(), BTreeMap::new());
            queue.push_back(Round { descriptor, since: now, submitted });
            queue.len() - 1
        });
        let Some(round) = queue.get_mut(at) else { return Submitted::Waits };
        if round.descriptor != *descriptor {
            let rank = round.submitted.keys().next().copied().unwrap_or(rank);
            return Submitted::Differs { rank, descriptor: round.descriptor.clone() };
        }
        round.submitted.insert(rank, key);
        // A round is complete only after those before it.
        if round.submitted.len() < usize::from(world) {
            return Submitted::Waits;
        }
        let complete = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(name);
        }
        complete.map_or(Submitted::Waits, Submitted::Complete)
    }

    /// Returns the oldest round that a rank has submitted.
    pub(super) fn oldest_of(&self, rank: u16) -> Option<&Round> {
        let rounds = self.queues.values().flatten();
        rounds.filter(|round| round.submitted.contains_key(&rank)).min_by_key(|round| round.since)
    }
}

#[cfg(test)]
mod tests {
    use sumac_job::{CollectiveKind, DType, LossBound, Reduction};

    use super::*;

    fn descriptor(count: u64) -> OperationDescriptor {
        OperationDescriptor {
            kind: CollectiveKind::Allreduce,
            reduction: Reduction::Sum,
            dtype: DType::Float32,
            count,
            root: None,
            name: None,
            is_urgent: false,
            loss_bound: LossBound::default(),
        }
    }

    fn key(rank: u16, op: u64) -> OperationKey {
        OperationKey { connection: u64::from(rank), op }
    }

    #[test]
    fn a_round_is_complete_when_the_last_rank_submits_it() {
        let mut rounds = Rounds::default();
        let mut add = |rank, op| rounds.add(7, 2, "", (rank, key(rank, op)), &descriptor(op));
        assert_eq!(add(0, 1), Submitted::Waits);
        assert_eq!(add(0, 2), Submitted::Waits, "a rank may be ahead");
        let Submitted::Complete(first) = add(1, 1) else { panic!("both have it") };
        assert_eq!(first.submitted, BTreeMap::from([(0, key(0, 1)), (1, key(1, 1))]));
        let Submitted::Complete(second) = add(1, 2) else { panic!("both have it") };
        assert_eq!(second.submitted[&0], key(0, 2));
        assert_eq!(rounds, Rounds::default());
    }

    #[test]
    fn names_have_queues_of_their_own() {
        let mut rounds = Rounds::default();
        let mut add = |name, rank, op| rounds.add(0, 2, name, (rank, key(rank, op)), &descriptor(4));
        assert_eq!(add("a", 0, 1), Submitted::Waits);
        assert_eq!(add("b", 1, 1), Submitted::Waits);
        assert!(matches!(add("a", 1, 2), Submitted::Complete(_)));
        assert!(matches!(add("b", 0, 2), Submitted::Complete(_)));
    }

    #[test]
    fn a_difference_names_the_rank_that_has_another_operation() {
        let mut rounds = Rounds::default();
        rounds.add(0, 3, "", (2, key(2, 1)), &descriptor(4));
        let found = rounds.add(0, 3, "", (1, key(1, 1)), &descriptor(5));
        assert_eq!(found, Submitted::Differs { rank: 2, descriptor: descriptor(4) });
        assert_eq!(rounds.oldest_of(2).map(|round| round.descriptor.count), Some(4));
        assert_eq!(rounds.oldest_of(1), None);
    }
}

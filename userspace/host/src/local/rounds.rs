//! The collective operations of a host's ranks: each rank's n-th operation, or its n-th of a name, is matched
//! with those of the others.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use sumac_job::{Importance, OperationDescriptor};

use crate::region::SharedResult;
use crate::{Nanos, OperationKey};

/// The properties of an operation that all ranks of a host give alike: they are one worker to the others, and
/// their result is written as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Common {
    pub(super) descriptor: OperationDescriptor,
    pub(super) priority: u8,
    pub(super) importance: Importance,
    /// The place of a result that all of them read.
    pub(super) result: Option<SharedResult>,
}

impl Common {
    /// Returns the operation as a message has it, with the properties in which it differs from another one.
    fn beside(&self, other: &Common) -> String {
        let mut text = self.descriptor.to_string();
        if self.priority != other.priority {
            text += &format!(", priority {}", self.priority);
        }
        if self.importance != other.importance {
            text += &format!(", importance {}", self.importance.name());
        }
        match self.result {
            result if result == other.result => {}
            None => text += ", its result in memory of its own",
            Some(SharedResult { number, offset }) => {
                text += &format!(", its result at byte {offset} of shared region {number}");
            }
        }
        text
    }
}

/// One operation of all ranks, of which some have submitted it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Round {
    pub(super) common: Common,
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
    /// This rank has submitted another operation. Both as a message has them: this one, and the one that is
    /// added.
    Differs {
        rank: u16,
        texts: [String; 2],
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
        common: &Common,
    ) -> Submitted {
        let queue = self.queues.entry(name.to_owned()).or_default();
        let at = next_of(queue, rank).unwrap_or_else(|| {
            let (common, submitted) = (common.clone(), BTreeMap::new());
            queue.push_back(Round { common, since: now, submitted });
            queue.len() - 1
        });
        let Some(round) = queue.get_mut(at) else { return Submitted::Waits };
        if round.common != *common {
            let rank = round.submitted.keys().next().copied().unwrap_or(rank);
            let texts = [round.common.beside(common), common.beside(&round.common)];
            return Submitted::Differs { rank, texts };
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

    /// Whether other ranks have submitted the operation that is a rank's next one in a queue.
    pub(super) fn is_begun(&self, name: &str, rank: u16) -> bool {
        self.queues.get(name).is_some_and(|queue| next_of(queue, rank).is_some())
    }

    /// Returns the oldest round that a rank has submitted.
    pub(super) fn oldest_of(&self, rank: u16) -> Option<&Round> {
        let rounds = self.queues.values().flatten();
        rounds.filter(|round| round.submitted.contains_key(&rank)).min_by_key(|round| round.since)
    }
}

/// Returns the first round of a queue that lacks a rank.
fn next_of(queue: &VecDeque<Round>, rank: u16) -> Option<usize> {
    queue.iter().position(|round| !round.submitted.contains_key(&rank))
}

#[cfg(test)]
mod tests {
    use sumac_job::{CollectiveKind, DType, LossBound, Reduction};

    use super::*;

    fn common(count: u64) -> Common {
        let descriptor = OperationDescriptor {
            kind: CollectiveKind::Allreduce,
            reduction: Reduction::Sum,
            dtype: DType::Float32,
            count,
            root: None,
            name: None,
            is_urgent: false,
            loss_bound: LossBound::default(),
        };
        Common { descriptor, priority: 0, importance: Importance::None, result: None }
    }

    fn key(rank: u16, op: u64) -> OperationKey {
        OperationKey { connection: u64::from(rank), op }
    }

    #[test]
    fn a_round_is_complete_when_the_last_rank_submits_it() {
        let mut rounds = Rounds::default();
        let mut add = |rank, op| rounds.add(7, 2, "", (rank, key(rank, op)), &common(op));
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
        let mut add = |name, rank, op| rounds.add(0, 2, name, (rank, key(rank, op)), &common(4));
        assert_eq!(add("a", 0, 1), Submitted::Waits);
        assert_eq!(add("b", 1, 1), Submitted::Waits);
        assert!(matches!(add("a", 1, 2), Submitted::Complete(_)));
        assert!(matches!(add("b", 0, 2), Submitted::Complete(_)));
    }

    #[test]
    fn a_difference_names_the_rank_that_has_another_operation() {
        let mut rounds = Rounds::default();
        rounds.add(0, 3, "", (2, key(2, 1)), &common(4));
        let found = rounds.add(0, 3, "", (1, key(1, 1)), &common(5));
        let texts = ["allreduce sum float32[4]", "allreduce sum float32[5]"].map(str::to_owned);
        assert_eq!(found, Submitted::Differs { rank: 2, texts });
        assert_eq!(rounds.oldest_of(2).map(|round| round.common.descriptor.count), Some(4));
        assert_eq!(rounds.oldest_of(1), None);
    }

    #[test]
    fn a_difference_names_the_options_that_differ() {
        let plain = common(4);
        let result = |offset| Some(SharedResult { number: 3, offset });
        let cases = [
            (Common { priority: 2, ..plain.clone() }, "priority 0", "priority 2"),
            (Common { importance: Importance::High, ..plain.clone() }, "importance none", "importance high"),
            (
                Common { result: result(64), ..plain.clone() },
                "its result in memory of its own",
                "its result at byte 64 of shared region 3",
            ),
        ];
        for (other, ours, theirs) in cases {
            let mut rounds = Rounds::default();
            rounds.add(0, 2, "", (0, key(0, 1)), &plain);
            let texts = [ours, theirs].map(|text| format!("allreduce sum float32[4], {text}"));
            let found = rounds.add(0, 2, "", (1, key(1, 1)), &other);
            assert_eq!(found, Submitted::Differs { rank: 0, texts });
        }
    }

    #[test]
    fn an_operation_is_begun_by_the_first_rank_of_it() {
        let mut rounds = Rounds::default();
        assert!(!rounds.is_begun("", 0));
        rounds.add(0, 2, "", (0, key(0, 1)), &common(4));
        assert!(!rounds.is_begun("", 0) && rounds.is_begun("", 1) && !rounds.is_begun("a", 1));
        rounds.add(0, 2, "", (1, key(1, 1)), &common(4));
        assert!(!rounds.is_begun("", 1));
    }
}

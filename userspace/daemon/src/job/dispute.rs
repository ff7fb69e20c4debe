//! Disputes between the workers of a job: who had what where their streams differ, and whose value could not be sent.
//!
//! What a worker knows by itself is its own half. The other half comes as a notice, if it comes.

use std::collections::VecDeque;
use std::time::Duration;

use sumac_api::Failure;
use tokio::time::Instant;

use crate::explain::mismatch;
use crate::stream::notice::Blame;
use crate::stream::{Claim, Difference, Doubt};

/// How long the other half is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many blames are kept for operations that have not ended here yet.
const KEPT: usize = 64;

/// What ends a job whose workers do not do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    text: String,
    ranks: Vec<u16>,
}

impl Verdict {
    fn between(one: (u16, &Claim), other: (u16, &Claim)) -> Verdict {
        let (low, high) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        Verdict {
            text: format!(
                "the workers do not do the same: rank {} has {} where rank {} has {}",
                low.0, low.1.words, high.0, high.1.words
            ),
            ranks: vec![low.0, high.0],
        }
    }

    /// From what another worker has under a number.
    pub(super) fn of(own: u16, difference: &Difference) -> Verdict {
        Verdict::between((own, &difference.ours), (difference.rank, &difference.theirs))
    }

    /// For the other workers.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// For this worker's clients.
    pub(super) fn failure(&self) -> Failure {
        mismatch(self.text.clone()).ranks(self.ranks.iter().copied())
    }
}

/// A place where the workers' operations differ.
#[derive(Debug)]
pub(super) struct Dispute {
    pub(super) lane: u16,
    pub(super) seq: u32,
    ours: Option<Claim>,
    theirs: Vec<(u16, Claim)>,
    deadline: Instant,
}

impl Dispute {
    pub(super) fn new(lane: u16, seq: u32, ours: Option<Claim>) -> Dispute {
        Dispute { lane, seq, ours, theirs: Vec::new(), deadline: Instant::now() + PATIENCE }
    }

    /// Takes in what another worker had there; the verdict once two differ.
    pub(super) fn hear(&mut self, own: u16, rank: u16, claim: Claim) -> Option<Verdict> {
        if !self.theirs.iter().any(|(other, _)| *other == rank) {
            self.theirs.push((rank, claim));
        }
        let ours = self.ours.iter().map(|claim| (own, claim));
        let all: Vec<(u16, &Claim)> =
            ours.chain(self.theirs.iter().map(|(rank, claim)| (*rank, claim))).collect();
        let first = all.first()?;
        let other = all.iter().find(|(_, claim)| claim.words != first.1.words)?;
        Some(Verdict::between(*first, *other))
    }

    /// The verdict on what is known, when nothing more has come in time.
    pub(super) fn expire(&self, own: u16, now: Instant) -> Option<Verdict> {
        if now < self.deadline {
            return None;
        }
        let known = self.ours.as_ref().map(|claim| (own, claim));
        let known = known.or_else(|| self.theirs.first().map(|(rank, claim)| (*rank, claim)));
        let (lane, seq) = (self.lane, self.seq);
        Some(match known {
            Some((rank, claim)) => Verdict {
                text: format!(
                    "the workers do not do the same: rank {rank} has {}, and another worker something else, which it \
                     has not told (lane {lane}, chunk {seq})",
                    claim.words
                ),
                ranks: vec![rank],
            },
            None => Verdict {
                text: format!("the workers do not do the same at lane {lane}, chunk {seq}"),
                ranks: Vec::new(),
            },
        })
    }
}

/// Operations that failed by another worker's value, and what is known of such values.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    open: Vec<(Doubt, Instant)>,
    blames: VecDeque<(u32, u16, Blame)>,
}

impl Doubts {
    /// Takes a doubt; it comes back at once when its blame has come before it.
    pub(super) fn add(&mut self, doubt: Doubt) -> Option<Doubt> {
        match self.blames.iter().find(|(number, ..)| *number == doubt.number) {
            Some((_, rank, blame)) => Some(settled(doubt, *rank, blame)),
            None => {
                self.open.push((doubt, Instant::now() + PATIENCE));
                None
            }
        }
    }

    /// Takes a blame, and gives the doubts that it settles.
    pub(super) fn blame(&mut self, number: u32, rank: u16, blame: Blame) -> Vec<Doubt> {
        let (met, open) =
            std::mem::take(&mut self.open).into_iter().partition(|(doubt, _)| doubt.number == number);
        self.open = open;
        let met: Vec<(Doubt, Instant)> = met;
        let settled = met.into_iter().map(|(doubt, _)| settled(doubt, rank, &blame)).collect();
        if self.blames.len() == KEPT {
            self.blames.pop_front();
        }
        self.blames.push_back((number, rank, blame));
        settled
    }

    /// The doubts that nobody has settled in time.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Doubt> {
        let (late, open): (Vec<_>, _) =
            std::mem::take(&mut self.open).into_iter().partition(|(_, deadline)| *deadline <= now);
        self.open = open;
        late.into_iter().map(|(doubt, _)| doubt).collect()
    }
}

/// Names the worker and its value.
fn settled(mut doubt: Doubt, rank: u16, blame: &Blame) -> Doubt {
    if let Some(failure) = &mut doubt.outcome.error {
        failure.message = format!("rank {rank}: {}", blame.problem).into();
        failure.ranks = vec![rank];
        failure.index = blame.index.or(failure.index);
        failure.index_end = failure.index_end.filter(|_| blame.index.is_none());
    }
    doubt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::Outcome;
    use crate::stream::ClientId;
    use sumac_api::Code;

    fn claim(words: &str) -> Claim {
        Claim { number: 5, words: words.into() }
    }

    #[test]
    fn both_sides_are_named_the_same_on_both() {
        let (a, b) = (claim("#5 allreduce sum float32[10]"), claim("#5 allreduce sum int32[10]"));
        let mut at_zero = Dispute::new(0, 7, Some(a.clone()));
        let mut at_one = Dispute::new(0, 7, Some(b.clone()));
        let verdict = at_zero.hear(0, 1, b.clone()).unwrap();
        assert_eq!(at_one.hear(1, 0, a), Some(verdict.clone()));
        assert_eq!(
            verdict.text(),
            "the workers do not do the same: rank 0 has #5 allreduce sum float32[10] where rank 1 has #5 allreduce \
             sum int32[10]"
        );
        assert_eq!(verdict.failure().ranks, [0, 1]);
    }

    #[test]
    fn who_agrees_is_not_the_other_side() {
        let mut dispute = Dispute::new(0, 7, Some(claim("a")));
        assert_eq!(dispute.hear(0, 1, claim("a")), None);
        assert_eq!(dispute.expire(0, Instant::now()), None);
        let alone = dispute.expire(0, Instant::now() + PATIENCE).unwrap();
        assert!(alone.text().contains("rank 0 has a, and another worker something else"), "{}", alone.text());
        assert_eq!(dispute.hear(0, 2, claim("b")).unwrap().failure().ranks, [0, 2]);
    }

    #[test]
    fn two_others_can_be_told_apart_by_one_who_has_nothing_there() {
        let mut dispute = Dispute::new(0, 7, None);
        assert_eq!(dispute.hear(0, 2, claim("a")), None);
        assert_eq!(dispute.hear(0, 1, claim("b")).unwrap().failure().ranks, [1, 2]);
    }

    fn doubt(number: u32) -> Doubt {
        let error = Failure::new(Code::Saturated, "somebody's").elements("w", 256, Some(512));
        let outcome = Outcome { duration_ns: 1, error: Some(error) };
        Doubt { number, client: ClientId::OPENER, op: 9, outcome }
    }

    #[test]
    fn a_blame_settles_doubts_before_and_after_it() {
        let blame = Blame { index: Some(300), problem: "tensor w, element 300 is NaN".into() };
        let mut doubts = Doubts::default();
        assert!(doubts.add(doubt(3)).is_none());
        assert!(doubts.add(doubt(4)).is_none());
        let settled = doubts.blame(3, 2, blame.clone());
        let error = settled[0].outcome.error.clone().unwrap();
        assert_eq!((error.ranks, error.index, error.index_end), (vec![2], Some(300), None));
        assert!(error.message.starts_with("rank 2: tensor w"));
        assert!(doubts.add(doubt(3)).is_some(), "another of the same, later");
        assert!(doubts.expire(Instant::now()).is_empty());
        let late = doubts.expire(Instant::now() + PATIENCE);
        assert_eq!((late.len(), late[0].number), (1, 4));
    }
}

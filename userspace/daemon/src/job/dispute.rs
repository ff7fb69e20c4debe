//! Disputes between the workers of a job: who had what where their streams differ, and whose value could not be sent.
//!
//! What a worker knows by itself is its own half. The other half comes as a notice, if it comes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sumac_api::{Failure, OperationOrder};
use tokio::time::Instant;

use crate::explain::{bounded, mismatch};
use crate::stream::notice::{Blame, History};
use crate::stream::{Claim, Doubt};

/// How long what others know is waited for, each time.
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
    fn between(low: (u16, &Claim), high: (u16, &Claim)) -> Verdict {
        Verdict {
            text: format!(
                "the workers do not do the same: rank {} has {} where rank {} has {}",
                low.0, low.1.words, high.0, high.1.words
            ),
            ranks: vec![low.0, high.0],
        }
    }

    /// When the others have not told in time.
    fn alone(rank: u16, claim: Option<&Claim>, place: Option<(u16, u32)>) -> Verdict {
        let place = place.map_or(String::new(), |(lane, seq)| format!(" (lane {lane}, chunk {seq})"));
        match claim {
            Some(claim) => Verdict {
                text: format!(
                    "the workers do not do the same: rank {rank} has {}, and another worker something else, which it \
                     has not told{place}",
                    claim.words
                ),
                ranks: vec![rank],
            },
            None => Verdict { text: format!("the workers do not do the same{place}"), ranks: Vec::new() },
        }
    }

    /// For the other workers.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// For this worker's clients.
    pub(super) fn failure(&self, order: OperationOrder) -> Failure {
        mismatch(bounded(self.text.clone()), order).ranks(self.ranks.iter().copied())
    }
}

/// Where two workers differ first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct First {
    pub(super) number: u32,
    /// The lowest rank that has something there, and the lowest that has something else.
    pub(super) ranks: [u16; 2],
}

/// What a dispute comes to, for now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Others have not said yet what they have.
    Wait,
    /// This worker is one of the two that differ first: it is to tell what it has under this number.
    Tell(u32),
    Convict(Verdict),
}

/// What a worker has submitted, as far as it has been told.
#[derive(Debug, Default)]
struct Told {
    pieces: Vec<History>,
}

impl Told {
    fn add(&mut self, mut piece: History) {
        piece.signatures.truncate(History::SIGNATURES);
        if self.pieces.len() < History::PIECES {
            self.pieces.push(piece);
        }
    }

    fn is_whole(&self) -> bool {
        self.pieces.last().is_some_and(|piece| piece.left == 0)
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        self.pieces
            .iter()
            .flat_map(|piece| (0..piece.signatures.len() as u32).map(|at| piece.first.wrapping_add(at)))
    }

    fn signature(&self, number: u32) -> Option<u32> {
        self.pieces.iter().find_map(|piece| {
            let at = usize::try_from(number.wrapping_sub(piece.first)).ok()?;
            piece.signatures.get(at).copied()
        })
    }
}

/// Workers whose operations differ: which is the first, and what they have there.
///
/// Several operations are in flight at once, and their refusals come in any order. So each worker tells all it has that
/// has not ended, and all find the same first difference in the same lists. The two workers of that one tell the words.
#[derive(Debug)]
pub(super) struct Dispute {
    own: u16,
    world: u16,
    /// Where this worker's data path noticed it: lane and chunk.
    place: Option<(u16, u32)>,
    /// What this worker has there.
    ours: Option<Claim>,
    told: BTreeMap<u16, Told>,
    first: Option<First>,
    claims: BTreeMap<u16, Claim>,
    deadline: Instant,
}

impl Dispute {
    /// A dispute that begins now. This worker is heard like the others.
    pub(super) fn new(
        own: u16,
        world: u16,
        place: Option<(u16, u32)>,
        ours: Option<Claim>,
        now: Instant,
    ) -> Dispute {
        let deadline = now + PATIENCE;
        let (told, claims) = (BTreeMap::new(), BTreeMap::new());
        Dispute { own, world, place, ours, told, first: None, claims, deadline }
    }

    /// Takes in a piece of what a worker has submitted.
    pub(super) fn history(&mut self, rank: u16, piece: History) {
        self.told.entry(rank).or_default().add(piece);
    }

    /// Takes in what a worker has under a number.
    pub(super) fn claim(&mut self, rank: u16, claim: Claim) {
        // Another number's: from a worker who has not waited for all lists.
        if self.first.is_none_or(|first| first.number == claim.number) {
            self.claims.insert(rank, claim);
        }
    }

    /// What to do next.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        let is_due = now >= self.deadline;
        if self.first.is_none() {
            let is_complete =
                self.told.len() == usize::from(self.world) && self.told.values().all(Told::is_whole);
            if !is_complete && !is_due {
                return Step::Wait;
            }
            self.first = self.first_difference();
            self.deadline = now + PATIENCE;
            if let Some(First { number, ranks }) = self.first {
                self.claims.retain(|_, claim| claim.number == number);
                if ranks.contains(&self.own) {
                    return Step::Tell(number);
                }
            }
        }
        let Some(First { ranks: [low, high], .. }) = self.first else {
            return Step::Convict(Verdict::alone(self.own, self.ours.as_ref(), self.place));
        };
        let known = |rank| Some((rank, self.claims.get(&rank)?));
        match (known(low), known(high)) {
            (Some(low), Some(high)) => Step::Convict(Verdict::between(low, high)),
            (one, other) if now >= self.deadline => {
                let (rank, claim) =
                    one.or(other).map_or((self.own, self.ours.as_ref()), |(rank, claim)| (rank, Some(claim)));
                Step::Convict(Verdict::alone(rank, claim, self.place))
            }
            _ => Step::Wait,
        }
    }

    /// The lowest number under which two workers have different operations, of all that have been told.
    fn first_difference(&self) -> Option<First> {
        let base = self.told.values().flat_map(Told::numbers).next()?;
        let differing = self.told.values().flat_map(Told::numbers).filter_map(|number| {
            let mut there =
                self.told.iter().filter_map(|(rank, told)| Some((*rank, told.signature(number)?)));
            let (low, signature) = there.next()?;
            let (high, _) = there.find(|(_, other)| *other != signature)?;
            Some(First { number, ranks: [low, high] })
        });
        // Numbers go round; those of one dispute are close together.
        differing.min_by_key(|first| first.number.wrapping_sub(base) as i32)
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
        failure.message = bounded(format!("rank {rank}: {}", blame.problem)).into();
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

    /// What a worker submitted, from the operation with the number `first` on.
    fn submitted(first: u32, words: &[&str]) -> Vec<Claim> {
        let number = |at: usize| first.wrapping_add(at as u32);
        words.iter().enumerate().map(|(at, words)| Claim::new(number(at), words)).collect()
    }

    /// Has all tell all, in an order turned by `turn`, and gives each worker's verdict.
    fn settle(workers: &[Vec<Claim>], turn: usize) -> Vec<Verdict> {
        let now = Instant::now();
        let world = workers.len();
        let mut disputes: Vec<Dispute> =
            (0..world as u16).map(|own| Dispute::new(own, world as u16, None, None, now)).collect();
        for dispute in &mut disputes {
            for rank in (0..world).map(|rank| (rank + turn) % world) {
                let claims = &workers[rank];
                let signatures: Vec<u32> = claims.iter().map(|claim| claim.signature).collect();
                assert_eq!(dispute.step(now), Step::Wait);
                for piece in History::pieces(claims[0].number, &signatures) {
                    dispute.history(rank as u16, piece);
                }
            }
        }
        let mut claims = Vec::new();
        for (rank, dispute) in disputes.iter_mut().enumerate() {
            if let Step::Tell(number) = dispute.step(now) {
                let claim = workers[rank].iter().find(|claim| claim.number == number).unwrap();
                claims.push((rank as u16, claim.clone()));
            }
        }
        assert_eq!(claims.len(), 2, "two differ first");
        let verdict = |mut dispute: Dispute| {
            for (rank, claim) in &claims {
                assert_eq!(dispute.step(now), Step::Wait);
                dispute.claim(*rank, claim.clone());
            }
            match dispute.step(now) {
                Step::Convict(verdict) => verdict,
                step => panic!("{step:?}"),
            }
        };
        disputes.into_iter().map(verdict).collect()
    }

    /// The verdict on these workers, which must be the same on all.
    fn verdict(workers: &[Vec<Claim>]) -> Verdict {
        let verdicts: Vec<Verdict> = (0..workers.len()).flat_map(|turn| settle(workers, turn)).collect();
        assert!(verdicts.windows(2).all(|pair| pair[0] == pair[1]), "{verdicts:?}");
        verdicts[0].clone()
    }

    #[test]
    fn all_name_the_first_operation_that_differs() {
        let zero = submitted(1, &["a", "b", "c", "d"]);
        let one = submitted(2, &["b", "d", "c"]);
        let verdict = verdict(&[zero, one]);
        assert_eq!(verdict.text(), "the workers do not do the same: rank 0 has #3 c where rank 1 has #3 d");
        assert_eq!(verdict.failure(OperationOrder::Submission).ranks, [0, 1]);
    }

    #[test]
    fn of_several_workers_the_lowest_ranks_that_differ_are_named() {
        let agree = submitted(u32::MAX, &["a", "b"]);
        let behind = submitted(u32::MAX, &["a"]);
        let differs = submitted(u32::MAX, &["a", "x", "y"]);
        let verdict = verdict(&[behind, agree.clone(), agree, differs]);
        assert_eq!(
            (verdict.text.contains("rank 1 has #0 b where rank 3 has #0 x"), verdict.ranks),
            (true, vec![1, 3])
        );
    }

    #[test]
    fn a_difference_late_in_what_is_outstanding_is_found() {
        let mut words = vec!["w"; History::PIECES * History::SIGNATURES];
        let one = submitted(0, &words);
        *words.last_mut().unwrap() = "x";
        let number = words.len() - 1;
        assert!(
            verdict(&[one, submitted(0, &words)])
                .text
                .contains(&format!("rank 0 has #{number} w where rank 1 has"))
        );
    }

    #[test]
    fn who_does_not_tell_is_not_waited_for() {
        let now = Instant::now();
        let ours = Claim::new(5, "a");
        let mut dispute = Dispute::new(0, 3, Some((1, 7)), Some(ours.clone()), now);
        dispute.history(0, History::pieces(5, &[ours.signature]).remove(0));
        assert_eq!(dispute.step(now), Step::Wait);
        let Step::Convict(alone) = dispute.step(now + PATIENCE) else { panic!() };
        assert!(alone.text.contains("rank 0 has #5 a, and another worker something else"), "{}", alone.text);
        assert!(alone.text.contains("lane 1, chunk 7"));
    }

    #[test]
    fn two_of_three_settle_it_without_the_third() {
        let now = Instant::now();
        let (ours, theirs) = (Claim::new(5, "a"), Claim::new(5, "b"));
        let mut dispute = Dispute::new(0, 3, Some((1, 7)), Some(ours.clone()), now);
        dispute.history(0, History::pieces(5, &[ours.signature]).remove(0));
        dispute.history(2, History::pieces(5, &[theirs.signature]).remove(0));
        assert_eq!(dispute.step(now), Step::Wait);
        assert_eq!(dispute.step(now + PATIENCE), Step::Tell(5));
        dispute.claim(0, ours);
        assert_eq!(dispute.step(now + PATIENCE), Step::Wait);
        dispute.claim(2, theirs);
        let Step::Convict(verdict) = dispute.step(now + PATIENCE) else { panic!() };
        assert_eq!(verdict.ranks, [0, 2]);
    }

    #[test]
    fn what_others_tell_without_end_is_not_kept() {
        let mut told = Told::default();
        for _ in 0..100 {
            told.add(History { first: 0, signatures: vec![0; 500], left: 1 });
        }
        assert_eq!(told.numbers().count(), History::PIECES * History::SIGNATURES);
    }

    fn doubt(number: u32) -> Doubt {
        let error = Failure::new(Code::Saturated, "somebody's").elements("w", 256, Some(512));
        let outcome = Outcome { duration_ns: 1, error: Some(error), missed: Vec::new() };
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
        let long = doubts.blame(8, 2, Blame { index: None, problem: "x".repeat(5000) });
        assert!(long.is_empty());
        let told = doubts.add(doubt(8)).unwrap().outcome.error.unwrap();
        assert!(told.message.len() <= crate::explain::MESSAGE_LEN);
        let late = doubts.expire(Instant::now() + PATIENCE);
        assert_eq!((late.len(), late[0].number), (1, 4));
    }
}

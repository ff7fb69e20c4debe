//! Flushes, and the terms that they need.

use super::*;
use crate::budget::{Budget, Terms};

/// The budget of an operation of chunks 0 to 15 whose workers have agreed on a limit of 1.
fn agreed() -> Budget {
    let mut budget = Budget::default();
    budget.agree(Terms { owner: OWNER, operation: 0, end: 16, limit: 1 }, ALL);
    budget
}

/// Decides about a flush, and applies it.
fn flush(before: &SlotMeta, c: Contribution, budget: &mut Budget) -> (SlotMeta, Action) {
    let c = Contribution { limit: 1, flags: c.flags | flag::PARTIAL, ..c };
    let (mut after, action) = decide(before, &c);
    let action = after.bounded(action, &c, budget);
    (after, action)
}

/// A worker that sends a flush without the others' terms, or with a larger limit, completes nothing.
#[test]
fn a_flush_needs_the_terms_of_all() {
    let terms = |worker, limit| Contribution { slot: 0, limit, bound: 16, ..contribution(0, 0, worker) };
    let table = [
        ("no terms: the job has no bound", &[][..], Action::Add(Then::Wait)),
        ("those of one", &[(1, 65_535)], Action::Add(Then::Wait)),
        ("those of two", &[(1, 65_535), (2, 65_535)], Action::Add(Then::Wait)),
        ("those of all", &[(1, 65_535), (2, 1), (4, 1)], Action::Add(Then::Complete)),
    ];
    for (what, stated, expected) in table {
        let (mut budget, mut first) = (Budget::default(), SlotMeta::default());
        for (worker, limit) in stated {
            let (mut after, action) = decide(&first, &terms(*worker, *limit));
            after.bounded(action, &terms(*worker, *limit), &mut budget);
            first = after;
        }
        let (slot, _) = step(&SlotMeta::default(), &contribution(3, 0, 2));
        let at = |seq, v, worker| Contribution { limit: 65_535, ..contribution(seq, v, worker) };
        let (done, action) = flush(&slot, at(3, 0, 1), &mut budget);
        assert_eq!(action, expected, "{what}");
        let is_done = action == Action::Add(Then::Complete);
        assert_eq!(budget.spent[2], u32::from(is_done), "{what}");
        let (next, _) = step(&done, &Contribution { received: 12, ..contribution(11, 1, 2) });
        let action = flush(&next, at(11, 1, 1), &mut budget).1;
        assert!(!matches!(action, Action::Add(Then::Complete)), "{what}: the limit of the others");
    }
}

#[test]
fn a_flush_completes_a_slot_with_what_it_has() {
    let mut budget = agreed();
    let (first, action) = flush(&SlotMeta::default(), contribution(3, 0, 1), &mut budget);
    assert_eq!(
        (action, first.versions[0].state),
        (Action::Store(Then::Wait), 0),
        "one of three is no quorum"
    );
    assert_eq!(flush(&first, contribution(3, 0, 1), &mut budget), (first, Action::Held(Then::Wait)));
    let plain = decide(&first, &contribution(3, 0, 1)).1;
    assert_eq!(plain, Action::Ignore(Reason::Duplicate), "no flush");

    let (second, _) = step(&first, &contribution(3, 0, 2));
    let mut other = budget;
    let (held, action) = flush(&second, contribution(3, 0, 1), &mut other);
    let version = held.versions[0];
    assert_eq!((action, version.state), (Action::Held(Then::Complete), state::FINAL), "by one that is in");
    assert_eq!((version.seen, version.next_exponent), (3, exponent::UNKNOWN));

    let (done, action) = flush(&first, contribution(3, 0, 4), &mut budget);
    assert_eq!((action, done.versions[0].seen), (Action::Add(Then::Complete), 5), "by the second to come");
    assert_eq!(step(&done, &contribution(3, 0, 2)).1, Action::Reply, "whoever is left out gets the result");
    assert_eq!(budget.spent[..3], [0, 1, 0]);
    let job = JobEntry { world: 3, contributors: 3, ..JobEntry::default() };
    let result = answer::result(&Header::default(), &done.versions[0], &job);
    assert_eq!((result.flags, result.bitmap_0, result.contributors), (flag::PARTIAL, 5, 2));

    // The slot's next chunk: a worker that has used its budget is waited for, and moving on needs all to have
    // the result.
    let (next, _) = step(&done, &contribution(11, 1, 1));
    let (next, action) = flush(&next, contribution(11, 1, 4), &mut budget);
    assert_eq!((action, next.versions[1].seen), (Action::Add(Then::Wait), 5));
    let (next, action) = step(&next, &contribution(11, 1, 2));
    assert_eq!((action, next.versions[1].state), (Action::Add(Then::Complete), state::FINAL));
}

#[test]
fn a_flush_changes_no_round_and_no_result() {
    let mut budget = agreed();
    let round = decide(&SlotMeta::default(), &round(3, 0, 1, 4)).0;
    let (after, action) = flush(&round, contribution(3, 0, 2), &mut budget);
    assert_eq!((after, action), (round, Action::Ignore(Reason::OutOfTurn)));
    let whole = SlotMeta { owner: OWNER, versions: [version(3, ALL), Version::default()] };
    assert_eq!(flush(&whole, contribution(3, 0, 2), &mut budget).1, Action::Reply);
    let other = Contribution { tensor: 5, ..contribution(3, 0, 2) };
    let waiting = SlotMeta { owner: OWNER, versions: [version(3, 1), Version::default()] };
    assert_eq!(flush(&waiting, other, &mut budget).1, Action::Refuse);
    assert_eq!(budget, agreed());
}

//! Flushes, and the terms that they need.

use super::*;
use crate::{
    budget::{Agreement, Budget, Terms},
    lane_budget::LaneBudget,
};

/// The budget of an operation of chunks 0 to 15 whose workers have agreed on a limit of 1.
fn agreed() -> Budget {
    let mut budget = Budget::default();
    budget.agree(Terms { owner: OWNER, operation: 0, end: 16, limit: 1 }, ALL);
    budget
}

/// The job's ranks of this aggregator's workers: it has others, too.
fn ranks_of(workers: u32) -> u32 {
    workers << 4
}

/// Decides about a flush, and applies it.
fn flush(before: &SlotMeta, c: Contribution, budget: &mut Budget) -> (SlotMeta, Action) {
    let c = Contribution { limit: 1, flags: c.flags | flag::PARTIAL, ..c };
    let (mut after, action) = decide(before, &c);
    let action = after.bounded(action, &c, budget, ranks_of);
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
            after.bounded(action, &terms(*worker, *limit), &mut budget, ranks_of);
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
    assert_eq!(
        (action, version.state),
        (Action::Held(Then::Complete), state::FINAL | state::PARTIAL),
        "by one that is in"
    );
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

/// A rack's version that a flush completed is not added to, and goes up as it is.
#[test]
fn a_racks_part_is_frozen() {
    let mut budget = agreed();
    let below = |worker| Contribution { child: true, ..contribution(3, 0, worker) };
    let (first, _) = step(&SlotMeta::default(), &below(1));
    let nameless = Contribution { limit: 1, flags: flag::PARTIAL, ..below(2) };
    let (mut after, action) = decide(&first, &nameless);
    assert_eq!(after.bounded(action, &nameless, &mut budget, |_| 0), Action::Add(Then::Wait), "no ranks");
    assert_eq!(budget, agreed());

    let (part, action) = flush(&first, below(2), &mut budget);
    let version = part.versions[0];
    assert_eq!((action, version.state, version.seen), (Action::Add(Then::Up), state::PARTIAL, 0b011));
    assert_eq!((version.next, budget.spent[2]), (0b100 << 4, 1));
    let job = JobEntry { world: 3, contributors: 8, racks: 2, flags: job_flag::CHILD, ..JobEntry::default() };
    let up = answer::part(&Header { contributors: 1, ..Header::default() }, &version, &job);
    assert_eq!((up.flags, up.bitmap_0, up.contributors), (flag::PARTIAL | flag::LEVEL, 0b1011_1111, 7));
    assert_eq!(up.next_exponent, exponent::UNKNOWN);
    for worker in [1, 2, 4] {
        assert_eq!(step(&part, &below(worker)), (part, Action::Forward), "{worker}");
        assert_eq!(flush(&part, below(worker), &mut budget), (part, Action::Forward), "{worker}");
        let empty = Contribution { flags: flag::EMPTY, elements: 0, ..below(worker) };
        assert_eq!(step(&part, &empty).1, Action::Ignore(Reason::Duplicate), "{worker}");
        let question = Contribution { flags: flag::QUERY, elements: 0, ..below(worker) };
        assert_eq!(step(&part, &question).1, Action::Pass, "{worker}");
    }
    assert_eq!(budget.spent[..3], [0, 0, 1]);

    let result = |contributors| {
        let flags = if contributors == 0 { 0 } else { flag::PARTIAL };
        conclude(&part, &Conclusion { contributors, flags, ..conclusion(3, 0) })
    };
    let wrong = (part, Action::Ignore(Reason::WrongWorker));
    assert_eq!(result(0), wrong, "a result that knows nothing of the worker that is left out");
    assert_eq!(result(0b0111_1110), wrong, "a result with it");
    let (done, action) = result(0b1011_1110);
    let version = done.versions[0];
    assert_eq!(action, Action::Store(Then::Complete));
    assert_eq!((version.state, version.seen), (state::FINAL | state::PARTIAL, 0b1011_1110));
    assert_eq!(step(&done, &below(4)).1, Action::Reply, "the worker that is left out gets the result");
    let down = answer::result(&Header::default(), &version, &job);
    assert_eq!((down.flags, down.bitmap_0, down.contributors), (flag::PARTIAL, 0b1011_1110, 6));
}

/// An aggregator of racks waits for all of them, and its sum leaves out whom any part does.
#[test]
fn parts_without_some_workers_are_one_sum() {
    const RANKS: u32 = 0b11_1111;
    let of = |rack, left_out| Contribution { ranks: RANKS, left_out, ..contribution(3, 0, rack) };
    let part = |rack, left_out| Contribution { flags: flag::PARTIAL, ..of(rack, left_out) };
    for child in [false, true] {
        let at = |c: Contribution| Contribution { child, ..c };
        let (first, action) = step(&SlotMeta::default(), &at(part(1, 0b10)));
        assert_eq!((action, first.versions[0].state), (Action::Store(Then::Wait), 0));
        let again = step(&first, &at(part(1, 0b01)));
        assert_eq!(again, (first, Action::Ignore(Reason::Duplicate)));
        let (second, action) = step(&first, &at(of(2, 0)));
        assert_eq!((action, second.versions[0].state), (Action::Add(Then::Wait), 0));
        let (done, action) = decide(&second, &at(part(4, 0b10_0000)));
        let version = done.versions[0];
        if child {
            assert_eq!((action, version.state), (Action::Add(Then::Up), state::PARTIAL));
            assert_eq!((version.seen, version.next), (ALL, 0b10_0010));
            continue;
        }
        assert_eq!((action, version.state), (Action::Add(Then::Complete), state::FINAL | state::PARTIAL));
        let job = JobEntry { world: 3, contributors: 6, flags: job_flag::ROOT, ..JobEntry::default() };
        let result = answer::result(&Header::default(), &version, &job);
        assert_eq!((result.bitmap_0, result.contributors, result.bitmap_1), (0b01_1101, 4, ALL));
    }
}

/// A switch counts a lane's flushed chunks, and notes what ignored packets say.
#[test]
fn a_lane_flushes_as_many_chunks_as_one_worker_may_lose() {
    let mut budget = LaneBudget::default();
    let at = |seq, v, worker| Contribution { limit: 1, bound: 0, ..contribution(seq, v, worker) };
    let flush = |seq, v, worker| Contribution { flags: flag::PARTIAL, ..at(seq, v, worker) };
    let stale = SlotMeta { owner: OWNER, versions: [version(8, ALL), version(16, ALL)] };
    for worker in [1, 2, 4] {
        let terms = Contribution { slot: 0, bound: 16, received: 12, ..at(0, 0, worker) };
        let (after, action) = decide_by_lane(&stale, &terms, &mut budget);
        assert_eq!(action, Action::Ignore(Reason::Stale));
        let noted = [received(version(8, ALL), worker), version(16, ALL)];
        assert_eq!(after.versions, noted, "an ignored packet's terms count, and its sender is noted");
    }
    let agreed = Agreement { operation: 0, end: 16, limit: 1, workers: ALL };
    assert_eq!(budget.latest, agreed);
    let (after, action) = decide_by_lane(&stale, &Contribution { owner: 7, ..at(0, 0, 1) }, &mut budget);
    assert_eq!((after, action), (stale, Action::Ignore(Reason::OutOfTurn)), "another job's slot");
    budget = LaneBudget { owner: OWNER, latest: agreed, ..budget };

    let (first, action) = decide_by_lane(&SlotMeta::default(), &flush(3, 0, 1), &mut budget);
    assert_eq!((action, budget.spent), (Action::Store(Then::Wait), 0), "one of three is no quorum");
    assert_eq!(decide_by_lane(&first, &flush(3, 0, 1), &mut budget), (first, Action::Held(Then::Wait)));
    let (done, action) = decide_by_lane(&first, &flush(3, 0, 4), &mut budget);
    let held = done.versions[0];
    assert_eq!((action, held.seen, held.received), (Action::Add(Then::Complete), 5, 0));
    assert_eq!((held.state, held.next_exponent), (state::FINAL | state::PARTIAL, exponent::UNKNOWN));
    assert_eq!((budget.spent_of, budget.spent), (0, 1));
    assert_eq!(decide_by_lane(&done, &flush(3, 0, 2), &mut budget).1, Action::Reply);

    let (next, _) = decide_by_lane(&done, &at(11, 1, 2), &mut budget);
    let (next, action) = decide_by_lane(&next, &flush(11, 1, 1), &mut budget);
    assert_eq!(action, Action::Add(Then::Wait), "whoever is left out: the lane's chunk is spent");
    let (last, action) = decide_by_lane(&next, &flush(11, 1, 4), &mut budget);
    assert_eq!((action, last.versions[1].state), (Action::Add(Then::Complete), state::FINAL));
    assert_eq!(last.versions[0].received, 0b111);
}

/// Before a version is final nobody has its result.
#[test]
fn results_of_final_versions_are_noted() {
    let waiting = SlotMeta { owner: OWNER, versions: [version(3, 3), Version::default()] };
    let hasty = Contribution { received: 100, ..contribution(3, 0, 4) };
    assert_eq!(decide(&waiting, &hasty).0.versions[0].received, 0);
    let (done, _) = step(&waiting, &contribution(3, 0, 4));
    assert_eq!(decide(&done, &hasty).0.versions[0].received, 4);
}

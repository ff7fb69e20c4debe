//! The tables of `docs/protocol.md`, row by row.

mod empty;
mod flushes;

use super::*;
use crate::{
    Header,
    tables::{JobEntry, job_flag},
};

const ALL: u32 = 0b111;
const OWNER: u32 = owner(1, 1);

fn version(seq: u32, seen: u32) -> Version {
    let state = if seen == ALL { state::FINAL } else { 0 };
    let next = if seen == ALL { seq.wrapping_add(16) } else { 0 };
    Version { seq, seen, next, elements: 4, state, exponent: exponent::NONE, ..Version::default() }
}

fn contribution(seq: u32, v: u8, worker: u32) -> Contribution {
    Contribution {
        owner: OWNER,
        seq,
        slot: 3,
        lane: 0,
        version: v,
        worker,
        all: ALL,
        awaited: ALL,
        slots: 8,
        tensor: 0,
        elements: 4,
        flags: 0,
        received: seq,
        next_exponent: 0,
        child: false,
        ranks: ALL,
        left_out: 0,
        limit: 0,
        bound: 0,
    }
}

/// The version, with these senders known to have its result.
fn received(version: Version, received: u32) -> Version {
    Version { received, ..version }
}

/// Decides, and draws as an aggregator without work stealing does.
fn step(before: &SlotMeta, c: &Contribution) -> (SlotMeta, Action) {
    let (mut after, action) = decide(before, c);
    if matches!(action, Action::Store(Then::Complete) | Action::Add(Then::Complete)) {
        after.set_next(c.version, c.seq.wrapping_add(2 * c.slots));
    }
    (after, action)
}

/// The table of `docs/protocol.md`, row by row: slots of 8, slot 3.
#[test]
fn table_of_cases() {
    let empty = Version::default();
    let only = |seq, seen| [version(seq, seen), empty];
    let (none, newest) = ([empty; 2], [version(19, 7), version(11, 7)]);
    let (store, out_of_turn) = (Action::Store(Then::Wait), Action::Ignore(Reason::OutOfTurn));
    let (duplicate, stale) = (Action::Ignore(Reason::Duplicate), Action::Ignore(Reason::Stale));
    let partial = Version { seen: 3, ..version(11, ALL) };
    let moved_on = [received(version(3, 7), 3), version(11, 3)];
    let not_all = [received(version(3, 7), 3), partial];
    type Case = (&'static str, [Version; 2], (u32, u8, u32), Action, [Version; 2]);
    let table: [Case; 20] = [
        ("first ever", none, (3, 0, 1), store, only(3, 1)),
        ("first ever, but not the slot's first", none, (11, 1, 2), out_of_turn, none),
        ("first ever, from far ahead", none, (1 << 20 | 3, 0, 2), out_of_turn, none),
        ("second worker", only(3, 1), (3, 0, 2), Action::Add(Then::Wait), only(3, 3)),
        ("last worker", only(3, 3), (3, 0, 4), Action::Add(Then::Complete), only(3, 7)),
        ("sent again, slot waits", only(3, 3), (3, 0, 2), duplicate, only(3, 3)),
        ("sent again, slot complete", only(3, 7), (3, 0, 2), Action::Reply, only(3, 7)),
        ("next chunk", only(3, 7), (11, 1, 2), store, [received(version(3, 7), 2), version(11, 2)]),
        ("result lost, others moved on", moved_on, (3, 0, 4), Action::Reply, moved_on),
        (
            "chunk after next",
            [received(version(3, 7), 7), version(11, 7)],
            (19, 0, 1),
            store,
            [version(19, 1), received(version(11, 7), 1)],
        ),
        (
            "chunk after next, by the last sender that was not known to have the old result",
            [received(version(3, 7), 6), partial],
            (19, 0, 1),
            store,
            [version(19, 1), received(partial, 1)],
        ),
        (
            "chunk after next, but one sender may lack the old result",
            not_all,
            (19, 0, 1),
            Action::Postpone,
            [not_all[0], received(partial, 1)],
        ),
        (
            "contribution to a chunk that is complete without it",
            not_all,
            (11, 1, 4),
            Action::Reply,
            [received(version(3, 7), 7), partial],
        ),
        (
            "delayed duplicate of the chunk before last",
            [version(19, 1), version(11, 7)],
            (3, 0, 2),
            stale,
            [version(19, 1), version(11, 7)],
        ),
        ("next chunk before this one is complete", only(3, 3), (11, 1, 1), out_of_turn, only(3, 3)),
        ("this version again before the other was used", only(3, 7), (19, 0, 1), out_of_turn, only(3, 7)),
        ("two rounds ahead: may lack the newest result", newest, (35, 0, 1), out_of_turn, newest),
        ("from far ahead", newest, (1 << 20 | 3, 1, 1), out_of_turn, newest),
        (
            "older than the other version, this one unused",
            [empty, version(11, 7)],
            (3, 0, 1),
            out_of_turn,
            [empty, version(11, 7)],
        ),
        (
            "over the wrap of seq",
            [received(version(u32::MAX - 12, 7), 7), version(u32::MAX - 4, 7)],
            (3, 0, 1),
            store,
            [version(3, 1), received(version(u32::MAX - 4, 7), 1)],
        ),
    ];
    for (what, versions, (seq, v, worker), action, after) in table {
        let before = SlotMeta { owner: OWNER, versions };
        let after = SlotMeta { owner: OWNER, versions: after };
        assert_eq!(step(&before, &contribution(seq, v, worker)), (after, action), "{what}");
    }
}

#[test]
fn another_owner_finds_the_slot_empty() {
    let before = SlotMeta { owner: owner(1, 1), versions: [version(3, 3), version(11, 7)] };
    let c = Contribution { owner: owner(1, 2), ..contribution(3, 0, 1) };
    let after = SlotMeta { owner: c.owner, versions: [version(3, 1), Version::default()] };
    assert_eq!(decide(&before, &c), (after, Action::Store(Then::Wait)));
}

#[test]
fn one_worker_completes_alone() {
    let c = Contribution { all: 1, awaited: 1, ..contribution(3, 0, 1) };
    let (after, action) = decide(&SlotMeta::default(), &c);
    assert_eq!(action, Action::Store(Then::Complete));
    assert_eq!(decide(&after, &c).1, Action::Reply);
}

#[test]
fn flags_are_merged_and_only_those() {
    let first = Contribution { flags: flag::RESEND | flag::ECN_ECHO, ..contribution(3, 0, 1) };
    let (after, _) = decide(&SlotMeta::default(), &first);
    assert_eq!(after.versions[0].flags, flag::ECN_ECHO);
    let second = Contribution { flags: flag::OVERFLOW, ..contribution(3, 0, 2) };
    assert_eq!(decide(&after, &second).0.versions[0].flags, flag::ECN_ECHO | flag::OVERFLOW);
}

#[test]
fn a_different_length_is_refused() {
    let (after, _) = decide(&SlotMeta::default(), &contribution(3, 0, 1));
    for worker in [1, 2] {
        let c = Contribution { elements: 5, ..contribution(3, 0, worker) };
        assert_eq!(decide(&after, &c), (after, Action::Ignore(Reason::WrongElements)), "worker {worker}");
    }
}

#[test]
fn the_result_says_which_chunk_comes_next() {
    let stolen = Version { next: 40, ..version(3, ALL) };
    let before = SlotMeta { owner: OWNER, versions: [received(stolen, ALL), version(11, ALL)] };
    assert_eq!(decide(&before, &contribution(19, 0, 1)).1, Action::Ignore(Reason::OutOfTurn));
    let (after, action) = decide(&before, &contribution(40, 0, 1));
    assert_eq!((after.versions[0].seq, action), (40, Action::Store(Then::Wait)));
    assert_eq!(decide(&after, &contribution(19, 0, 2)).1, Action::Ignore(Reason::Stale));
}

#[test]
fn an_empty_slot_takes_only_its_own_first_chunk() {
    for (seq, version) in [(4, 0), (11, 0), (11, 1), (3, 1), (3 + (1 << 20), 0), (u32::MAX - 4, 0)] {
        let c = contribution(seq, version, 1);
        assert_eq!(decide(&SlotMeta::default(), &c).1, Action::Ignore(Reason::OutOfTurn), "{seq}");
    }
}

#[test]
fn another_operation_is_refused_and_changes_nothing() {
    let (first, _) = decide(&SlotMeta::default(), &contribution(3, 0, 1));
    let other = Contribution { tensor: 5, ..contribution(3, 0, 2) };
    assert_eq!(decide(&first, &other), (first, Action::Refuse));
    let shorter = Contribution { elements: 2, ..other };
    assert_eq!(decide(&first, &shorter), (first, Action::Refuse), "before its length is looked at");
    let round = Contribution { flags: flag::EXPONENT, elements: 0, ..other };
    assert_eq!(decide(&first, &round), (first, Action::Refuse));
}

#[test]
fn a_sum_stays_a_sum_and_a_maximum_a_maximum() {
    for first in [0, flag::MAXIMUM] {
        let of = |worker, flags| Contribution { flags, ..contribution(3, 0, worker) };
        let (held, _) = decide(&SlotMeta::default(), &of(1, first));
        for worker in [1, 2] {
            let other = of(worker, first ^ flag::MAXIMUM);
            assert_eq!(decide(&held, &other), (held, Action::Refuse), "worker {worker}");
        }
        let (held, _) = decide(&held, &of(2, first));
        let (whole, action) = step(&held, &of(4, first));
        assert_eq!((action, whole.versions[0].flags), (Action::Add(Then::Complete), first));
        let job = JobEntry { world: 3, ..JobEntry::default() };
        assert_eq!(
            answer::result(&Header::default(), &whole.versions[0], &job).flags,
            0,
            "slots' own business"
        );
    }
}

/// The table of questions in `docs/protocol.md`.
#[test]
fn a_question_only_notes_how_far_its_sender_has_received() {
    let (empty, duplicate) = (Version::default(), Action::Ignore(Reason::Duplicate));
    let agreed = Version { state: state::AGREED, ..version(3, 0) };
    let asked = Version { state: state::ROUND, ..version(3, 1) };
    let out_of_turn = Action::Ignore(Reason::OutOfTurn);
    type Case = (&'static str, [Version; 2], (u32, u8, u32), [Action; 2]);
    // What an aggregator alone does, and what a child does.
    let table: [Case; 11] = [
        ("nobody has come yet", [empty, empty], (3, 0, 1), [Action::Want; 2]),
        ("nobody has come to the next", [version(3, 7), empty], (11, 1, 1), [Action::Want; 2]),
        ("others have come", [version(3, 3), empty], (3, 0, 4), [Action::Want; 2]),
        ("it has come", [version(3, 3), empty], (3, 0, 2), [duplicate; 2]),
        ("all have come", [version(3, 7), empty], (3, 0, 2), [Action::Want; 2]),
        ("after the exponent", [agreed, empty], (3, 0, 2), [Action::Want; 2]),
        ("before the exponent", [asked, empty], (3, 0, 1), [out_of_turn; 2]),
        ("an old one", [version(19, 1), version(11, 7)], (3, 0, 2), [Action::Ignore(Reason::Stale); 2]),
        ("out of turn", [version(3, 3), empty], (11, 1, 1), [out_of_turn; 2]),
        ("not the first", [empty, empty], (11, 0, 1), [out_of_turn; 2]),
        (
            "all of this rack have come",
            [Version { state: 0, ..version(3, 7) }, empty],
            (3, 0, 2),
            [Action::Pass; 2],
        ),
    ];
    for (what, versions, (seq, v, worker), actions) in table {
        let before = SlotMeta { owner: OWNER, versions };
        for (child, action) in [false, true].into_iter().zip(actions) {
            let c = Contribution { flags: flag::QUERY, elements: 0, child, ..contribution(seq, v, worker) };
            let mut noted = before;
            if !matches!(action, Action::Ignore(_)) {
                noted.versions.iter_mut().for_each(|version| version.note(&c));
            }
            assert_eq!(decide(&before, &c), (noted, action), "{what}, child: {child}");
        }
    }
    let before = SlotMeta { owner: OWNER, versions: [version(3, 3), empty] };
    let c = Contribution { flags: flag::QUERY, elements: 0, ..contribution(3, 0, 4) };
    assert_eq!(decide(&before, &Contribution { tensor: 5, ..c }), (before, Action::Refuse));
    assert_eq!(
        decide(&before, &Contribution { flags: c.flags | flag::MAXIMUM, ..c }),
        (before, Action::Refuse)
    );
}

#[test]
fn a_question_that_went_up_comes_back_to_its_worker() {
    let question = Header { flags: flag::QUERY | flag::POOL_VERSION, bitmap_0: 4, ..Header::default() };
    let child = JobEntry { world: 3, rack: 1, racks: 2, ..JobEntry::default() };
    let up = answer::question(&question, &child);
    assert_eq!((up.bitmap_0, up.bitmap_1, up.fan_in_1), (4, 2, 2));
    assert_eq!(up.flags, flag::QUERY | flag::POOL_VERSION | flag::LEVEL);
    let root = JobEntry { world: 2, contributors: 6, flags: job_flag::ROOT, ..JobEntry::default() };
    let down = answer::wanted(&up, &root);
    assert_eq!((down.bitmap_0, down.flags), (4, up.flags));
    let answer = answer::wanted(&down, &child);
    assert_eq!((answer.bitmap_0, answer.flags), (4, question.flags));

    let part = Version { state: 0, ..version(3, 7) };
    let before = SlotMeta { owner: OWNER, versions: [part, Version::default()] };
    let wanted = Conclusion { flags: flag::QUERY, elements: 0, ..conclusion(3, 0) };
    assert_eq!(conclude(&before, &wanted), (before, Action::Want));
    let known = SlotMeta { owner: OWNER, versions: [version(3, 7), Version::default()] };
    assert_eq!(conclude(&known, &wanted).1, Action::Ignore(Reason::Duplicate));
}

fn round(seq: u32, v: u8, worker: u32, exponent: i8) -> Contribution {
    Contribution {
        flags: flag::EXPONENT,
        elements: 0,
        next_exponent: exponent,
        ..contribution(seq, v, worker)
    }
}

//= switchml#4.6 block floating point with an exponent one chunk ahead
#[test]
fn an_exponent_round_comes_before_its_chunk() {
    let mut slot = SlotMeta::default();
    let mut take = |c: Contribution| {
        let (after, action) = step(&slot, &c);
        slot = after;
        (action, after.versions[usize::from(c.version)])
    };
    assert_eq!(take(round(3, 0, 1, -5)).0, Action::Ask(Then::Wait));
    assert_eq!(take(round(3, 0, 1, 9)).0, Action::Ignore(Reason::Duplicate));
    assert_eq!(take(contribution(3, 0, 1)).0, Action::Ignore(Reason::OutOfTurn), "nothing is agreed on");
    assert_eq!(take(round(3, 0, 2, 7)).0, Action::Ask(Then::Wait));
    let (action, held) = take(round(3, 0, 4, -9));
    assert_eq!((action, held.exponent), (Action::Ask(Then::Complete), 7));
    assert_eq!(take(round(3, 0, 1, -5)).0, Action::ReplyExponent, "its result was lost");
    assert_eq!(take(contribution(3, 0, 2)).0, Action::Store(Then::Wait));
    assert_eq!(take(round(3, 0, 1, -5)).0, Action::ReplyExponent, "and others went on");
    assert_eq!(take(contribution(3, 0, 1)).0, Action::Add(Then::Wait));
    let (action, held) = take(Contribution { next_exponent: 3, ..contribution(3, 0, 4) });
    assert_eq!((action, held.next_exponent, held.next), (Action::Add(Then::Complete), 3, 19));
    assert_eq!(take(contribution(11, 1, 4)).0, Action::Store(Then::Wait), "whose exponent came with that");
    assert_eq!(
        take(round(11, 1, 2, 0)).0,
        Action::Ignore(Reason::OutOfTurn),
        "so that no round belongs to it"
    );
    assert_eq!(take(round(3, 0, 1, -5)).0, Action::ReplyExponent, "a late duplicate does no harm");
}

#[test]
fn the_largest_exponent_wins_and_the_unknown_one_over_all() {
    for (others, expected) in
        [([-3, 4], 4), ([exponent::NONE, exponent::LEAST], 0), ([126, exponent::UNKNOWN], 127)]
    {
        let mut slot = SlotMeta::default();
        for (worker, next_exponent) in [(1, 0), (2, others[0]), (4, others[1])] {
            slot = decide(&slot, &Contribution { next_exponent, ..contribution(3, 0, worker) }).0;
        }
        assert_eq!(slot.versions[0].next_exponent, expected, "{others:?}");
    }
}

fn conclusion(seq: u32, v: u8) -> Conclusion {
    Conclusion {
        owner: OWNER,
        seq,
        version: v,
        all: ALL,
        tensor: 0,
        elements: 4,
        flags: 0,
        exponent: 0,
        next_exponent: 6,
        next_seq: 30,
        contributors: 0,
    }
}

#[test]
fn a_child_waits_for_its_parent() {
    let child = |c: Contribution| Contribution { child: true, ..c };
    let before = SlotMeta { owner: OWNER, versions: [version(3, 3), Version::default()] };
    assert_eq!(conclude(&before, &conclusion(3, 0)).1, Action::Ignore(Reason::OutOfTurn));
    let (part, action) = decide(&before, &child(contribution(3, 0, 4)));
    assert_eq!((action, part.versions[0].state), (Action::Add(Then::Up), 0));
    assert_eq!(decide(&part, &child(contribution(3, 0, 1))), (part, Action::Forward));
    assert_eq!(decide(&part, &child(contribution(11, 1, 1))).1, Action::Ignore(Reason::OutOfTurn));

    let table: [(&str, Conclusion, Action); 5] = [
        ("of an older chunk", conclusion(11, 0), Action::Ignore(Reason::Stale)),
        ("of another owner", Conclusion { owner: 7, ..conclusion(3, 0) }, Action::Ignore(Reason::Stale)),
        (
            "another operation",
            Conclusion { tensor: 1, ..conclusion(3, 0) },
            Action::Ignore(Reason::WrongPlace),
        ),
        (
            "another length",
            Conclusion { elements: 3, ..conclusion(3, 0) },
            Action::Ignore(Reason::WrongElements),
        ),
        ("a refusal", Conclusion { tensor: 1, flags: flag::MISMATCH, ..conclusion(3, 0) }, Action::Refuse),
    ];
    for (what, c, action) in table {
        assert_eq!(conclude(&part, &c), (part, action), "{what}");
    }
    let (whole, action) = conclude(&part, &Conclusion { flags: flag::OVERFLOW, ..conclusion(3, 0) });
    let held = whole.versions[0];
    assert_eq!(action, Action::Store(Then::Complete));
    assert_eq!(
        (held.state, held.next, held.next_exponent, held.flags),
        (state::FINAL, 30, 6, flag::OVERFLOW)
    );
    assert_eq!(conclude(&whole, &conclusion(3, 0)).1, Action::Ignore(Reason::Duplicate));
    assert_eq!(decide(&whole, &child(contribution(3, 0, 1))).1, Action::Reply);
    assert_eq!(decide(&whole, &child(contribution(11, 1, 1))).1, Action::Store(Then::Wait));
}

#[test]
fn a_child_asks_its_parent_for_the_exponent() {
    let child = |c: Contribution| Contribution { child: true, ..c };
    let mut slot = SlotMeta::default();
    for (worker, then) in [(1, Then::Wait), (2, Then::Wait), (4, Then::Up)] {
        let (after, action) = decide(&slot, &child(round(3, 0, worker, worker as i8)));
        assert_eq!(action, Action::Ask(then));
        slot = after;
    }
    assert_eq!(slot.versions[0].exponent, 4);
    assert_eq!(decide(&slot, &child(round(3, 0, 2, 2))).1, Action::ForwardExponent);
    assert_eq!(decide(&slot, &child(contribution(3, 0, 2))).1, Action::Ignore(Reason::OutOfTurn));
    let answer = Conclusion { flags: flag::EXPONENT, elements: 0, exponent: 12, ..conclusion(3, 0) };
    let (agreed, action) = conclude(&slot, &answer);
    assert_eq!((action, agreed.versions[0].exponent), (Action::Ask(Then::Complete), 12));
    assert_eq!(conclude(&agreed, &answer).1, Action::Ignore(Reason::Duplicate));
    assert_eq!(decide(&agreed, &child(round(3, 0, 2, 2))).1, Action::ReplyExponent);
    assert_eq!(decide(&agreed, &child(contribution(3, 0, 2))).1, Action::Store(Then::Wait));
}

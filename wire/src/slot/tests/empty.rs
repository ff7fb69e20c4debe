//! Contributions without values.

use super::*;

/// The table of empty contributions in `docs/protocol.md`.
#[test]
fn an_empty_contribution_counts_its_sender_and_never_completes() {
    let empty = Version::default();
    let only = |version| [version, empty];
    let no_values = |seen| Version { elements: 0, ..version(3, seen) };
    let agreed = Version { state: state::AGREED, ..version(3, 0) };
    let asked = Version { state: state::ROUND, ..version(3, 1) };
    let not_final = Version { state: 0, next: 0, ..version(3, 7) };
    let (store, add) = (Action::Store(Then::Wait), Action::Add(Then::Wait));
    let (duplicate, out_of_turn) = (Action::Ignore(Reason::Duplicate), Action::Ignore(Reason::OutOfTurn));
    type Case = (&'static str, [Version; 2], (u32, u8, u32), Action, [Version; 2]);
    let table: [Case; 14] = [
        ("first ever", [empty; 2], (3, 0, 1), store, only(no_values(1))),
        ("second, also without values", only(no_values(1)), (3, 0, 2), store, only(no_values(3))),
        ("second, after values", only(version(3, 1)), (3, 0, 2), add, only(version(3, 3))),
        ("last, after values", only(version(3, 3)), (3, 0, 4), Action::Want, only(version(3, 3))),
        ("last of nobody's values", only(no_values(3)), (3, 0, 4), Action::Want, only(no_values(3))),
        ("sent again", only(no_values(3)), (3, 0, 2), duplicate, only(no_values(3))),
        ("sent again, after values", only(version(3, 3)), (3, 0, 2), duplicate, only(version(3, 3))),
        ("sent again, slot complete", only(version(3, 7)), (3, 0, 2), Action::Want, only(version(3, 7))),
        ("sent again, sent up", only(not_final), (3, 0, 2), duplicate, only(not_final)),
        (
            "next chunk",
            only(version(3, 7)),
            (11, 1, 2),
            store,
            [received(version(3, 7), 2), Version { elements: 0, ..version(11, 2) }],
        ),
        (
            "after the exponent",
            only(agreed),
            (3, 0, 2),
            store,
            only(Version { seen: 2, elements: 0, ..agreed }),
        ),
        ("before the exponent", only(asked), (3, 0, 2), out_of_turn, only(asked)),
        ("out of turn", only(version(3, 3)), (11, 1, 1), out_of_turn, only(version(3, 3))),
        (
            "an old one",
            [version(19, 1), version(11, 7)],
            (3, 0, 2),
            Action::Ignore(Reason::Stale),
            [version(19, 1), version(11, 7)],
        ),
    ];
    for (what, versions, (seq, v, worker), action, after) in table {
        let before = SlotMeta { owner: OWNER, versions };
        let after = SlotMeta { owner: OWNER, versions: after };
        let c = Contribution { flags: flag::EMPTY, elements: 0, ..contribution(seq, v, worker) };
        assert_eq!(step(&before, &c), (after, action), "{what}");
        let other = Contribution { tensor: 5, ..c };
        if seq == before.versions[0].seq && before.versions[0].is_used() {
            assert_eq!(decide(&before, &other).1, Action::Refuse, "{what}, another operation");
        }
    }
    let alone = Contribution { flags: flag::EMPTY, elements: 0, all: 1, awaited: 1, ..contribution(3, 0, 1) };
    assert_eq!(decide(&SlotMeta::default(), &alone), (SlotMeta::default(), Action::Want), "the only worker");
}

#[test]
fn the_first_values_replace_those_of_another_chunk() {
    let before =
        SlotMeta { owner: OWNER, versions: [Version { elements: 0, ..version(3, 1) }, Version::default()] };
    let merged = Contribution { flags: flag::OVERFLOW, next_exponent: 5, ..contribution(3, 0, 2) };
    let expected = Version { flags: flag::OVERFLOW, next_exponent: 5, ..version(3, 3) };
    let (after, action) = decide(&before, &merged);
    assert_eq!((after.versions[0], action), (expected, Action::Store(Then::Wait)));
    assert_eq!(step(&after, &contribution(3, 0, 4)).1, Action::Add(Then::Complete));

    let before =
        SlotMeta { versions: [Version { elements: 0, ..version(3, 3) }, before.versions[1]], ..before };
    let (after, action) = step(&before, &contribution(3, 0, 4));
    assert_eq!(
        (after.versions[0], action),
        (version(3, 7), Action::Store(Then::Complete)),
        "the only values"
    );
    let up = Contribution { child: true, ..contribution(3, 0, 4) };
    assert_eq!(decide(&before, &up).1, Action::Store(Then::Up));

    let again = contribution(3, 0, 2);
    let flush = Contribution { flags: flag::PARTIAL, limit: 9, ..again };
    for c in [again, flush] {
        let duplicate = Action::Ignore(Reason::Duplicate);
        assert_eq!(decide(&before, &c), (before, duplicate), "its zeros, which are in: {:#x}", c.flags);
    }
    let maximum = Contribution { flags: flag::MAXIMUM, ..contribution(3, 0, 4) };
    assert_eq!(decide(&before, &maximum), (before, Action::Refuse));
}

/// The elements that make an empty contribution the last one of its chunk, and of no other.
#[test]
fn the_last_empty_contribution_lacks_the_others_elements() {
    let elements = version(3, 3).elements;
    let part = Version { state: state::PARTIAL, ..version(3, 3) };
    let asked = Version { state: state::ROUND, ..version(3, 3) };
    let table = [
        ("the last", version(3, 3), elements),
        ("of nobody's values", Version { elements: 0, ..version(3, 3) }, 0),
        ("not the last", version(3, 1), 0),
        ("the first", Version::default(), 0),
        ("sent again", version(3, 7), 0),
        ("its chunk went up without it", part, 0),
        ("an exponent round", asked, 0),
        ("another chunk", version(11, 3), 0),
        ("another operation", Version { tensor: 5, ..version(3, 3) }, 0),
        ("a maximum", Version { flags: flag::MAXIMUM, ..version(3, 3) }, 0),
    ];
    for (what, version, lacks) in table {
        let c = Contribution { flags: flag::EMPTY, elements: 0, ..contribution(3, 0, 4) };
        assert_eq!(version.lacking(&c), lacks, "{what}");
        assert_eq!(version.lacking(&Contribution { flags: 0, ..c }), 0, "{what}, of values");
        if lacks != 0 {
            let before = SlotMeta { owner: OWNER, versions: [version, Version::default()] };
            let zeros = Contribution { flags: 0, elements: lacks, ..c };
            assert_eq!(
                (decide(&before, &c).1, decide(&before, &zeros).1),
                (Action::Want, Action::Add(Then::Complete))
            );
        }
    }
}

//! The cases of a switch's job with a budget for each lane (docs/protocol.md, "Profile of a switch").

use std::slice;

use super::{Again, All, Case, ELEMENTS, Flush, From, PARTIAL, Packet, Terms, WORKERS, static_job, vectors};
use crate::record::{Job, Setup, Step};
use sumac_wire::Reason::{Added, Completed, Duplicate, OutOfTurn, Replied, Stale};

/// The terms of an operation that begins with chunk 0, by all workers.
const T0: Packet = Terms(0, 0, 1);
const T1: Packet = Terms(1, 0, u16::MAX);
const T2: Packet = Terms(2, 0, 1);

/// A lane of 4 slots, of 3 workers. A flush is one of the operation that begins with chunk 0.
const BOUNDED: [Case; 16] = [
    ("bounded: a flush where nobody has stated terms", &[From(0, 3), Flush(1, 3)], Added, None, &[(3, 3)]),
    (
        "bounded: a flush where one has not stated terms",
        &[T0, T1, From(2, 0), From(0, 3), Flush(1, 3)],
        Added,
        None,
        &[(3, 3)],
    ),
    (
        "bounded: a flush within the limit",
        &[T0, T1, T2, From(0, 3), Flush(1, 3)],
        Completed,
        PARTIAL,
        &[(3, 3)],
    ),
    ("bounded: a flush of one", &[T0, T1, T2, Flush(1, 3)], Added, None, &[(3, 2)]),
    (
        "bounded: a flush by one whose values are in",
        &[T0, T1, T2, From(0, 3), From(1, 3), Flush(0, 3)],
        Completed,
        PARTIAL,
        &[(3, 3)],
    ),
    (
        "bounded: a flush beyond the lane's limit",
        &[T0, T1, T2, From(0, 3), Flush(1, 3), From(0, 2), Flush(1, 2)],
        Added,
        None,
        &[(2, 3)],
    ),
    (
        "bounded: the lane's limit holds for another worker, too",
        &[T0, T1, T2, From(0, 3), Flush(1, 3), From(0, 2), From(2, 2), Flush(0, 2)],
        Duplicate,
        None,
        &[(2, 5)],
    ),
    (
        "bounded: a late contribution",
        &[T0, T1, T2, From(0, 3), Flush(1, 3), From(2, 3)],
        Replied,
        PARTIAL,
        &[(3, 3)],
    ),
    (
        "bounded: a flush again",
        &[T0, T1, T2, From(0, 3), Flush(1, 3), Flush(1, 3)],
        Replied,
        PARTIAL,
        &[(3, 3)],
    ),
    (
        "bounded: all have the result of a chunk without one",
        &[T0, T1, T2, From(0, 3), Flush(1, 3), From(0, 7), Flush(1, 7), Again(2, 3), All(7), From(0, 11)],
        Added,
        None,
        &[(11, 1), (7, 7)],
    ),
    (
        "bounded: a result that one lacks",
        &[T0, T1, T2, All(3), From(0, 7), Flush(1, 7), From(0, 11)],
        OutOfTurn,
        None,
        &[(3, 7), (7, 3)],
    ),
    (
        "bounded: behind the operation",
        &[T0, T1, T2, All(4), From(0, 8), Flush(1, 8)],
        Added,
        None,
        &[(8, 3), (4, 7)],
    ),
    (
        "bounded: terms of a later operation",
        &[T0, T1, T2, Terms(0, 1, 1), From(0, 3), Flush(1, 3)],
        Added,
        None,
        &[(3, 3)],
    ),
    (
        "bounded: the second of two chunks",
        &[Terms(0, 0, 2), T1, Terms(2, 0, 3), From(0, 3), Flush(1, 3), From(0, 2), Flush(1, 2)],
        Completed,
        PARTIAL,
        &[(2, 3)],
    ),
    (
        "bounded: the third of two chunks",
        &[
            Terms(0, 0, 2),
            T1,
            Terms(2, 0, 3),
            From(0, 3),
            Flush(1, 3),
            From(0, 2),
            Flush(1, 2),
            From(0, 1),
            Flush(1, 1),
        ],
        Added,
        None,
        &[(1, 3)],
    ),
    ("bounded: stale", &[All(3), All(7), From(0, 11), From(1, 3)], Stale, None, &[(11, 1), (7, 7)]),
];

/// Returns the cases, all with the same job, which only a switch has.
pub fn bounded() -> Vec<(Setup, Vec<Step>)> {
    let job = Job { bounded: true, ..static_job(1, WORKERS as u8, ELEMENTS) };
    BOUNDED.iter().map(|case| vectors(slice::from_ref(&job), &job, &job, case)).collect()
}

//! The table of a slot's cases (docs/protocol.md, "Slots"), each from an empty slot.

use sumac_wire::Reason::{self, Added, Completed, Duplicate, Mismatch, OutOfTurn, Replied, Stale};

use crate::{
    packets::{TOS, frame, header, setup, static_job},
    record::{Setup, Step},
    reference::Reference,
};

/// A case: its name, contributions as (rank, chunk), and the counter of the last.
type Case = (&'static str, &'static [(usize, u32)], Reason);

/// Three workers and a lane of 4 slots; chunk 3 is slot 3's first.
const CASES: [Case; 14] = [
    ("first ever", &[(0, 3)], Added),
    ("first ever, but not the slot's first", &[(1, 7)], OutOfTurn),
    ("first ever, from far ahead", &[(1, 11)], OutOfTurn),
    ("second worker", &[(0, 3), (1, 3)], Added),
    ("last worker", &[(0, 3), (1, 3), (2, 3)], Completed),
    ("sent again, slot waits", &[(0, 3), (1, 3), (1, 3)], Duplicate),
    ("sent again, slot complete", &[(0, 3), (1, 3), (2, 3), (1, 3)], Replied),
    ("next chunk", &[(0, 3), (1, 3), (2, 3), (1, 7)], Added),
    ("result lost, others moved on", &[(0, 3), (1, 3), (2, 3), (0, 7), (1, 7), (2, 3)], Replied),
    ("chunk after next", &[(0, 3), (1, 3), (2, 3), (0, 7), (1, 7), (2, 7), (0, 11)], Added),
    (
        "chunk after next completes",
        &[(0, 3), (1, 3), (2, 3), (0, 7), (1, 7), (2, 7), (0, 11), (2, 11), (1, 11)],
        Completed,
    ),
    (
        "delayed duplicate of the chunk before last",
        &[(0, 3), (1, 3), (2, 3), (0, 7), (1, 7), (2, 7), (0, 11), (1, 3)],
        Stale,
    ),
    ("next chunk before this one is complete", &[(0, 3), (1, 3), (0, 7)], OutOfTurn),
    ("this version again before the other was used", &[(0, 3), (1, 3), (2, 3), (0, 11)], OutOfTurn),
];

/// Returns for each case an aggregator and its packets, and for the last a case of another operation's chunk.
pub fn all(checksum: bool) -> Vec<(Setup, Vec<Step>)> {
    let mismatch: Case = ("another operation", &[(0, 3), (1, 3)], Mismatch);
    let of = |(case, contributions, reason): Case| {
        let job = crate::record::Job { checksum, ..static_job(1, 3, 6) };
        let setup = setup(case, None, vec![job.clone()]);
        let mut reference = Reference::new(setup.clone());
        let mut steps = Vec::new();
        for (at, (rank, seq)) in contributions.iter().enumerate() {
            let mut header = header(&job, *rank, *seq);
            header.tensor += u32::from(reason == Mismatch && at + 1 == contributions.len());
            let values: Vec<i32> = (0..6).map(|i| value(*rank, *seq, i)).collect();
            let bytes = frame(&job, &job.workers[*rank], &header, &values, 0, TOS);
            let step = reference.receive(job.workers[*rank].interface, bytes);
            steps.push(Step { case: Some(case.to_owned()), ..step });
        }
        assert_eq!(steps.last().map(|step| step.reason.as_str()), Some(reason.name()), "{case}");
        (setup, steps)
    };
    CASES.into_iter().chain([mismatch]).map(of).collect()
}

/// Returns an element whose every bit depends on the worker, the chunk and the element's number.
fn value(rank: usize, seq: u32, i: u32) -> i32 {
    let mixed = (rank as u32 + 1).wrapping_mul(0x9e37_79b9)
        ^ seq.wrapping_mul(0x85eb_ca6b)
        ^ i.wrapping_mul(0xc2b2_ae35);
    (mixed ^ mixed >> 15) as i32 >> 5
}

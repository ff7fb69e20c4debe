//! Queries (docs/protocol.md) on the program in the kernel for the presence of a contribution.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use sumac_agg_host::NewJob;
use sumac_wire::{
    Header, Kind, Reason,
    header::{HEADER_LEN, flag},
};
use support::{
    AGGREGATOR_MAC, Bench, DROP, PASS, REDIRECT,
    frames::{answer, contribution, frame_of, header, tag},
    job_of, needs_privileges, refusal, result_token,
};

/// Returns a worker's query about a chunk.
fn question(job: &NewJob, rank: usize, seq: u32) -> Vec<u8> {
    let header = header(job, rank, seq, 0);
    frame_of(job, rank, &Header { flags: header.flags | flag::QUERY, ..header })
}

#[test]
fn each_row_of_the_table() {
    needs_privileges!("each_row_of_the_table");
    // Slots of 8, slot 3, three workers. Each row: contributions as (rank, seq), the query, and its outcome.
    type Row = (&'static str, &'static [(usize, u32)], (usize, u32), Reason);
    let table: [Row; 9] = [
        ("nobody has come yet", &[], (0, 3), Reason::Wanted),
        ("others have come", &[(0, 3), (1, 3)], (2, 3), Reason::Wanted),
        ("it has come", &[(0, 3), (1, 3)], (1, 3), Reason::Duplicate),
        ("all have come", &[(0, 3), (1, 3), (2, 3)], (1, 3), Reason::Wanted),
        ("nobody has come to the next", &[(0, 3), (1, 3), (2, 3)], (1, 11), Reason::Wanted),
        ("the next, too early", &[(0, 3), (1, 3)], (1, 11), Reason::OutOfTurn),
        ("its result was lost, others moved on", &[(0, 3), (1, 3), (2, 3), (0, 11)], (2, 3), Reason::Wanted),
        ("an old one", &[(0, 3), (1, 3), (2, 3), (0, 11), (1, 11), (2, 11), (0, 19)], (1, 3), Reason::Stale),
        ("far ahead of an empty slot", &[], (1, 3 + 64), Reason::OutOfTurn),
    ];
    for (what, contributions, (rank, seq), reason) in table {
        for tagged in [false, true] {
            let job = job_of(3, 20);
            let bench = Bench::new(std::slice::from_ref(&job));
            for (rank, seq) in contributions {
                bench.show(&contribution(&job, *rank, *seq, 20));
            }
            let (before, slot) = (bench.pool(), bench.slot(16 + 3));
            let frame = question(&job, rank, seq);
            let shown = bench.show(&if tagged { tag(frame.clone()) } else { frame.clone() });
            assert_eq!(shown.reason, reason, "{what}");
            if reason != Reason::Wanted {
                assert!(bench.pool() == before, "{what}: a question changed a slot");
                assert_eq!(shown.verdict, DROP, "{what}");
                continue;
            }
            // A question shows which results its sender has, and changes nothing else.
            let mut expected = slot.meta;
            for version in
                expected.versions.iter_mut().filter(|version| version.seen != 0 && version.seq < seq)
            {
                version.received |= 1 << rank;
            }
            let after = bench.slot(16 + 3);
            assert_eq!(after.meta, expected, "{what}");
            assert!(after.values == slot.values, "{what}: a question changed values");
            assert_eq!(shown.verdict, REDIRECT, "{what}");
            let got = answer(&shown.out);
            let asked = header(&job, rank, seq, 0);
            let expected = Header {
                kind: Kind::Result as u8,
                token: result_token(),
                flags: asked.flags | flag::QUERY,
                contributors: 3,
                ..asked
            };
            assert_eq!((got.header, got.values.len()), (expected, 0), "{what}");
            assert_eq!(got.frame.dst_ip, job.workers[rank].ip, "{what}");
            assert_eq!(got.macs, [job.workers[rank].mac, AGGREGATOR_MAC], "{what}");
        }
    }
}

#[test]
fn malformed_questions_are_refused() {
    needs_privileges!("malformed_questions_are_refused");
    let job = job_of(2, 20);
    let bench = Bench::new(std::slice::from_ref(&job));
    bench.show(&contribution(&job, 0, 3, 20));
    let before = bench.pool();
    let whole = question(&job, 1, 3);
    for len in 14..whole.len() {
        let shown = bench.show(&whole[..len]);
        let is_refused = shown.verdict == refusal(shown.reason) && shown.reason.is_refusal();
        assert!(is_refused || shown.verdict == PASS && shown.reason == Reason::Foreign, "cut to {len}");
    }
    type Change = fn(&mut Header);
    let table: [(&str, Change, Reason); 6] = [
        ("with elements", |h| h.elements = 4, Reason::WrongElements),
        ("of a round", |h| h.flags |= flag::EXPONENT, Reason::BadType),
        ("no flag", |h| h.flags &= !flag::QUERY, Reason::WrongElements),
        ("a refusal", |h| h.flags |= flag::MISMATCH, Reason::BadType),
        ("of another operation", |h| h.tensor = 8, Reason::Mismatch),
        ("of a maximum", |h| h.flags |= flag::MAXIMUM, Reason::Mismatch),
    ];
    for (what, change, reason) in table {
        let mut asked = header(&job, 1, 3, 0);
        asked.flags |= flag::QUERY;
        change(&mut asked);
        assert_eq!(bench.show(&frame_of(&job, 1, &asked)).reason, reason, "{what}");
    }
    let mut damaged = whole;
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(bench.show(&damaged).reason, Reason::BadChecksum, "the last byte is in no field");
    damaged = question(&job, 1, 3);
    let token = damaged.len() - HEADER_LEN + sumac_wire::header::offset::TOKEN;
    damaged[token] ^= 1;
    assert_eq!(bench.show(&damaged).reason, Reason::BadToken);
    damaged = question(&job, 1, 3);
    let offset = damaged.len() - HEADER_LEN + sumac_wire::header::offset::OFFSET;
    damaged[offset] ^= 1;
    assert_eq!(bench.show(&damaged).reason, Reason::BadChecksum);
    assert!(bench.pool() == before, "a slot changed");
}

#[test]
fn a_maximum_is_no_sum() {
    needs_privileges!("a_maximum_is_no_sum");
    let job = job_of(3, 20);
    let bench = Bench::new(std::slice::from_ref(&job));
    bench.show(&contribution(&job, 0, 3, 20));
    let before = bench.pool();
    let mut other = header(&job, 1, 3, 20);
    other.flags |= flag::MAXIMUM;
    let refused = bench.show(&frame_of(&job, 1, &other));
    assert_eq!((refused.verdict, refused.reason), (REDIRECT, Reason::Mismatch));
    assert!(bench.pool() == before, "a slot changed");
}

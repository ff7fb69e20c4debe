//! Queries and flushes (docs/protocol.md) on the program in the kernel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::net::Ipv4Addr;

use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use sumac_agg_host::HostAggregator;
use sumac_agg_job::NewJob;
use sumac_wire::{
    Header, Kind, Reason,
    header::{HEADER_LEN, flag},
};
use support::{
    AGGREGATOR_MAC, Bench, DROP, PASS, REDIRECT,
    frames::{answer, contribution, frame_of, header, sum, tag, value},
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

/// Returns the header of a worker's flush, of an operation of 16 chunks. The limit is one chunk.
fn flush(job: &NewJob, rank: usize, seq: u32) -> Header {
    let header = header(job, rank, seq, 20);
    Header { flags: header.flags | flag::PARTIAL, contributors: 1, next_seq: seq & !15, ..header }
}

#[test]
fn a_flush_completes_a_slot_within_the_budget() {
    needs_privileges!("a_flush_completes_a_slot_within_the_budget");
    // Slots of 8, slot 3, three workers; chunks 3 and 11 are one operation. Each row: contributions, the flush, its
    // outcome, and the workers in the sum.
    type Row = (&'static str, &'static [(usize, u32)], (usize, u32), Reason, &'static [usize]);
    let table: [Row; 6] = [
        ("one of three", &[], (0, 3), Reason::Added, &[]),
        ("by one that is in", &[(0, 3), (1, 3)], (1, 3), Reason::Completed, &[0, 1]),
        ("by one that was missing", &[(2, 3)], (0, 3), Reason::Completed, &[0, 2]),
        ("the last", &[(0, 3), (2, 3)], (1, 3), Reason::Completed, &[0, 1, 2]),
        ("a complete one", &[(0, 3), (1, 3), (2, 3)], (1, 3), Reason::Replied, &[0, 1, 2]),
        ("alone, again", &[(1, 3)], (1, 3), Reason::Duplicate, &[]),
    ];
    for (what, contributions, (rank, seq), reason, ranks) in table {
        let job = job_of(3, 20);
        let bench = Bench::new(std::slice::from_ref(&job));
        for (rank, seq) in contributions {
            bench.show(&contribution(&job, *rank, *seq, 20));
        }
        let mut damaged = frame_of(&job, rank, &flush(&job, rank, seq));
        *damaged.last_mut().unwrap() ^= 0x40;
        assert_eq!(bench.show(&damaged).reason, Reason::BadChecksum, "{what}");
        let shown = bench.show(&frame_of(&job, rank, &flush(&job, rank, seq)));
        assert_eq!(shown.reason, reason, "{what}");
        if !ranks.is_empty() {
            let got = answer(&shown.out);
            assert_eq!(got.values, sum(ranks.iter().copied(), seq, 20), "{what}");
            let bitmap = ranks.iter().map(|rank| 1 << rank).sum::<u32>();
            assert_eq!(
                (got.header.bitmap_0, got.header.contributors),
                (bitmap, ranks.len() as u16),
                "{what}"
            );
            assert_eq!(got.header.has(flag::PARTIAL), ranks.len() < 3, "{what}");
        }
    }
    let job = job_of(3, 20);
    let bench = Bench::new(std::slice::from_ref(&job));
    for (seq, reason) in [(3, Reason::Completed), (11, Reason::Added), (19, Reason::Completed)] {
        bench.show(&contribution(&job, 0, seq, 20));
        let shown = bench.show(&frame_of(&job, 1, &flush(&job, 1, seq)));
        assert_eq!(shown.reason, reason, "chunk {seq}: one of an operation");
        let late = bench.show(&contribution(&job, 2, seq, 20));
        let expected = if reason == Reason::Completed { Reason::Replied } else { Reason::Completed };
        assert_eq!(late.reason, expected, "chunk {seq}: who was late gets the result");
    }
}

/// Workers that lose contributions and results, at random: program and host aggregator answer each packet alike, and no
/// worker is left out of more chunks of an operation than the limit.
#[test]
fn both_aggregators_flush_alike() {
    needs_privileges!("both_aggregators_flush_alike");
    for (seed, world) in (0..4).zip([2, 3, 5, 32u8]) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let job = job_of(world, 20);
        let bench = Bench::new(std::slice::from_ref(&job));
        let mut host = HostAggregator::new(64, 832).unwrap();
        host.install(&job).unwrap();
        let mut chunks = vec![3; usize::from(world)];
        let (mut partial, mut spent) = (0, std::collections::BTreeMap::new());
        for step in 0..1500 {
            let rank = rng.random_range(0..usize::from(world));
            let seq: u32 = chunks[rank];
            let header = match rng.random_range(0..4) {
                0 => Header { contributors: 2, ..flush(&job, rank, seq) },
                1 if seq > 3 => header(&job, rank, seq - 8, 20),
                _ => header(&job, rank, seq, 20),
            };
            let shown = bench.show(&frame_of(&job, rank, &header));
            let mut packet = header.to_bytes().to_vec();
            packet.extend((0..20).flat_map(|i| value(rank, header.seq, i).to_be_bytes()));
            let answered = host.on_packet(Ipv4Addr::from_bits(job.workers[rank].ip), &mut packet);
            let what = format!("seed {seed}, step {step}, rank {rank}, chunk {}", header.seq);
            assert_eq!(shown.reason, answered.reason(), "{what}");
            if shown.verdict != REDIRECT {
                continue;
            }
            let got = answer(&shown.out);
            assert_eq!(got.header, Header::read(&packet[..], 0, packet.len()).unwrap(), "{what}");
            let values: Vec<i32> =
                packet[HEADER_LEN..].as_chunks().0.iter().map(|value| i32::from_be_bytes(*value)).collect();
            assert_eq!(got.values, values, "{what}");
            let is_in = |rank: &usize| got.header.bitmap_0 >> rank & 1 == 1;
            let all = 0..usize::from(world);
            assert_eq!(
                got.values,
                sum(all.clone().filter(is_in).collect::<Vec<_>>(), got.header.seq, 20),
                "{what}"
            );
            let to_all = shown.reason == Reason::Completed;
            partial += usize::from(to_all && got.header.has(flag::PARTIAL));
            for left_out in all.clone().filter(|rank| to_all && !is_in(rank)) {
                *spent.entry((got.header.seq & !15, left_out)).or_insert(0) += 1;
            }
            for to in all.filter(|to| if to_all { rng.random_bool(0.5) } else { *to == rank }) {
                if chunks[to] == got.header.seq {
                    chunks[to] += 8;
                }
            }
        }
        println!("{world} workers: {partial} partial sums up to chunk {:?}", chunks.iter().max());
        assert!(partial > 0 && spent.values().all(|spent| *spent <= 2), "{spent:?}");
    }
}

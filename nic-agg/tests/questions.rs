//! Queries and flushes (docs/protocol.md) on the program in the kernel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::net::Ipv4Addr;

use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use sumac_agg_host::HostAggregator;
use sumac_agg_job::NewJob;
use sumac_wire::{
    Header, PAGE_ELEMENTS, Reason,
    header::{HEADER_LEN, flag},
};
use support::{
    Bench, PASS, REDIRECT,
    frames::{answer, contribution, frame_of, header, sum, value},
    job_of, needs_privileges, refusal,
};

/// Returns a worker's query about a chunk.
fn question(job: &NewJob, rank: usize, seq: u32) -> Vec<u8> {
    let header = header(job, rank, seq, 0);
    frame_of(job, rank, &Header { flags: header.flags | flag::QUERY, ..header })
}

/// Checks that a frame is refused wherever it is cut off, and with another last byte.
fn assert_whole(bench: &Bench, whole: &[u8]) {
    for len in 14..whole.len() {
        let shown = bench.show(&whole[..len]);
        let is_refused = shown.verdict == refusal(shown.reason) && shown.reason.is_refusal();
        assert!(is_refused || shown.verdict == PASS && shown.reason == Reason::Foreign, "cut to {len}");
    }
    let mut damaged = whole.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(bench.show(&damaged).reason, Reason::BadChecksum, "the last byte is in no field");
}

#[test]
fn malformed_questions_are_refused() {
    needs_privileges!("malformed_questions_are_refused");
    let job = job_of(2, 20);
    let bench = Bench::new(std::slice::from_ref(&job));
    bench.show(&contribution(&job, 0, 3, 20));
    let before = bench.pool();
    assert_whole(&bench, &question(&job, 1, 3));
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
    let mut damaged = question(&job, 1, 3);
    let token = damaged.len() - HEADER_LEN + sumac_wire::header::offset::TOKEN;
    damaged[token] ^= 1;
    assert_eq!(bench.show(&damaged).reason, Reason::BadToken);
    damaged = question(&job, 1, 3);
    let offset = damaged.len() - HEADER_LEN + sumac_wire::header::offset::OFFSET;
    damaged[offset] ^= 1;
    assert_eq!(bench.show(&damaged).reason, Reason::BadChecksum);
    assert!(bench.pool() == before, "a slot changed");
}

/// Returns the header of a worker's contribution without values.
fn empty(job: &NewJob, rank: usize, seq: u32) -> Header {
    let header = header(job, rank, seq, 0);
    Header { flags: header.flags | flag::EMPTY, ..header }
}

#[test]
fn malformed_contributions_without_values_are_refused() {
    needs_privileges!("malformed_contributions_without_values_are_refused");
    let job = job_of(3, 20);
    let bench = Bench::new(std::slice::from_ref(&job));
    bench.show(&contribution(&job, 0, 3, 20));
    let before = bench.pool();
    assert_whole(&bench, &frame_of(&job, 1, &empty(&job, 1, 3)));
    type Change = fn(&mut Header);
    let table: [(&str, Change, Reason); 7] = [
        ("with elements", |h| h.elements = 20, Reason::WrongElements),
        ("a round", |h| h.flags |= flag::EXPONENT, Reason::BadType),
        ("a query", |h| h.flags |= flag::QUERY, Reason::BadType),
        ("a flush", |h| h.flags |= flag::PARTIAL, Reason::BadType),
        ("a maximum", |h| h.flags |= flag::MAXIMUM, Reason::BadType),
        ("a refusal", |h| h.flags |= flag::MISMATCH, Reason::BadType),
        ("of another operation", |h| h.tensor = 8, Reason::Mismatch),
    ];
    for (what, change, reason) in table {
        let mut sent = empty(&job, 1, 3);
        change(&mut sent);
        assert_eq!(bench.show(&frame_of(&job, 1, &sent)).reason, reason, "{what}");
    }
    assert!(bench.pool() == before, "a slot changed");
}

/// The last contribution has the result's length, or gets it; the slot's old values are in no sum.
#[test]
fn a_chunk_completes_with_the_values_of_those_that_have_some() {
    needs_privileges!("a_chunk_completes_with_the_values_of_those_that_have_some");
    let job = job_of(3, 20);
    let bench = Bench::new(std::slice::from_ref(&job));
    for seq in [3, 11] {
        (0..3).for_each(|rank| drop(bench.show(&contribution(&job, rank, seq, 20))));
    }
    let without = |rank, seq| bench.show(&frame_of(&job, rank, &empty(&job, rank, seq)));
    let outcome = |rank, seq| without(rank, seq).reason;
    assert_eq!(
        [outcome(0, 19), outcome(0, 19), outcome(1, 19)],
        [Reason::Added, Reason::Duplicate, Reason::Added]
    );
    let complete = bench.show(&contribution(&job, 2, 19, 20));
    assert_eq!((complete.verdict, complete.reason), (REDIRECT, Reason::Completed));
    assert_eq!(answer(&complete.out).values, sum([2], 19, 20), "not those of chunk 3");
    assert_eq!(outcome(1, 19), Reason::Wanted, "a kept result takes another way");

    assert_eq!(bench.show(&contribution(&job, 2, 27, 20)).reason, Reason::Added);
    assert_eq!(outcome(0, 27), Reason::Added);
    // Bytes behind the headers would become values: no room is made there.
    let padded = [frame_of(&job, 1, &empty(&job, 1, 27)), vec![7; 4]].concat();
    let wanted = bench.show(&padded);
    assert_eq!((wanted.verdict, wanted.reason), (REDIRECT, Reason::Wanted));
    let header = answer(&wanted.out).header;
    assert_eq!((header.elements, header.flags & !flag::POOL_VERSION), (0, flag::QUERY));
    let complete = without(1, 27);
    assert_eq!((complete.verdict, complete.reason), (REDIRECT, Reason::Completed), "it was not counted");
    assert_eq!(answer(&complete.out).values, sum([2], 27, 20));
}

/// Chunks of every length up to the longest of a page complete with a header, in a job with checksums too.
#[test]
fn a_header_that_completes_a_chunk_leaves_as_its_result() {
    needs_privileges!("a_header_that_completes_a_chunk_leaves_as_its_result");
    for elements in [1, 2, 255, 256, PAGE_ELEMENTS as u16] {
        let job = job_of(2, elements);
        let bench = Bench::new(std::slice::from_ref(&job));
        assert_eq!(bench.show(&contribution(&job, 0, 3, elements)).reason, Reason::Added);
        let mut damaged = frame_of(&job, 1, &empty(&job, 1, 3));
        let received = damaged.len() - HEADER_LEN + sumac_wire::header::offset::RECEIVED;
        damaged[received] ^= 1;
        assert_eq!(bench.show(&damaged).reason, Reason::BadChecksum, "{elements} elements");
        let complete = bench.show(&frame_of(&job, 1, &empty(&job, 1, 3)));
        assert_eq!((complete.verdict, complete.reason), (REDIRECT, Reason::Completed), "{elements} elements");
        assert_eq!(answer(&complete.out).values, sum([0], 3, elements.into()), "{elements} elements");
        assert_eq!(
            bench.show(&frame_of(&job, 1, &empty(&job, 1, 3))).reason,
            Reason::Wanted,
            "its result is kept"
        );
    }
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

/// Sends all workers' contributions to the first chunk of an operation of 16 chunks, with its terms: each
/// worker's limit.
fn state_terms(bench: &Bench, job: &NewJob, first: u32, limits: &[u16]) {
    for (rank, limit) in limits.iter().enumerate() {
        let header = Header { contributors: *limit, next_seq: first + 16, ..header(job, rank, first, 20) };
        bench.show(&frame_of(job, rank, &header));
    }
}

#[test]
fn a_worker_does_not_choose_the_limit() {
    needs_privileges!("a_worker_does_not_choose_the_limit");
    // Worker 1 flushes chunks 1 to 5 of operation 0 while worker 2 is silent. The completed ones:
    let table: [(&str, &[u16], usize); 5] = [
        ("a job without a bound", &[0, 0, 0], 0),
        ("only the flushing worker has a bound", &[0, 65_535, 0], 0),
        ("two have one", &[2, 65_535, 0], 0),
        ("all have one", &[2, 65_535, 2], 2),
        ("the strictest", &[2, 65_535, 1], 1),
    ];
    for (what, limits, expected) in table {
        let job = job_of(3, 20);
        let bench = Bench::new(std::slice::from_ref(&job));
        state_terms(&bench, &job, 0, limits);
        let flushed = (1..6).filter(|seq| {
            assert_eq!(bench.show(&contribution(&job, 0, *seq, 20)).reason, Reason::Added, "{what}");
            let hostile = Header { contributors: 65_535, next_seq: 0, ..flush(&job, 1, *seq) };
            bench.show(&frame_of(&job, 1, &hostile)).reason == Reason::Completed
        });
        assert_eq!(flushed.count(), expected, "{what}");
        // The victim's contributions complete the others, and get the results of those without it.
        for seq in 1..6 {
            let reason = bench.show(&contribution(&job, 2, seq, 20)).reason;
            let is_flushed = seq as usize <= expected;
            assert_eq!(reason, if is_flushed { Reason::Replied } else { Reason::Completed }, "{what}, {seq}");
        }
        let own = Header { contributors: 65_535, next_seq: 7, ..flush(&job, 1, 7) };
        bench.show(&contribution(&job, 0, 7, 20));
        assert_eq!(
            bench.show(&frame_of(&job, 1, &own)).reason,
            Reason::Added,
            "{what}: an operation of its own"
        );
    }
}

#[test]
fn a_flush_completes_a_slot_within_the_budget() {
    needs_privileges!("a_flush_completes_a_slot_within_the_budget");
    // Slots of 8, slot 3, three workers; chunks 3 and 11 are one operation. Each row: contributions, the
    // flush, its outcome, and the workers in the sum.
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
        state_terms(&bench, &job, 0, &[1; 3]);
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
    state_terms(&bench, &job, 0, &[1; 3]);
    for (seq, reason) in [(3, Reason::Completed), (11, Reason::Added), (19, Reason::Completed)] {
        if seq == 19 {
            (0..3).for_each(|rank| drop(bench.show(&contribution(&job, rank, 8, 20))));
            state_terms(&bench, &job, 16, &[1; 3]);
        }
        bench.show(&contribution(&job, 0, seq, 20));
        let shown = bench.show(&frame_of(&job, 1, &flush(&job, 1, seq)));
        assert_eq!(shown.reason, reason, "chunk {seq}: one of an operation");
        let late = bench.show(&contribution(&job, 2, seq, 20));
        let expected = if reason == Reason::Completed { Reason::Replied } else { Reason::Completed };
        assert_eq!(late.reason, expected, "chunk {seq}: who was late gets the result");
    }
}

/// The first of the chunk's operation: 32 chunks each, of which 4 are slot 3's.
fn operation_of(seq: u32) -> u32 {
    (seq - 3) / 32 * 32 + 3
}

/// Workers that lose contributions and results, at random, and one that sends limits and operations at
/// random: program and host aggregator answer each packet alike, and no worker is left out of more chunks of
/// an operation than the limit.
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
            let own = header(&job, rank, seq, 20);
            let first = operation_of(seq);
            let header = match rng.random_range(0..4) {
                0 if seq > 3 => header(&job, rank, seq - 8, 20),
                _ if seq == first => Header { contributors: 2, next_seq: seq + 32, ..own },
                1 => Header { contributors: 2, next_seq: first, ..flush(&job, rank, seq) },
                _ => own,
            };
            let header = match rng.random_range(0..3) {
                0 if rank == 0 => Header { contributors: 65_535, ..header },
                1 if rank == 0 && header.has(flag::PARTIAL) => Header { next_seq: header.seq, ..header },
                _ => header,
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
                *spent.entry((operation_of(got.header.seq), left_out)).or_insert(0) += 1;
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

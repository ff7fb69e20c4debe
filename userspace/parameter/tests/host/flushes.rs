//! Bounded loss: chunks that the parameter host completes without some workers.

use std::net::SocketAddrV4;

use proptest::prelude::*;
use sumac_parameter::ParameterHost;
use sumac_wire::{
    Header, MAX_WORKERS, Reason,
    header::{exponent, flag},
};

use crate::support::*;

const RACKS: [u32; 1] = [4];

fn host(racks: &[u32]) -> ParameterHost {
    let mut host = ParameterHost::new();
    host.install(job(racks)).unwrap();
    host
}

/// A host whose workers have contributed chunk 0, and stated the terms of the operation that begins with it.
/// The first worker states the largest limit: the others' counts.
fn agreed(racks: &[u32], limit: u16) -> ParameterHost {
    let mut host = host(racks);
    let places = (0..).zip(racks).flat_map(|(rack, bits)| (0..*bits).map(move |bit| (rack, bit)));
    for (rack, bit) in places {
        let limit = if (rack, bit) == (0, 0) { u16::MAX } else { limit };
        let own = terms(passed(header(racks, rack, bit, 0)), limit);
        give(&mut host, aggregator(), &own, &[1; 4]);
    }
    assert_eq!(sent(&mut host).len(), 1, "chunk 0");
    host
}

/// A worker's contribution to the first chunk of an operation, with its terms.
fn terms(header: Header, limit: u16) -> Header {
    Header { flags: header.flags | flag::RESEND, contributors: limit, next_seq: 1000, ..header }
}

/// A worker's flush of a chunk of the operation that begins with chunk `first`.
fn flush(header: Header, first: u32, limit: u16) -> Header {
    let flags = header.flags | flag::RESEND | flag::PARTIAL;
    Header { flags, contributors: limit, next_seq: first, ..header }
}

/// An aggregator's packet with the values of these workers.
fn sum(seq: u32, bits: u32) -> Header {
    Header { bitmap_0: bits, ..passed(header(&RACKS, 0, 0, seq)) }
}

fn give_sum(host: &mut ParameterHost, header: &Header) -> Reason {
    give(host, aggregator(), header, &[header.bitmap_0 as i32; 4])
}

#[test]
fn a_flush_completes_a_chunk_with_half_of_the_workers() {
    let mut host = agreed(&RACKS, 1);
    assert_eq!(give_sum(&mut host, &flush(sum(1, 0b0001), 0, 2)), Reason::Added, "one of four is no quorum");
    let mut second = flush(sum(1, 0b0100), 0, 2);
    (second.next_exponent, second.flags) = (3, second.flags | flag::COLLISION);
    assert_eq!(give_sum(&mut host, &second), Reason::Completed);
    let sent_now = sent(&mut host);
    let Sent { header, values, .. } = &sent_now[0];
    assert_eq!((header.flags, header.bitmap_0, header.contributors), (flag::PARTIAL, 0b0101, 2));
    assert_eq!((values[0], header.next_exponent), (5, exponent::UNKNOWN), "the others' may be larger");
    // A worker that was left out gets the same, also when it has lost that.
    let late = Header { flags: flag::LEVEL | flag::RESEND, ..sum(1, 0b0010) };
    assert_eq!(give_sum(&mut host, &sum(1, 0b1000)), Reason::Duplicate, "the result is on its way");
    assert_eq!(give_sum(&mut host, &late), Reason::Replied);
    let again = sent(&mut host);
    assert_eq!(
        (again[0].header.flags, again[0].header.bitmap_0, &again[0].values),
        (flag::PARTIAL, 0b0101, values)
    );
    let stats = host.stats();
    let job = stats.job(JOB).unwrap();
    assert_eq!((job.completed, job.partial), (2, 1));
}

#[test]
fn a_flush_of_values_that_are_in_completes_their_chunk_too() {
    let mut host = agreed(&RACKS, 1);
    assert_eq!(give_sum(&mut host, &sum(1, 0b0111)), Reason::Added);
    // Only a part of this sum is in, so it was dropped: worker 3 sends again.
    assert_eq!(give_sum(&mut host, &flush(sum(1, 0b1100), 0, 1)), Reason::Duplicate);
    assert_eq!(give_sum(&mut host, &flush(sum(1, 0b0100), 0, 1)), Reason::Completed);
    assert_eq!(sent(&mut host)[0].values[0], 0b0111);
}

#[test]
fn the_last_contribution_completes_the_whole_sum_although_it_is_a_flush() {
    let mut host = agreed(&RACKS, 1);
    assert_eq!(give_sum(&mut host, &sum(1, 0b0111)), Reason::Added);
    assert_eq!(give_sum(&mut host, &flush(sum(1, 0b1000), 0, 1)), Reason::Completed);
    let header = sent(&mut host)[0].header;
    assert_eq!((header.flags, header.contributors, header.bitmap_0), (0, 4, 0));
}

#[test]
fn a_chunk_whose_integers_do_not_fit_waits_for_floats() {
    let mut host = agreed(&RACKS, 1);
    let mut large = sum(1, 0b0011);
    large.flags |= flag::OVERFLOW;
    assert_eq!(give_sum(&mut host, &large), Reason::Added);
    assert_eq!(give_sum(&mut host, &flush(sum(1, 0b0100), 0, 1)), Reason::Added);
    assert_eq!(give_sum(&mut host, &sum(1, 0b1000)), Reason::AskedRaw);
    sent(&mut host);
    let floats = |rank: u32| {
        let header = header(&RACKS, 0, rank, 1);
        let flags = flag::RESEND | flag::RAW_FLOAT;
        let bits = (rank as f32 + 0.5).to_bits() as i32;
        (Header { flags: passed(header).flags | flags, ..header }, [bits; 4])
    };
    for rank in [3, 0] {
        let (header, values) = floats(rank);
        assert_eq!(give(&mut host, aggregator(), &header, &values), Reason::Added);
    }
    let (header, values) = floats(1);
    assert_eq!(give(&mut host, aggregator(), &flush(header, 0, 1), &values), Reason::Completed);
    let answer = &sent(&mut host)[0];
    assert_eq!((answer.header.flags, answer.header.bitmap_0), (flag::PARTIAL | flag::RAW_FLOAT, 0b1011));
    assert_eq!(f32::from_bits(answer.values[0] as u32), 5.5, "0.5, 1.5 and 3.5");
}

#[test]
fn a_partial_result_stays_until_all_workers_have_it() {
    let mut host = agreed(&RACKS, 100);
    for seq in 1..2 * WINDOW {
        let header = Header { received: 0, ..sum(seq, 0b0111) };
        assert_eq!(give_sum(&mut host, &flush(header, 0, 100)), Reason::Completed);
    }
    let next = Header { received: 2 * WINDOW, ..sum(2 * WINDOW + 1, 0b0111) };
    assert_eq!(give_sum(&mut host, &next), Reason::OutOfTurn, "worker 3 may lack the result of chunk 1");
    let late = Header { received: 2, ..sum(2, 0b1000) };
    assert_eq!(give_sum(&mut host, &late), Reason::Duplicate);
    assert_eq!(give_sum(&mut host, &next), Reason::Added);
}

/// Workers in racks are named by their ranks; of more workers than a result has bits for, none is left out.
#[test]
fn workers_in_racks_are_named_by_rank() {
    let racks = [2, 1, 2];
    let mut host = agreed(&racks, 1);
    for (rack, bit) in [(0, 1), (2, 0), (2, 1)] {
        let own = flush(passed(header(&racks, rack, bit, 1)), 0, 1);
        let expected = if (rack, bit) == (2, 1) { Reason::Completed } else { Reason::Added };
        assert_eq!(give(&mut host, aggregator(), &own, &[1; 4]), expected);
    }
    let header_of = sent(&mut host)[0].header;
    assert_eq!((header_of.bitmap_0, header_of.contributors), (0b11010, 3));
    let many = [MAX_WORKERS as u32, 1];
    let mut host = agreed(&many, 1);
    let sum = Header { bitmap_0: u32::MAX, ..passed(header(&many, 0, 0, 1)) };
    assert_eq!(give(&mut host, aggregator(), &flush(sum, 0, 1), &[1; 4]), Reason::Added);
}

#[test]
fn a_new_incarnation_has_no_new_budget() {
    let mut host = agreed(&RACKS, 1);
    assert_eq!(give_sum(&mut host, &flush(sum(1, 0b0111), 0, 1)), Reason::Completed);
    let workers = job(&RACKS).workers;
    host.renew(JOB, EPOCH + 1, workers).unwrap();
    let header = Header { epoch: EPOCH + 1, ..sum(2, 0b0111) };
    assert_eq!(give_sum(&mut host, &flush(header, 0, 1)), Reason::Added);
}

/// A worker's flushes complete nothing beyond what all workers have stated, each for itself.
#[test]
fn a_worker_does_not_choose_the_limit() {
    // Terms as they come with packets of these workers, and the chunks that are flushed without worker 3.
    type Row = (&'static str, &'static [(u32, u16)], usize);
    let table: [Row; 6] = [
        ("a job without a bound", &[], 0),
        ("those of one", &[(0b0001, u16::MAX)], 0),
        ("three workers'", &[(0b0001, u16::MAX), (0b0010, 2), (0b0100, 2)], 0),
        ("all workers'", &[(0b0001, u16::MAX), (0b0010, 2), (0b0100, 2), (0b1000, 2)], 2),
        ("a slot's sum", &[(0b1001, u16::MAX), (0b0010, 2), (0b0100, 2)], 0),
        ("the strictest", &[(0b0001, u16::MAX), (0b0010, 2), (0b0100, 1), (0b1000, 2)], 1),
    ];
    for (what, stated, expected) in table {
        let mut host = host(&RACKS);
        for (bits, limit) in stated {
            give_sum(&mut host, &terms(sum(0, *bits), *limit));
        }
        let flushed = (1..6).filter(|seq| {
            give_sum(&mut host, &sum(*seq, 0b0110));
            give_sum(&mut host, &flush(sum(*seq, 0b0001), 0, u16::MAX)) == Reason::Completed
        });
        assert_eq!(flushed.count(), expected, "{what}");
    }
}

proptest! {
    /// Flushes of two operations from workers and aggregators in any order, where a worker states and sends
    /// the largest limit: no worker is left out of more chunks of one than the others have stated, and
    /// results say who is in.
    #[test]
    fn no_order_overdraws(
        packets in prop::collection::vec((1..2 * WINDOW, 1..16u32, any::<bool>()), 1..200),
        limit in 1..4u16,
    ) {
        let mut host = agreed(&RACKS, limit);
        let mut left_out = [[0; 4]; 2];
        for (seq, bits, is_flush) in packets {
            let first = if seq < WINDOW { 0 } else { WINDOW };
            let header = sum(seq, bits);
            let stated = if bits & 1 == 1 { u16::MAX } else { limit };
            let header = match is_flush {
                true => flush(header, first, stated),
                false if seq == first => terms(header, stated),
                false => header,
            };
            let from: SocketAddrV4 = aggregator();
            if give(&mut host, from, &header, &[bits as i32; 4]) != Reason::Completed {
                sent(&mut host);
                continue;
            }
            let result = sent(&mut host)[0].clone();
            let is_partial = result.header.has(flag::PARTIAL);
            let contributors = if is_partial { result.header.bitmap_0 } else { 0b1111 };
            prop_assert_eq!(contributors.count_ones(), u32::from(result.header.contributors));
            prop_assert_eq!(result.values[0], contributors as i32);
            prop_assert!(2 * contributors.count_ones() >= 4 && (contributors != 0b1111) == is_partial);
            for (worker, count) in left_out[usize::from(first > 0)].iter_mut().enumerate() {
                *count += 1 - (contributors >> worker & 1);
            }
        }
        prop_assert!(left_out.iter().flatten().all(|count| *count <= u32::from(limit)), "{:?}", left_out);
    }
}

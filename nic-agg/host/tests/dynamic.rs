//! Jobs that share slots at the host aggregator, beyond the conformance vectors: stalls, age, and jobs that
//! come back.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use common::{ELEMENTS, JOB, elements, packet, read, shared, summed::Summed, worker_ip};
use shared::{HOST, SLOTS, aggregator, contribution, reference, result, values};
use sumac_agg_host::{Answer, HostAggregator};
use sumac_agg_job::NewJob;
use sumac_wire::{
    Header, Reason,
    dynamic::host::Outcome,
    header::{NO_SLOT, flag},
};

/// Sends a packet of a worker's; returns the answer and what the packet is afterwards.
fn send(aggregator: &mut HostAggregator, rank: u16, header: &Header) -> (Answer, Vec<u8>) {
    let mut packet = packet(header, &values(rank, header.seq, header.elements));
    (aggregator.on_packet(worker_ip(rank), &mut packet), packet)
}

/// Sends a result of the parameter host's.
fn conclude(aggregator: &mut HostAggregator, header: &Header) -> Answer {
    let mut packet = packet(header, &vec![7; usize::from(header.elements)]);
    let before = packet.clone();
    let answer = aggregator.on_packet(*HOST.ip(), &mut packet);
    assert_eq!(packet, before, "results go down as they came");
    answer
}

/// A chunk whose first packet passes a busy slot, and whose others are then caught in it, where nothing
/// completes it (ATP section 3.7, appendix A.1): who sends again sets it free, whoever that is. The slot has
/// refused another job's chunk meanwhile.
#[test]
fn a_chunk_that_stalls_completes_when_it_is_sent_again() {
    use Reason::{Flushed, Passed};
    type Row = (u16, Reason, Result<Outcome, Reason>);
    let caught: &[Row] = &[(1, Flushed, Ok(Outcome::Complete))];
    // What the first one's packet takes along is in part at the parameter host already.
    let passed: &[Row] = &[
        (0, Flushed, Err(Reason::Duplicate)),
        (2, Passed, Ok(Outcome::Wait)),
        (1, Passed, Ok(Outcome::Complete)),
    ];
    for again in [caught, passed] {
        let (mut aggregator, mut host) = (aggregator(3), Summed::default());
        aggregator.install(&NewJob { job: JOB + 1, ..shared::job(3, &[HOST]) }).unwrap();
        let (other, stalled) = (contribution(3, 0, 1), |rank| contribution(3, rank, 1 + SLOTS));
        send(&mut aggregator, 0, &other);
        let (answer, up) = send(&mut aggregator, 0, &stalled(0));
        assert_eq!(answer.reason(), Reason::Collided);
        assert_eq!(host.take(&read(&up), &elements(&up)), Ok(Outcome::Wait));
        let others = Header { job: JOB + 1, ..other };
        assert_eq!(send(&mut aggregator, 0, &others).0.reason(), Reason::Collided);
        conclude(&mut aggregator, &result(&other));
        for rank in [1, 2] {
            assert_eq!(send(&mut aggregator, rank, &stalled(rank)).0, Answer::None(Reason::Added));
        }
        for (rank, reason, outcome) in again {
            let header = Header { flags: flag::RESEND, ..stalled(*rank) };
            let (answer, up) = send(&mut aggregator, *rank, &header);
            assert_eq!((answer.reason(), aggregator.held()), (*reason, 0), "rank {rank}");
            assert_eq!(host.take(&read(&up), &elements(&up)), *outcome, "rank {rank}");
        }
        assert_eq!(host.values, reference(3, 1 + SLOTS, ELEMENTS));
    }
}

#[test]
fn a_result_that_frees_nothing_else_still_goes_down() {
    let mut aggregator = aggregator(2);
    for (what, change) in [
        ("without a slot", Header { slot: NO_SLOT, ..result(&contribution(2, 0, 3)) }),
        (
            "that asks for floats",
            Header { elements: 0, flags: flag::RAW_FLOAT, ..result(&contribution(2, 0, 3)) },
        ),
        ("that refuses", Header { elements: 0, flags: flag::MISMATCH, ..result(&contribution(2, 0, 3)) }),
    ] {
        assert_eq!(conclude(&mut aggregator, &change), Answer::All(Reason::Concluded, JOB), "{what}");
    }
}

/// A pool full of a dead job's chunks is taken back when its timeout ends, without anybody's help; whoever
/// comes before that passes.
#[test]
fn orphans_are_taken_back() {
    let mut aggregator = aggregator(2);
    aggregator.set_slot_timeout(500);
    let start = u32::MAX - 200;
    aggregator.set_now(start);
    for seq in 0..SLOTS {
        send(&mut aggregator, 0, &contribution(2, 0, seq));
    }
    assert_eq!(aggregator.held(), SLOTS);
    assert!(aggregator.remove(JOB));
    aggregator.install(&NewJob { job: JOB + 1, ..shared::job(2, &[HOST]) }).unwrap();
    let of = |rank, seq| Header { job: JOB + 1, ..contribution(2, rank, seq) };
    // A slot refuses the other packets of a chunk too.
    let table = [(499, 0, Reason::Collided), (500, 0, Reason::Collided), (500, SLOTS, Reason::Reclaimed)];
    for (after, first, expected) in table {
        aggregator.set_now(start.wrapping_add(after));
        for seq in first..first + SLOTS {
            assert_eq!(send(&mut aggregator, 0, &of(0, seq)).0.reason(), expected, "after {after} ms");
        }
    }
    for seq in SLOTS..2 * SLOTS {
        let (answer, sum) = send(&mut aggregator, 1, &of(1, seq));
        assert_eq!(answer.reason(), Reason::Forwarded);
        assert_eq!(elements(&sum), reference(2, seq, ELEMENTS), "nothing of the dead job's is in it");
    }
    assert_eq!(aggregator.watch.job(JOB + 1).counters[Reason::Reclaimed as usize], u64::from(SLOTS));
}

/// An aggregator that was out of sight gets its job back as it was; what its slots still hold of it does no
/// harm.
#[test]
fn a_job_comes_back_under_the_same_epoch() {
    let mut aggregator = aggregator(2);
    send(&mut aggregator, 0, &contribution(2, 0, 0));
    aggregator.remove(JOB);
    aggregator.install(&shared::job(2, &[HOST])).unwrap();
    // Meanwhile the chunk was completed without it, and the worker goes on in the same slot.
    let (answer, _) = send(&mut aggregator, 0, &contribution(2, 0, SLOTS));
    assert_eq!(answer.reason(), Reason::Collided);
    // Or it was not, and the worker sends it again.
    let again = Header { flags: flag::RESEND, ..contribution(2, 1, 0) };
    let (answer, sum) = send(&mut aggregator, 1, &again);
    assert_eq!(answer.reason(), Reason::Flushed);
    assert_eq!(elements(&sum), reference(2, 0, ELEMENTS));
    assert_eq!(aggregator.held(), 0);
}

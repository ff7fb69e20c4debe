//! The core, packet by packet, beyond the conformance vectors.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use std::net::Ipv4Addr;

use common::*;
use proptest::prelude::*;
use sumac_agg_host::{Answer, HostAggregator, NoMemory};
use sumac_agg_job::{JobError, NewJob};
use sumac_wire::{
    Header, Kind, Reason,
    header::{HEADER_LEN, flag},
    reason::COUNTERS,
    tables::JobEntry,
};

#[test]
fn a_flush_completes_with_what_is_there_and_the_late_one_gets_the_sum() {
    let mut aggregator = aggregator(3);
    let flush = |rank, seq| {
        let header = header(3, rank, seq, ELEMENTS);
        let header = Header { flags: header.flags | flag::PARTIAL, contributors: 1, ..header };
        packet(&header, &values(rank, seq, ELEMENTS))
    };
    for rank in 0..3 {
        let terms = Header { contributors: 1, next_seq: 8, ..header(3, rank, 0, ELEMENTS) };
        aggregator.on_packet(worker_ip(rank), &mut packet(&terms, &values(rank, 0, ELEMENTS)));
    }
    let mut first = flush(1, 2);
    assert_eq!(aggregator.on_packet(worker_ip(1), &mut first), Answer::None(Reason::Added), "no quorum");
    assert_eq!(aggregator.on_packet(worker_ip(1), &mut flush(1, 2)), Answer::None(Reason::Duplicate));
    aggregator.on_packet(worker_ip(0), &mut contribution(3, 0, 2));
    let mut partial = flush(1, 2);
    assert_eq!(aggregator.on_packet(worker_ip(1), &mut partial), Answer::All(Reason::Completed, JOB));
    let result = read(&partial);
    assert_eq!((result.flags, result.bitmap_0, result.contributors), (flag::PARTIAL, 0b011, 2));
    let sum = |(a, b): (&i32, &i32)| a.wrapping_add(*b);
    let sums: Vec<i32> = values(0, 2, ELEMENTS).iter().zip(&values(1, 2, ELEMENTS)).map(sum).collect();
    assert_eq!(elements(&partial), sums);
    let mut late = contribution(3, 2, 2);
    assert_eq!(
        aggregator.on_packet(worker_ip(2), &mut late),
        Answer::One(Reason::Replied, worker(2), Some(2))
    );
    assert_eq!((elements(&late), read(&late).bitmap_0), (sums, 0b011));
    // The next chunk of the operation: the budget of worker 2 is spent.
    aggregator.on_packet(worker_ip(0), &mut contribution(3, 0, 6));
    assert_eq!(aggregator.on_packet(worker_ip(1), &mut flush(1, 6)), Answer::None(Reason::Added));
    let counters = aggregator.watch.worker(JOB, 1).counters;
    assert_eq!((counters.added, counters.last, counters.duplicates), (3, 0, 2));
}

/// Every way in which a packet can be wrong is refused by its name, and changes nothing: the slot
/// then completes as if it had never come.
#[test]
fn hostile_packets_change_nothing_and_are_counted() {
    type Change = fn(&mut Vec<u8>);
    let table: [(&str, Change, Reason); 24] = [
        ("version 0", |p| p[0] = 0x01, Reason::BadVersion),
        ("version 1", |p| p[0] = 0x11, Reason::BadVersion),
        ("type 0", |p| p[0] = 0x30, Reason::BadType),
        ("type 8", |p| p[0] = 0x38, Reason::BadType),
        ("a result", |p| p[0] = 0x32, Reason::BadType),
        ("a report", |p| p[0] = 0x34, Reason::BadType),
        ("a flush", |p| p[0] = 0x36, Reason::BadType),
        ("format", |p| p[1] = 3, Reason::BadFormat),
        ("a job without entry", |p| p[5] = 6, Reason::UnknownJob),
        ("a job outside the table", |p| p[4] = 0xff, Reason::UnknownJob),
        ("epoch before", |p| p[7] = 2, Reason::WrongEpoch),
        ("epoch after", |p| p[7] = 4, Reason::WrongEpoch),
        ("slot after the last", |p| p[15] = 4, Reason::WrongSlot),
        ("another chunk's slot", |p| p[15] = 1, Reason::OutOfTurn),
        ("the slot's other version", |p| p[3] ^= 0x80, Reason::OutOfTurn),
        ("no slot", |p| p[12..16].fill(0xff), Reason::WrongSlot),
        ("fan-in", |p| p[16] = 3, Reason::WrongWorker),
        ("no worker", |p| p[23] = 0, Reason::WrongWorker),
        ("two workers", |p| p[23] = 3, Reason::WrongWorker),
        ("worker outside", |p| p[23] = 4, Reason::WrongWorker),
        ("second level", |p| p[27] = 1, Reason::WrongWorker),
        ("token", |p| p[55] ^= 1, Reason::BadToken),
        ("one element too many", |p| p.extend([0; 4]), Reason::BadLength),
        ("announced but not there", |p| p[19] += 1, Reason::BadLength),
    ];
    for (what, change, reason) in table {
        let mut bad = contribution(2, 1, 0);
        change(&mut bad);
        refused(what, worker_ip(1), bad, reason);
    }
    refused("another's address", worker_ip(0), contribution(2, 1, 0), Reason::WrongSource);
    refused("a stranger's address", Ipv4Addr::new(192, 0, 2, 1), contribution(2, 1, 0), Reason::WrongSource);
    let sized = |elements: u16| packet(&header(2, 1, 0, elements), &vec![7; usize::from(elements)]);
    refused("no elements", worker_ip(1), sized(0), Reason::WrongElements);
    refused("more than a chunk", worker_ip(1), sized(ELEMENTS + 1), Reason::WrongElements);
    refused("fewer than the first", worker_ip(1), sized(ELEMENTS - 1), Reason::WrongElements);
    refused("two rounds ahead", worker_ip(1), contribution(2, 1, 2 * SLOTS), Reason::OutOfTurn);
    let whole = contribution(2, 1, 0);
    for cut in 0..whole.len() {
        refused(&format!("cut at {cut}"), worker_ip(1), whole[..cut].to_vec(), Reason::BadLength);
    }
}

fn refused(what: &str, source: Ipv4Addr, mut bad: Vec<u8>, reason: Reason) {
    let mut aggregator = aggregator(2);
    assert_eq!(
        aggregator.on_packet(worker_ip(0), &mut contribution(2, 0, 0)),
        Answer::None(Reason::Added),
        "{what}"
    );
    let before = bad.clone();
    assert_eq!(aggregator.on_packet(source, &mut bad), Answer::None(reason), "{what}");
    assert_eq!(bad, before, "{what}: the packet is as it was");
    assert_eq!(aggregator.counter(reason), 1, "{what}");
    let mut last = contribution(2, 1, 0);
    assert_eq!(aggregator.on_packet(worker_ip(1), &mut last), Answer::All(Reason::Completed, JOB), "{what}");
    assert_eq!(elements(&last), reference(2, 0, ELEMENTS), "{what}");
}

#[test]
fn removed_jobs_and_new_incarnations() {
    let mut aggregator = aggregator(2);
    aggregator.on_packet(worker_ip(0), &mut contribution(2, 0, 0));
    assert!(aggregator.remove(JOB));
    assert!(!aggregator.remove(JOB));
    let answer = aggregator.on_packet(worker_ip(1), &mut contribution(2, 1, 0));
    assert_eq!(answer, Answer::One(Reason::UnknownJob, worker(1), Some(1)), "it is told");
    let next = JobEntry { epoch: EPOCH + 1, ..entry() };
    aggregator.install(&job(next, 2)).unwrap();
    for (rank, expected) in [(0, Answer::None(Reason::Added)), (1, Answer::All(Reason::Completed, JOB))] {
        let header = Header { epoch: EPOCH + 1, ..header(2, rank, 0, ELEMENTS) };
        let mut packet = packet(&header, &values(rank, 0, ELEMENTS));
        assert_eq!(aggregator.on_packet(worker_ip(rank), &mut packet), expected);
        if rank == 1 {
            assert_eq!(elements(&packet), reference(2, 0, ELEMENTS), "the abandoned slot was not added to");
        }
    }
}

#[test]
fn a_pool_that_no_host_has_memory_for_is_refused() {
    let Err(refused) = HostAggregator::new(u32::MAX, 832) else { panic!("it was made") };
    assert!(matches!(refused, NoMemory { slots: u32::MAX, elements: 832, .. }), "{refused:?}");
    assert!(refused.to_string().contains("--slots"), "{refused}");
}

#[test]
fn jobs_that_do_not_fit_are_refused() {
    let mut aggregator = HostAggregator::new(16, 64).unwrap();
    let good = JobEntry {
        slot_base: 8,
        slots: 8,
        lane_slots_log2: 2,
        shards: 1,
        elements: 64,
        ..JobEntry::default()
    };
    let lanes = |slots, lane_slots, shards| JobError::Lanes { slots, lane_slots, shards, ports: 1 };
    let range = |first, slots| JobError::Range { first, slots, pool: 16 };
    let child = JobEntry { flags: sumac_wire::tables::job_flag::CHILD, ..good };
    let table = [
        ("number 0", 0, good, 1, JobError::Number(0)),
        ("number 1024", 1024, good, 1, JobError::Number(1024)),
        ("nobody", 1, good, 0, JobError::World(0)),
        ("33", 1, good, 33, JobError::World(33)),
        ("no elements", 1, JobEntry { elements: 0, ..good }, 1, JobError::Elements { elements: 0, max: 64 }),
        ("elements", 1, JobEntry { elements: 65, ..good }, 1, JobError::Elements { elements: 65, max: 64 }),
        ("half a lane", 1, JobEntry { slots: 6, ..good }, 1, lanes(6, 4, 1)),
        ("less than a lane", 1, JobEntry { lane_slots_log2: 4, ..good }, 1, lanes(8, 16, 1)),
        ("end", 1, JobEntry { slot_base: 9, ..good }, 1, range(9, 8)),
        ("wrap", 1, JobEntry { slot_base: u32::MAX, ..good }, 1, range(u32::MAX, 8)),
        ("no shards", 1, JobEntry { shards: 0, ..good }, 1, lanes(8, 4, 0)),
        ("two shards", 1, JobEntry { shards: 2, ..good }, 1, lanes(8, 4, 2)),
        ("an orphan", 1, child, 1, JobError::Parents(0)),
    ];
    for (what, number, entry, world, error) in table {
        let new = NewJob { job: number, ..job(entry, world) };
        assert_eq!(aggregator.install(&new), Err(error), "{what}");
    }
    assert_eq!(aggregator.install(&NewJob { job: 1, ..job(good, 32) }), Ok(()));
    for (job, slots) in [(1, 8), (1, 3), (1, 0), (2, 1)] {
        assert!(aggregator.resize(job, slots).is_err(), "job {job}, {slots} slots");
    }
    aggregator.resize(1, 2).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// No bytes whatever make it panic, and every packet is counted exactly once.
    #[test]
    fn no_packet_panics(
        packets in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..400), any::<bool>()), 1..20),
    ) {
        let mut aggregator = aggregator(2);
        let count = packets.len() as u64;
        for (noise, keep_header) in packets {
            let mut packet = if keep_header { contribution(2, 0, 0) } else { Vec::new() };
            for (at, byte) in noise.into_iter().enumerate() {
                if at < packet.len() {
                    packet[at] ^= if byte < 16 { byte } else { 0 };
                } else {
                    packet.push(byte);
                }
            }
            aggregator.on_packet(worker_ip(0), &mut packet);
        }
        let counted: u64 = Reason::ALL.iter().map(|reason| aggregator.counter(*reason)).sum();
        prop_assert_eq!(counted, count);
        prop_assert!(Reason::ALL.len() <= COUNTERS);
    }
}

#[test]
fn jobs_do_not_take_each_others_place() {
    let mut aggregator = aggregator(2);
    let table = [
        ("there already", JOB, JobEntry { epoch: EPOCH + 1, slot_base: 0, ..entry() }, "is there already"),
        ("from below", JOB + 1, JobEntry { slot_base: 5, ..entry() }, "slots 5 to 5 + 4 belong to job 5"),
        ("from above", JOB + 1, JobEntry { slot_base: 11, ..entry() }, "belong to job 5"),
    ];
    for (what, number, entry, expected) in table {
        let new = NewJob { job: number, ..job(entry, 2) };
        let refused = aggregator.install(&new).unwrap_err().to_string();
        assert!(refused.contains(expected), "{what}: {refused}");
    }
    let second = job(JobEntry { slot_base: 12, ..entry() }, 2);
    aggregator.install(&NewJob { job: JOB + 1, ..second }).unwrap();
    aggregator.remove(JOB);
    let refused = aggregator.install(&job(entry(), 2)).unwrap_err().to_string();
    assert!(refused.contains("had epoch 3 before"), "{refused}");
    aggregator.install(&job(JobEntry { epoch: EPOCH + 1, ..entry() }, 2)).unwrap();
}

/// By the rank an answer takes its worker's paths, also where workers have the same address.
#[test]
fn an_answer_to_one_worker_names_its_rank() {
    let mut aggregator = HostAggregator::new(64, ELEMENTS).unwrap();
    let mut job = job(entry(), 3);
    let counts = [16, 1, 4];
    job.workers.iter_mut().zip(counts).for_each(|(worker, paths)| worker.paths = paths);
    (job.workers[2].ip, job.workers[2].port) = (job.workers[1].ip, job.workers[1].port);
    aggregator.install(&job).unwrap();
    for (rank, count) in (0..).zip(counts) {
        let ip = if rank == 2 { worker_ip(1) } else { worker_ip(rank) };
        let asked = Header { kind: Kind::Probe as u8, seq: 1, ..header(3, rank, 0, ELEMENTS) };
        let Answer::One(reason, _, Some(whom)) =
            aggregator.on_packet(ip, &mut packet(&asked, &values(rank, 0, ELEMENTS)))
        else {
            panic!("rank {rank} has no answer")
        };
        assert_eq!((reason, whom), (Reason::Probed, rank));
        let result = Header { kind: Kind::Result as u8, ..asked };
        let paths = (0..1000).map(|key| aggregator.path_of_answer(&result, whom, key));
        assert_eq!(paths.max(), Some(count - 1), "rank {rank}");
    }
}

#[test]
fn a_worker_of_a_removed_job_is_told() {
    let mut aggregator = aggregator(3);
    aggregator.on_packet(worker_ip(0), &mut contribution(3, 0, 0));
    assert!(aggregator.remove(JOB) && !aggregator.remove(JOB));
    let sent = contribution(3, 1, 0);
    let mut packet = sent.clone();
    assert_eq!(
        aggregator.on_packet(worker_ip(1), &mut packet),
        Answer::One(Reason::UnknownJob, worker(1), Some(1)),
        "its own address"
    );
    let token = result_token();
    let told = Header { kind: Kind::Report as u8, token, flags: flag::UNKNOWN_JOB, ..read(&sent) };
    assert_eq!((read(&packet), &packet[HEADER_LEN..]), (told, &sent[HEADER_LEN..]));
    let unknown = Answer::None(Reason::UnknownJob);
    assert_eq!(aggregator.on_packet(worker_ip(2), &mut sent.clone()), unknown, "another's address");
    let forged = Header { token: 1, ..read(&sent) };
    assert_eq!(aggregator.on_packet(worker_ip(1), &mut self::packet(&forged, &values(1, 0, 64))), unknown);
    let told = |aggregator: &mut HostAggregator| {
        let answers = (0..500).map(|_| aggregator.on_packet(worker_ip(1), &mut sent.clone()));
        answers.filter(|answer| matches!(answer, Answer::One(..))).count()
    };
    assert!((1..64).contains(&told(&mut aggregator)), "a flood is answered by no flood");
    aggregator.set_now(1000);
    assert_eq!(told(&mut aggregator), 64, "in the next second");
}

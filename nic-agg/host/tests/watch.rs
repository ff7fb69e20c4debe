//! Counters of each job, times, late workers, and injected drops.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use std::time::Duration;

use common::*;
use sumac_agg_host::{Answer, HostAggregator};
use sumac_agg_layout::{Drops, Times};
use sumac_wire::{Header, Kind, Reason, tables::JobEntry};

const HALF: u32 = 1 << 31;

fn send(aggregator: &mut HostAggregator, rank: u16, seq: u32) -> Reason {
    aggregator.on_packet(worker_ip(rank), &mut contribution(2, rank, seq)).reason()
}

#[test]
fn one_chunk_in_sixteen_is_timed_and_the_last_worker_is_late() {
    let mut aggregator = aggregator(2);
    for seq in 0..64 {
        send(&mut aggregator, 1, seq);
        if seq == 32 {
            std::thread::sleep(Duration::from_millis(2));
        }
        send(&mut aggregator, 0, seq);
    }
    let Times { buckets: times, sum } = aggregator.watch.job(JOB).times;
    assert_eq!(times.iter().sum::<u64>(), 4);
    assert!(times[20..].iter().sum::<u64>() >= 1, "two milliseconds are more than 2^20 ns: {times:?}");
    let late = [0, 1].map(|rank| aggregator.watch.worker(JOB, rank).late);
    assert_eq!(late.map(|late| late.chunks), [4, 4]);
    assert_eq!((late[1].sum, late[1].max), (0, 0), "the first is never late");
    assert_eq!(sum, late[0].sum, "the other one is always last");
    assert!(late[0].max >= 2_000_000 && late[0].sum >= late[0].max, "{late:?}");
    assert_eq!(aggregator.watch.worker(JOB, 0).counters.last, 64);
}

#[test]
fn contributions_are_counted_by_worker() {
    let mut aggregator = aggregator(2);
    for (rank, seq) in [(0, 0), (0, 0), (1, 0), (0, 0), (1, 1), (0, 1)] {
        send(&mut aggregator, rank, seq);
    }
    let counters = [0, 1].map(|rank| aggregator.watch.worker(JOB, rank).counters);
    assert_eq!(counters.map(|c| (c.added, c.last, c.duplicates, c.replies)), [(2, 1, 1, 1), (2, 1, 0, 0)]);
}

#[test]
fn a_new_job_is_counted_from_zero() {
    let mut aggregator = aggregator(2);
    send(&mut aggregator, 0, 0);
    assert_eq!(aggregator.watch.job(JOB).counters[Reason::Added as usize], 1);
    aggregator.on_packet(worker_ip(0), &mut packet(&Header { token: 1, ..header(2, 0, 0, 1) }, &[1]));
    assert_eq!(aggregator.watch.job(JOB).counters[Reason::BadToken as usize], 1, "of this job, too");
    aggregator.remove(JOB);
    let entry = JobEntry { epoch: EPOCH + 1, contributors: 2, ..entry() };
    aggregator.install(&job(entry, 2)).unwrap();
    let seen = aggregator.watch.job(JOB);
    assert_eq!((seen.counters.iter().sum::<u64>(), seen.times.buckets.iter().sum::<u64>()), (0, 0));
    assert_eq!(aggregator.watch.worker(JOB, 0).counters.added, 0);
    assert_eq!(aggregator.counter(Reason::Added), 1, "all jobs' counters go on");
}

#[test]
fn what_arrives_is_lost_on_purpose_before_it_touches_a_slot() {
    let mut aggregator = aggregator(2);
    aggregator.watch.set_drops(JOB, Drops { up: u32::MAX, down: 0 });
    assert_eq!(send(&mut aggregator, 0, 0), Reason::Injected);
    let stranger = Header { token: 1, ..header(2, 0, 0, 1) };
    assert_eq!(
        aggregator.on_packet(worker_ip(0), &mut packet(&stranger, &[1])).reason(),
        Reason::BadToken,
        "no frame but the job's"
    );
    assert_eq!((aggregator.watch.job(JOB).injected.up, aggregator.counter(Reason::Injected)), (1, 1));
    aggregator.watch.set_drops(JOB, Drops::default());
    assert_eq!(send(&mut aggregator, 0, 0), Reason::Added, "it had not been added");
    aggregator.watch.set_drops(JOB, Drops { up: HALF, down: 0 });
    let lost = (0..1000).filter(|_| send(&mut aggregator, 0, 0) == Reason::Injected).count();
    assert!((350..650).contains(&lost), "{lost} of 1000 at a half");
}

#[test]
fn what_leaves_is_lost_on_purpose_each_copy_by_itself() {
    let mut aggregator = aggregator(2);
    aggregator.watch.set_drops(JOB, Drops { up: 0, down: u32::MAX });
    send(&mut aggregator, 0, 0);
    let all = aggregator.on_packet(worker_ip(1), &mut contribution(2, 1, 0));
    assert_eq!(all, Answer::All(Reason::Completed, JOB), "complete all the same");
    assert!(!aggregator.keeps_copy(JOB));
    assert_eq!(send(&mut aggregator, 0, 0), Reason::Injected, "the repeated result, too");
    let probe = Header { kind: Kind::Probe as u8, ..header(2, 0, 0, ELEMENTS) };
    let mut probe = packet(&probe, &values(0, 0, ELEMENTS));
    assert_eq!(aggregator.on_packet(worker_ip(0), &mut probe), Answer::None(Reason::Injected));
    assert_eq!(aggregator.watch.job(JOB).injected.down, 3);
    aggregator.watch.set_drops(JOB, Drops { up: 0, down: HALF });
    let kept = (0..1000).filter(|_| aggregator.keeps_copy(JOB)).count();
    assert!((350..650).contains(&kept), "{kept} of 1000 at a half");
    aggregator.watch.set_drops(JOB, Drops::default());
    assert!(aggregator.keeps_copy(JOB));
    assert_eq!(send(&mut aggregator, 0, 0), Reason::Replied);
}

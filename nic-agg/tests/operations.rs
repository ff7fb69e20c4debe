//! Operation of a running aggregator: intentional drops, ARP and ping for its own address, counters, times.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use sumac_agg::tables::Tables;
use sumac_agg_job::NewJob;
use sumac_agg_layout::{Drops, State, state_flag};
use sumac_wire::{Header, Kind, Reason, checksum, header::flag, tables::JobEntry};
use support::{
    AGGREGATOR, AGGREGATOR_MAC, Bench, DROP, JOBS, PASS, REDIRECT,
    frames::{contribution, frame_of, header},
    job_of, needs_privileges, with_entry,
};

const ELEMENTS: u16 = 8;

fn bench() -> (NewJob, Bench) {
    let job = job_of(2, ELEMENTS);
    let bench = Bench::new(std::slice::from_ref(&job));
    (job, bench)
}

impl Bench {
    fn set_drops(&self, job: u16, up: u32, down: u32) {
        let mut tables = self.tables.lock().unwrap();
        tables.drops.set(job.into(), &Drops { up, down }).unwrap();
        let state = tables.state.get(0).unwrap();
        tables.state.set(0, &State { flags: state.flags | state_flag::DROPS, ..state }).unwrap();
    }
}

/// Returns a job's counters that are not zero.
fn counters(tables: &Tables, job: u16) -> Vec<(Reason, u64)> {
    let seen = tables.job_seen(job).unwrap();
    let all = Reason::ALL.iter().map(|reason| (*reason, seen.counters[*reason as usize]));
    all.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn what_arrives_is_dropped_in_proportion() {
    needs_privileges!("what_arrives_is_dropped_in_proportion");
    let (job, bench) = bench();
    bench.set_drops(job.job, u32::MAX / 4, 0);
    let probe = sumac_wire::Header { kind: Kind::Probe as u8, ..header(&job, 0, 0, ELEMENTS) };
    let frame = frame_of(&job, 0, &probe);
    let answered = (0..4000).filter(|_| bench.run(&frame).0 == REDIRECT).count();
    // Ten standard deviations of 27 to either side.
    assert!((2730..3270).contains(&answered), "{answered} of 4000 probes came through");
    let tables = bench.tables.lock().unwrap();
    let injected = tables.job_seen(job.job).unwrap().injected;
    assert_eq!((injected.up, injected.down), (4000 - answered as u64, 0));
    let of_job = counters(&tables, job.job);
    let expected = [(Reason::Probed, answered as u64), (Reason::Injected, 4000 - answered as u64)];
    assert_eq!(of_job, expected);
}

#[test]
fn drops_are_a_jobs_own_and_touch_no_slot_on_arrival() {
    needs_privileges!("drops_are_a_jobs_own_and_touch_no_slot_on_arrival");
    let (job, bench) = bench();
    bench.set_drops(job.job + 1, u32::MAX, u32::MAX);
    assert_eq!(bench.show(&contribution(&job, 0, 0, ELEMENTS)).reason, Reason::Added, "another job's");
    bench.set_drops(job.job, u32::MAX, 0);
    let before = bench.pool();
    let dropped = bench.show(&contribution(&job, 1, 0, ELEMENTS));
    assert_eq!((dropped.verdict, dropped.reason), (DROP, Reason::Injected));
    assert!(bench.pool() == before, "a dropped frame changed a slot");
}

#[test]
fn what_leaves_is_dropped_after_its_effect() {
    needs_privileges!("what_leaves_is_dropped_after_its_effect");
    let (job, bench) = bench();
    bench.show(&contribution(&job, 0, 0, ELEMENTS));
    bench.show(&contribution(&job, 1, 0, ELEMENTS));
    bench.set_drops(job.job, 0, u32::MAX);
    let reply = bench.show(&contribution(&job, 0, 0, ELEMENTS));
    assert_eq!((reply.verdict, reply.reason), (DROP, Reason::Injected));
    bench.set_drops(job.job, 0, 0);
    assert_eq!(
        bench.show(&contribution(&job, 0, 0, ELEMENTS)).reason,
        Reason::Replied,
        "nothing was lost but it"
    );
    let injected = bench.tables.lock().unwrap().job_seen(job.job).unwrap().injected;
    assert_eq!((injected.up, injected.down), (0, 1));
}

/// Returns rank 0's ARP request for `AGGREGATOR`.
fn arp_request() -> Vec<u8> {
    let mut frame = [[0xff; 6], [2, 0, 0, 0, 0, 0]].concat();
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([2, 0, 0, 0, 0, 0]);
    frame.extend([10, 77, 0, 10]);
    frame.extend([0; 6]);
    frame.extend(AGGREGATOR.octets());
    frame.resize(60, 0);
    frame
}

/// Returns rank 0's ICMP echo request to `AGGREGATOR`, with a payload.
fn echo_request() -> Vec<u8> {
    let mut frame = [AGGREGATOR_MAC, [2, 0, 0, 0, 0, 0]].concat();
    frame.extend([0x08, 0x00]);
    let mut ip = vec![0x45, 0, 0, 20 + 8 + 32, 0, 7, 0x40, 0, 64, 1, 0, 0, 10, 77, 0, 10];
    ip.extend(AGGREGATOR.octets());
    let sum = !checksum::fold(checksum::add(0, &ip));
    ip[10..12].copy_from_slice(&sum.to_ne_bytes());
    let mut icmp = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
    icmp.extend(0..32);
    let sum = !checksum::fold(checksum::add(0, &icmp));
    icmp[2..4].copy_from_slice(&sum.to_ne_bytes());
    frame.extend(ip);
    frame.extend(icmp);
    frame
}

impl Bench {
    fn own(&self) {
        let mut tables = self.tables.lock().unwrap();
        let state = tables.state.get(0).unwrap();
        tables.state.set(0, &State { own_ip: AGGREGATOR.to_bits(), ..state }).unwrap();
        // A test run's frames arrive on the loopback.
        tables.set_own(1, AGGREGATOR_MAC).unwrap();
    }

    /// Shows a changed frame, which goes to the kernel as it is.
    fn passes(&self, what: &str, mut frame: Vec<u8>, change: Change) {
        change(&mut frame);
        let shown = self.show(&frame);
        assert_eq!((shown.verdict, shown.reason), (PASS, Reason::Foreign), "{what}");
        assert!(shown.out == frame, "{what}: the frame was written to");
    }
}

type Change = fn(&mut Vec<u8>);

#[test]
fn arp_for_the_own_address_is_answered() {
    needs_privileges!("arp_for_the_own_address_is_answered");
    let (_, bench) = bench();
    assert_eq!(bench.show(&arp_request()).reason, Reason::Foreign, "without an own address");
    bench.own();
    let shown = bench.show(&arp_request());
    assert_eq!((shown.verdict, shown.reason), (REDIRECT, Reason::Answered));
    let mut expected = [[2, 0, 0, 0, 0, 0], AGGREGATOR_MAC].concat();
    expected.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2]);
    expected.extend(AGGREGATOR_MAC);
    expected.extend(AGGREGATOR.octets());
    expected.extend([2, 0, 0, 0, 0, 0]);
    expected.extend([10, 77, 0, 10]);
    assert_eq!(shown.out[..42], expected);
    let table: [(&str, Change); 5] = [
        ("another address", |b| b[41] ^= 1),
        ("an answer", |b| b[21] = 2),
        ("another hardware", |b| b[15] = 6),
        ("other lengths", |b| b[18] = 8),
        ("cut short", |b| b.truncate(41)),
    ];
    for (what, change) in table {
        bench.passes(what, arp_request(), change);
    }
}

#[test]
fn pings_of_the_own_address_are_answered() {
    needs_privileges!("pings_of_the_own_address_are_answered");
    let (_, bench) = bench();
    assert_eq!(bench.show(&echo_request()).reason, Reason::Foreign, "without an own address");
    bench.own();
    let request = echo_request();
    let shown = bench.show(&request);
    assert_eq!((shown.verdict, shown.reason), (REDIRECT, Reason::Answered));
    let out = shown.out;
    assert_eq!((&out[..6], &out[6..12]), (&request[6..12], &request[..6]));
    assert_eq!((&out[26..30], &out[30..34]), (&request[30..34], &request[26..30]));
    assert_eq!(out[34..36], [0, 0]);
    assert_eq!(out[38..], request[38..], "identifier, number and payload");
    assert!(checksum::is_intact(checksum::add(0, &out[14..34])), "IPv4 checksum");
    assert!(checksum::is_intact(checksum::add(0, &out[34..])), "ICMP checksum");
    let table: [(&str, Change); 6] = [
        ("another address", |b| b[33] ^= 1),
        ("an echo reply", |b| b[34] = 0),
        ("a fragment", |b| b[20] = 0x20),
        ("options", |b| b[14] = 0x46),
        ("TCP", |b| b[23] = 6),
        ("cut short", |b| b.truncate(41)),
    ];
    for (what, change) in table {
        bench.passes(what, echo_request(), change);
    }
}

#[test]
fn times_are_taken_of_one_chunk_in_sixteen() {
    needs_privileges!("times_are_taken_of_one_chunk_in_sixteen");
    let (job, bench) = bench();
    for seq in 0..64 {
        for rank in 0..2 {
            bench.show(&contribution(&job, rank, seq, ELEMENTS));
        }
    }
    let tables = bench.tables.lock().unwrap();
    let times = tables.job_seen(job.job).unwrap().times;
    assert_eq!(times.buckets.iter().sum::<u64>(), 4);
    let late = [0, 1].map(|rank| tables.worker_seen(job.job, rank).unwrap().late);
    assert_eq!(late.map(|late| late.chunks), [4, 4]);
    assert_eq!((late[0].sum, late[0].max), (0, 0), "the first is never late");
    assert!(late[1].max > 0 && late[1].sum >= late[1].max, "{late:?}");
    assert_eq!(times.sum, late[1].sum, "the second is always last");
}

/// The first values are stored as in an empty slot, but begin no other time.
#[test]
fn a_contribution_without_values_begins_a_chunk() {
    needs_privileges!("a_contribution_without_values_begins_a_chunk");
    let (job, bench) = bench();
    let header = header(&job, 0, 0, 0);
    let empty = Header { flags: header.flags | flag::EMPTY, ..header };
    assert_eq!(bench.show(&frame_of(&job, 0, &empty)).reason, Reason::Added);
    assert_eq!(bench.show(&contribution(&job, 1, 0, ELEMENTS)).reason, Reason::Completed);
    let tables = bench.tables.lock().unwrap();
    let times = tables.job_seen(job.job).unwrap().times;
    let late = [0, 1].map(|rank| tables.worker_seen(job.job, rank).unwrap().late);
    assert_eq!(late.map(|late| late.chunks), [1, 1]);
    assert_eq!((late[0].sum, late[1].sum), (0, times.sum), "the first is never late");
    assert!(times.sum > 0, "the time is that from the first contribution on");
}

#[test]
fn a_new_job_counts_from_zero() {
    needs_privileges!("a_new_job_counts_from_zero");
    let (job, bench) = bench();
    bench.show(&contribution(&job, 0, 0, ELEMENTS));
    let mut tables = bench.tables.lock().unwrap();
    assert_eq!(counters(&tables, job.job), [(Reason::Added, 1)]);
    sumac_agg::job::remove(&mut tables, job.job).unwrap();
    sumac_agg::job::add(&mut tables, &with_entry(job.clone(), |entry| JobEntry { epoch: 4, ..entry }))
        .unwrap();
    assert_eq!(counters(&tables, job.job), []);
    assert_eq!(tables.worker_seen(job.job, 0).unwrap().counters.added, 0);
    assert_eq!(tables.worker_seen(job.job, 0).unwrap().late.chunks, 0);
}

#[test]
fn jobs_are_as_many_as_the_tables_were_made_for() {
    needs_privileges!("jobs_are_as_many_as_the_tables_were_made_for");
    let numbered = |number: u32| NewJob { job: number as u16, ..job_of(2, ELEMENTS) };
    let last = numbered(JOBS - 1);
    let bench = Bench::new(std::slice::from_ref(&last));
    for (rank, verdict, reason) in [(0, DROP, Reason::Added), (1, REDIRECT, Reason::Completed)] {
        let shown = bench.show(&contribution(&last, rank, 0, ELEMENTS));
        assert_eq!((shown.verdict, shown.reason), (verdict, reason), "rank {rank}");
    }
    let mut tables = bench.tables.lock().unwrap();
    assert_eq!(counters(&tables, last.job), [(Reason::Added, 1), (Reason::Completed, 1)]);
    assert_eq!(tables.worker_seen(last.job, 1).unwrap().counters.last, 1);
    let refused = sumac_agg::job::add(&mut tables, &numbered(JOBS)).unwrap_err().to_string();
    assert!(refused.contains("1 to 599") && refused.contains("--jobs"), "{refused}");
    assert!(sumac_agg::job::remove(&mut tables, last.job).unwrap());
    assert_eq!(tables.jobs().unwrap().len(), 1, "its epoch is remembered");
}

#[test]
fn slots_that_hold_something_are_not_given_back() {
    needs_privileges!("slots_that_hold_something_are_not_given_back");
    let (job, bench) = bench();
    let resize = |lane_slots| {
        let mut tables = bench.tables.lock().unwrap();
        sumac_agg::job::resize(&mut tables, job.job, lane_slots).map_err(|error| error.to_string())
    };
    resize(8).unwrap();
    resize(4).unwrap();
    for (lane_slots, what) in [(8, "more than it has"), (3, "no power of two"), (0, "none")] {
        let refused = resize(lane_slots).unwrap_err();
        assert!(refused.contains("cannot be reduced"), "{what}: {refused}");
    }
    bench.show(&contribution(&job, 1, 0, ELEMENTS));
    let before = bench.tables.lock().unwrap().entries.get(job.job.into()).unwrap();
    let refused = resize(1).unwrap_err();
    assert!(refused.contains("rank 1 has contributed already"), "{refused}");
    assert_eq!(
        bench.tables.lock().unwrap().entries.get(job.job.into()).unwrap(),
        before,
        "it goes on as it was"
    );
}

//! Invalid frames: no slot changes (all are compared byte by byte), and the frame is dropped unchanged and
//! counted by its fault.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::net::Ipv4Addr;

use sumac_agg_job::NewJob;
use sumac_wire::{Header, Kind, Reason, header::flag};
use support::{
    AGGREGATOR, AGGREGATOR_MAC, Bench, DROP, JOBS, PASS, REDIRECT, SHARDS,
    frames::{answer, contribution, emit, frame_of, header, sum, tag},
    job_of, needs_privileges, refusal, result_token,
};

const ELEMENTS: u16 = 20;

/// The state of slot 3 and of the others before an invalid frame.
const SITUATIONS: [(&str, &[(usize, u32)]); 4] = [
    ("empty slot", &[]),
    ("waiting slot", &[(0, 3)]),
    ("complete slot", &[(0, 3), (1, 3), (2, 3)]),
    ("both versions", &[(0, 3), (1, 3), (2, 3), (0, 11), (2, 11)]),
];

/// Returns a job in one of the states. Rank 1's contribution to chunk 3 is falsified.
fn prepared(contributions: &[(usize, u32)]) -> (NewJob, Bench) {
    let job = job_of(3, ELEMENTS);
    let bench = Bench::new(std::slice::from_ref(&job));
    for (rank, seq) in contributions {
        bench.show(&contribution(&job, *rank, *seq, ELEMENTS));
    }
    (job, bench)
}

/// Runs the program on a frame that must change nothing.
fn refused(bench: &Bench, what: &str, frame: &[u8], reason: Reason) {
    let before = bench.pool();
    let shown = bench.show(frame);
    let verdict = if reason == Reason::Foreign { PASS } else { refusal(reason) };
    assert_eq!((shown.verdict, shown.reason), (verdict, reason), "{what}");
    assert!(shown.out == frame, "{what}: the frame was written to");
    assert!(bench.pool() == before, "{what}: a slot changed");
}

#[test]
fn wrong_fields_are_refused() {
    needs_privileges!("wrong_fields_are_refused");
    type Change = fn(&mut Header);
    let table: [(&str, Change, Reason); 25] = [
        ("type 0", |h| h.kind = 0, Reason::BadType),
        ("a result", |h| h.kind = Kind::Result as u8, Reason::BadType),
        ("a report", |h| h.kind = Kind::Report as u8, Reason::BadType),
        ("type 6", |h| h.kind = 6, Reason::BadType),
        ("type 8", |h| h.kind = 8, Reason::BadType),
        ("format 3", |h| h.format = 3, Reason::BadFormat),
        ("job 0", |h| h.job = 0, Reason::UnknownJob),
        ("another job", |h| h.job = 6, Reason::UnknownJob),
        ("a job beyond the table", |h| h.job = JOBS as u16, Reason::UnknownJob),
        ("the largest job", |h| h.job = u16::MAX, Reason::UnknownJob),
        ("the epoch before", |h| h.epoch -= 1, Reason::WrongEpoch),
        ("no token", |h| h.token = 0, Reason::BadToken),
        ("a token with one bit changed", |h| h.token ^= 1 << 63, Reason::BadToken),
        ("no worker", |h| h.bitmap_0 = 0, Reason::WrongWorker),
        ("two workers", |h| h.bitmap_0 = 0b11, Reason::WrongWorker),
        ("a worker beyond the world", |h| h.bitmap_0 = 0b1000, Reason::WrongWorker),
        ("another fan-in", |h| h.fan_in_0 = 2, Reason::WrongWorker),
        ("another worker than the address's", |h| h.bitmap_0 = 0b100, Reason::WrongSource),
        ("a slot that is not the chunk's", |h| h.slot = 4, Reason::OutOfTurn),
        ("a slot beyond the job's", |h| h.slot = 8, Reason::WrongSlot),
        ("a part from a rack", |h| h.flags |= flag::LEVEL, Reason::WrongWorker),
        ("a rack's bit", |h| h.bitmap_1 = 1, Reason::WrongWorker),
        ("two levels", |h| h.fan_in_1 = 2, Reason::WrongWorker),
        ("marked as refused", |h| h.flags |= flag::MISMATCH, Reason::BadType),
        ("elements in an exponent round", |h| h.flags |= flag::EXPONENT, Reason::WrongElements),
    ];
    for (situation, contributions) in SITUATIONS {
        let (job, bench) = prepared(contributions);
        for (what, change, reason) in &table {
            let mut bad = header(&job, 1, 3, ELEMENTS);
            change(&mut bad);
            refused(&bench, &format!("{situation}: {what}"), &frame_of(&job, 1, &bad), *reason);
        }
        let mut version = contribution(&job, 1, 3, ELEMENTS);
        version[42] = 1 << 4 | 1;
        refused(&bench, &format!("{situation}: version 1"), &version, Reason::BadVersion);
        let none = contribution(&job, 1, 3, 0);
        refused(&bench, &format!("{situation}: no elements"), &none, Reason::WrongElements);
        let long = contribution(&job, 1, 3, ELEMENTS + 1);
        refused(&bench, &format!("{situation}: too many elements"), &long, Reason::WrongElements);
        let probe = Header { kind: Kind::Probe as u8, ..header(&job, 1, 3, ELEMENTS + 1) };
        let probe = frame_of(&job, 1, &probe);
        refused(&bench, &format!("{situation}: a probe too long"), &probe, Reason::WrongElements);
    }
}

#[test]
fn the_other_version_is_refused() {
    needs_privileges!("the_other_version_is_refused");
    // An empty slot has no version yet: the first contribution sets it.
    let reasons = [Reason::OutOfTurn, Reason::OutOfTurn, Reason::Stale];
    for ((situation, contributions), reason) in SITUATIONS[1..].iter().zip(reasons) {
        let (job, bench) = prepared(contributions);
        let mut bad = header(&job, 1, 3, ELEMENTS);
        bad.flags ^= flag::POOL_VERSION;
        refused(&bench, situation, &frame_of(&job, 1, &bad), reason);
    }
}

#[test]
fn another_length_than_the_slots_is_refused() {
    needs_privileges!("another_length_than_the_slots_is_refused");
    for (situation, contributions) in &SITUATIONS[1..] {
        let (job, bench) = prepared(contributions);
        let short = contribution(&job, 1, 3, ELEMENTS - 1);
        refused(&bench, situation, &short, Reason::WrongElements);
    }
}

#[test]
fn headers_that_announce_another_length_are_refused() {
    needs_privileges!("headers_that_announce_another_length_are_refused");
    let (job, bench) = prepared(&[(0, 3)]);
    for elements in [0, 1, ELEMENTS - 1, ELEMENTS + 1, 832, 833, u16::MAX] {
        let lying = Header { elements, ..header(&job, 1, 3, ELEMENTS) };
        let mut payload = lying.to_bytes().to_vec();
        payload.extend([0; ELEMENTS as usize * 4]);
        refused(&bench, &format!("{elements} announced"), &emit(&job, 1, &payload), Reason::BadLength);
    }
    let good = contribution(&job, 1, 3, ELEMENTS);
    for (what, at, value) in [("IPv4 length", 16, 1), ("UDP length", 38, 1), ("UDP length 0", 38, 0)] {
        let mut bad = good.clone();
        bad[at..at + 2].copy_from_slice(&[0, value]);
        refused(&bench, what, &bad, Reason::BadLength);
    }
}

#[test]
fn frames_cut_at_every_byte_are_refused() {
    needs_privileges!("frames_cut_at_every_byte_are_refused");
    for tagged in [false, true] {
        let (job, bench) = prepared(&[(0, 3)]);
        let plain = contribution(&job, 1, 3, ELEMENTS);
        let (frame, l4) = if tagged { (tag(plain), 38) } else { (plain, 34) };
        // The kernel's test run requires an Ethernet header, as every driver does.
        for cut in 14..frame.len() {
            let reason = if cut < l4 + 4 { Reason::Foreign } else { Reason::Truncated };
            refused(&bench, &format!("cut at {cut} of {}", frame.len()), &frame[..cut], reason);
        }
        let whole = bench.show(&frame);
        assert_eq!(whole.reason, Reason::Added, "the whole frame");
    }
}

#[test]
fn foreign_frames_pass_untouched() {
    needs_privileges!("foreign_frames_pass_untouched");
    let (job, bench) = prepared(&[(0, 3)]);
    type Change = fn(&mut Vec<u8>);
    let table: [(&str, Change); 9] = [
        ("ARP", |b| b[12..14].copy_from_slice(&[8, 6])),
        ("IPv6", |b| b[12..14].copy_from_slice(&[0x86, 0xdd])),
        ("another ethertype with 802.1Q's bit", |b| b[12..14].copy_from_slice(&[0x81, 1])),
        ("two tags", |b| *b = tag(tag(b.clone()))),
        ("IPv4 options", |b| b[14] = 0x46),
        ("TCP", |b| b[23] = 6),
        ("a later fragment", |b| b[21] = 1),
        ("another port", |b| b[37] += SHARDS as u8),
        ("a port with the bytes swapped", |b| b.swap(36, 37)),
    ];
    for (what, change) in table {
        let mut frame = contribution(&job, 1, 3, ELEMENTS);
        change(&mut frame);
        refused(&bench, what, &frame, Reason::Foreign);
    }
    let mut fragment = contribution(&job, 1, 3, ELEMENTS);
    fragment[20] |= 0x20;
    refused(&bench, "a first fragment", &fragment, Reason::Fragment);
}

/// Sends a frame to another address.
fn readdressed(mut frame: Vec<u8>, to: Ipv4Addr) -> Vec<u8> {
    frame[30..34].copy_from_slice(&to.octets());
    frame
}

#[test]
fn routed_frames_of_another_aggregators_job_pass() {
    needs_privileges!("routed_frames_of_another_aggregators_job_pass");
    let (job, bench) = prepared(&[(0, 3)]);
    let other = Ipv4Addr::from_bits(AGGREGATOR.to_bits() + 100);
    type Change = fn(&mut Header);
    let table: [(&str, Change, Reason); 5] = [
        ("the very job's", |_| (), Reason::Foreign),
        ("of another token", |h| h.token ^= 1, Reason::BadToken),
        ("of another epoch", |h| h.epoch += 1, Reason::WrongEpoch),
        ("of a larger world", |h| h.fan_in_0 = 9, Reason::WrongWorker),
        ("a result", |h| (h.kind, h.token) = (Kind::Result as u8, 1), Reason::BadToken),
    ];
    for (what, change, reason) in table {
        let mut header = header(&job, 1, 3, ELEMENTS);
        change(&mut header);
        let plain = readdressed(frame_of(&job, 1, &header), other);
        for frame in [plain.clone(), tag(plain)] {
            let shown = bench.show(&frame);
            assert_eq!((shown.verdict, shown.reason), (PASS, reason), "{what}");
            assert!(shown.out == frame, "{what}: the frame was written to");
        }
    }
}

#[test]
fn a_worker_of_a_removed_job_is_told() {
    needs_privileges!("a_worker_of_a_removed_job_is_told");
    let (job, bench) = prepared(&[(0, 3)]);
    assert!(sumac_agg::job::remove(&mut bench.tables.lock().unwrap(), job.job).unwrap());
    let probe = Header { kind: Kind::Probe as u8, ..header(&job, 1, 3, ELEMENTS) };
    for (what, sent) in [("a contribution", header(&job, 1, 3, ELEMENTS)), ("a probe", probe)] {
        let plain = frame_of(&job, 1, &sent);
        for frame in [plain.clone(), tag(plain)] {
            let shown = bench.show(&frame);
            assert_eq!((shown.verdict, shown.reason), (REDIRECT, Reason::UnknownJob), "{what}");
            let told = answer(&shown.out);
            let token = result_token();
            let expected = Header { kind: Kind::Report as u8, token, flags: flag::UNKNOWN_JOB, ..sent };
            assert_eq!(told.header, expected, "{what}");
            assert_eq!(told.macs, [job.workers[1].mac, AGGREGATOR_MAC], "{what}");
            let way = (told.frame.src_ip, told.frame.dst_ip, told.frame.src_port, told.frame.dst_port);
            assert_eq!(way, (AGGREGATOR.to_bits(), job.workers[1].ip, 48700, 49000), "{what}");
            assert_eq!(told.frame.dscp_ecn, 0x28, "{what}: nobody reacts to a mark on it");
        }
    }
    type Change = fn(&mut Header);
    let table: [(&str, Change); 5] = [
        ("another token", |h| h.token ^= 1),
        ("another epoch", |h| h.epoch += 1),
        ("no worker", |h| h.bitmap_0 = 8),
        ("another worker than the address's", |h| h.bitmap_0 = 1),
        ("a report, which is answered by none", |h| h.kind = Kind::Report as u8),
    ];
    for (what, change) in table {
        let mut header = header(&job, 1, 3, ELEMENTS);
        change(&mut header);
        refused(&bench, what, &frame_of(&job, 1, &header), Reason::UnknownJob);
    }
    let past = readdressed(contribution(&job, 1, 3, ELEMENTS), Ipv4Addr::new(10, 77, 0, 99));
    refused(&bench, "to another address", &past, Reason::UnknownJob);
    // A flood is answered by no flood, and goes nowhere.
    let flood = contribution(&job, 2, 3, ELEMENTS);
    let verdicts: Vec<u32> = (0..500).map(|_| bench.run(&flood).0).collect();
    let told = verdicts.iter().filter(|verdict| **verdict == REDIRECT).count();
    assert!((1..=128).contains(&told), "{told} of 500 answered");
    assert!(verdicts.iter().all(|verdict| [REDIRECT, DROP].contains(verdict)));
}

#[test]
fn wrong_sources_are_refused() {
    needs_privileges!("wrong_sources_are_refused");
    let (job, bench) = prepared(&[(0, 3)]);
    for from in [0, 2] {
        let stolen = frame_of(&job, from, &header(&job, 1, 3, ELEMENTS));
        refused(&bench, &format!("rank 1's, from rank {from}'s address"), &stolen, Reason::WrongSource);
    }
}

#[test]
fn damaged_payloads_are_refused_and_taken_back() {
    needs_privileges!("damaged_payloads_are_refused_and_taken_back");
    for (situation, contributions) in SITUATIONS {
        let (job, bench) = prepared(contributions);
        let good = contribution(&job, 1, 3, ELEMENTS);
        // Damage to the fields of the decision is detected by them first; from the field `tensor` on by the
        // checksum only.
        for at in (42 + 32..42 + 48).chain(42 + 56..good.len()) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            refused(&bench, &format!("{situation}: byte {at}"), &bad, Reason::BadChecksum);
        }
        for checksum in [[0, 0], [good[40], good[41] ^ 1]] {
            let mut bad = good.clone();
            bad[40..42].copy_from_slice(&checksum);
            refused(&bench, &format!("{situation}: checksum {checksum:?}"), &bad, Reason::BadChecksum);
        }
    }
}

#[test]
fn damaged_probes_are_refused() {
    needs_privileges!("damaged_probes_are_refused");
    let (job, bench) = prepared(&[]);
    let probe = Header { kind: Kind::Probe as u8, ..header(&job, 1, 3, ELEMENTS) };
    let mut frame = frame_of(&job, 1, &probe);
    *frame.last_mut().unwrap() ^= 1;
    refused(&bench, "a damaged probe", &frame, Reason::BadChecksum);
}

#[test]
fn sums_are_right_after_all_that() {
    needs_privileges!("sums_are_right_after_all_that");
    let (job, bench) = prepared(&[]);
    for seq in 0..40 {
        for rank in 0..3 {
            let good = contribution(&job, rank, seq, ELEMENTS);
            let mut bad = good.clone();
            bad[120] ^= 0xff;
            assert_eq!(bench.show(&bad).reason, Reason::BadChecksum);
            let shown = bench.show(&good);
            if rank == 2 {
                assert_eq!(shown.verdict, REDIRECT);
                assert_eq!(answer(&shown.out).values, sum(0..3, seq, ELEMENTS.into()), "chunk {seq}");
            }
        }
    }
}

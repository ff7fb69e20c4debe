//! Packets that lie to an aggregator of a dynamic job: each is refused by name and changes nothing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use std::net::Ipv4Addr;

use common::{
    ELEMENTS, EPOCH, JOB, TOKEN, elements, entry, packet, read, result_token, shared, worker, worker_ip,
};
use proptest::prelude::*;
use shared::{HOST, SLOTS, aggregator, contribution, header, reference, result, values};
use sumac_agg_host::{Answer, HostAggregator};
use sumac_agg_job::NewJob;
use sumac_wire::{
    Header, Kind, MAX_LANES, Reason,
    header::{NO_SLOT, flag},
    tables::{JobEntry, job_flag},
};

type Change = fn(&mut Header);

/// Invalid contributions of a worker.
const CONTRIBUTIONS: [(&str, Change, Reason); 31] = [
    ("type 0", |h| h.kind = 0, Reason::BadType),
    ("a flush", |h| h.kind = Kind::Stop as u8, Reason::BadType),
    ("a result", |h| (h.kind, h.token) = (2, result_token()), Reason::WrongSource),
    ("a report", |h| (h.kind, h.token) = (4, result_token()), Reason::WrongSource),
    ("a result with the token of contributions", |h| h.kind = Kind::Result as u8, Reason::BadToken),
    ("a job without entry", |h| h.job = JOB + 1, Reason::UnknownJob),
    ("a job outside of the table", |h| h.job = u16::MAX, Reason::UnknownJob),
    ("epoch before", |h| h.epoch = EPOCH - 1, Reason::WrongEpoch),
    ("epoch after", |h| h.epoch = EPOCH + 1, Reason::WrongEpoch),
    ("token", |h| h.token = TOKEN ^ 1, Reason::BadToken),
    ("fan-in", |h| h.fan_in_0 = 3, Reason::WrongWorker),
    ("no fan-in", |h| h.fan_in_0 = 0, Reason::WrongWorker),
    ("no worker", |h| h.bitmap_0 = 0, Reason::WrongWorker),
    ("two workers", |h| h.bitmap_0 = 3, Reason::WrongWorker),
    ("a worker outside", |h| h.bitmap_0 = 4, Reason::WrongWorker),
    ("the other worker", |h| h.bitmap_0 = 1, Reason::WrongSource),
    ("a rack", |h| h.bitmap_1 = 1, Reason::WrongWorker),
    ("racks", |h| h.fan_in_1 = 1, Reason::WrongWorker),
    ("from a rack", |h| h.flags = flag::LEVEL, Reason::WrongWorker),
    ("the slot after the last", |h| h.slot = SLOTS, Reason::WrongSlot),
    ("the last slot but one of all numbers", |h| h.slot = NO_SLOT - 1, Reason::WrongSlot),
    ("no slot for the first time", |h| h.slot = NO_SLOT, Reason::BadType),
    ("a lane outside of the table", |h| h.lane = MAX_LANES as u16, Reason::WrongSlot),
    ("a lane beyond those of any shard", |h| h.lane = u16::MAX, Reason::WrongSlot),
    ("floats for the first time", |h| h.flags = flag::RAW_FLOAT, Reason::BadType),
    ("a question", |h| h.flags = flag::QUERY, Reason::BadType),
    ("an exponent round", |h| h.flags = flag::EXPONENT, Reason::BadType),
    ("a refusal", |h| h.flags = flag::MISMATCH, Reason::BadType),
    ("a part", |h| h.flags = flag::PARTIAL, Reason::BadType),
    ("no elements", |h| h.elements = 0, Reason::WrongElements),
    ("more than a chunk", |h| h.elements = ELEMENTS + 1, Reason::WrongElements),
];

/// Invalid results of a parameter host.
const RESULTS: [(&str, Change, Reason); 11] = [
    ("an answer to nobody's probe", |h| (h.kind, h.bitmap_0) = (Kind::Report as u8, 4), Reason::WrongWorker),
    ("an answer to two", |h| (h.kind, h.bitmap_0) = (Kind::Report as u8, 3), Reason::WrongWorker),
    ("a job without entry", |h| h.job = JOB + 1, Reason::UnknownJob),
    ("epoch", |h| h.epoch = EPOCH + 1, Reason::WrongEpoch),
    ("token", |h| h.token = 0, Reason::BadToken),
    ("the slot after the last", |h| h.slot = SLOTS, Reason::WrongSlot),
    ("a lane outside of the table", |h| h.lane = 77, Reason::WrongSlot),
    ("more than a chunk", |h| h.elements = ELEMENTS + 1, Reason::WrongElements),
    ("a contribution", |h| (h.kind, h.token, h.bitmap_0) = (1, TOKEN, 2), Reason::WrongSource),
    ("a probe", |h| (h.kind, h.token, h.bitmap_0) = (3, TOKEN, 2), Reason::WrongSource),
    ("the token of contributions", |h| h.token = TOKEN, Reason::BadToken),
];

/// Gives a bad packet to an aggregator whose slot holds one of two contributions; the other then completes it
/// as if nothing had been.
fn refused(what: &str, source: Ipv4Addr, mut bad: Vec<u8>, reason: Reason) {
    let mut aggregator = aggregator(2);
    let mut first = packet(&contribution(2, 0, 0), &values(0, 0, ELEMENTS));
    assert_eq!(aggregator.on_packet(worker_ip(0), &mut first), Answer::None(Reason::Added), "{what}");
    let before = bad.clone();
    assert_eq!(aggregator.on_marked_packet(source, &mut bad), Answer::None(reason), "{what}");
    assert_eq!(bad, before, "{what}: the packet is as it was");
    assert_eq!((aggregator.counter(reason), aggregator.held()), (1, 1), "{what}");
    let mut last = packet(&contribution(2, 1, 0), &values(1, 0, ELEMENTS));
    assert_eq!(
        aggregator.on_packet(worker_ip(1), &mut last),
        Answer::One(Reason::Forwarded, HOST, None),
        "{what}"
    );
    assert_eq!(elements(&last), reference(2, 0, ELEMENTS), "{what}");
    assert_eq!(read(&last).flags, flag::LEVEL, "{what}: nor a mark of the bad one's");
}

fn of(header: &Header) -> Vec<u8> {
    packet(header, &vec![7; usize::from(header.elements)])
}

#[test]
fn contributions_that_lie() {
    for (what, change, reason) in CONTRIBUTIONS {
        let mut header = contribution(2, 1, 0);
        change(&mut header);
        refused(what, worker_ip(1), of(&header), reason);
    }
    let good = of(&contribution(2, 1, 0));
    refused("another's address", worker_ip(0), good.clone(), Reason::WrongSource);
    refused("a stranger's address", Ipv4Addr::new(192, 0, 2, 1), good.clone(), Reason::WrongSource);
    refused("the parameter host's address", *HOST.ip(), good.clone(), Reason::WrongSource);
    refused("no address", Ipv4Addr::UNSPECIFIED, good.clone(), Reason::WrongSource);
    for cut in 0..good.len() {
        refused(&format!("cut at {cut}"), worker_ip(1), good[..cut].to_vec(), Reason::BadLength);
    }
    for more in 1..9 {
        let long = [&good[..], &vec![0; more]].concat();
        refused(&format!("{more} too long"), worker_ip(1), long, Reason::BadLength);
    }
    let probe = Header { kind: Kind::Probe as u8, ..header(2, 1, 0, ELEMENTS + 1) };
    refused("a probe that is too long", worker_ip(1), of(&probe), Reason::WrongElements);
}

#[test]
fn results_that_lie() {
    for (what, change, reason) in RESULTS {
        let mut header = result(&contribution(2, 1, 0));
        change(&mut header);
        refused(what, *HOST.ip(), of(&header), reason);
    }
    let good = of(&result(&contribution(2, 1, 0)));
    for (what, source) in [
        ("a worker's", worker_ip(1)),
        ("a stranger's", Ipv4Addr::new(192, 0, 2, 1)),
        ("nobody's", Ipv4Addr::UNSPECIFIED),
    ] {
        refused(what, source, good.clone(), Reason::WrongSource);
    }
    for cut in 0..good.len() {
        refused(&format!("cut at {cut}"), *HOST.ip(), good[..cut].to_vec(), Reason::BadLength);
    }
}

/// An admitted packet that contradicts the slot's contents is not added, but passed on to the parameter host.
#[test]
fn what_does_not_go_with_the_slot_is_not_added() {
    let table: [(&str, Change); 4] = [
        ("another operation", |h| h.tensor = 10),
        ("fewer elements", |h| h.elements = ELEMENTS - 1),
        ("another exponent", |h| h.exponent = 1),
        ("another sum", |h| h.flags = flag::MAXIMUM),
    ];
    for (what, change) in table {
        let mut aggregator = aggregator(2);
        aggregator.on_packet(worker_ip(0), &mut of(&contribution(2, 0, 0)));
        let mut header = contribution(2, 1, 0);
        change(&mut header);
        let mut packet = of(&header);
        let before = elements(&packet);
        assert_eq!(
            aggregator.on_packet(worker_ip(1), &mut packet),
            Answer::One(Reason::Collided, HOST, None),
            "{what}"
        );
        assert_eq!((elements(&packet), aggregator.held()), (before, 1), "{what}");
    }
}

/// A worker on the parameter host's machine has its address, and may still say no more than a worker.
#[test]
fn a_parameter_host_beside_a_worker() {
    let mut aggregator = shared::empty();
    let hosts = [std::net::SocketAddrV4::new(worker_ip(1), 48_500)];
    aggregator.install(&shared::job(2, &hosts)).unwrap();
    let mut send = |header: &Header| aggregator.on_packet(worker_ip(1), &mut of(header));
    assert_eq!(send(&contribution(2, 1, 0)), Answer::None(Reason::Added));
    assert_eq!(send(&contribution(2, 0, 0)), Answer::None(Reason::WrongSource), "another worker's");
    assert_eq!(send(&result(&contribution(2, 1, 0))), Answer::All(Reason::Concluded, JOB));
    let probe = Header { kind: Kind::Probe as u8, ..contribution(2, 1, 0) };
    assert_eq!(send(&probe), Answer::One(Reason::Passed, hosts[0], None));
    let report = Header { kind: Kind::Report as u8, token: result_token(), ..probe };
    assert_eq!(send(&report), Answer::One(Reason::Probed, worker(1), Some(1)));
    assert_eq!(aggregator.held(), 0);
}

/// A static job's packets do nothing to a dynamic job's, and the other way round.
#[test]
fn jobs_of_both_kinds_side_by_side() {
    let mut aggregator = aggregator(2);
    let fixed = JobEntry { contributors: 2, ..entry() };
    aggregator.install(&NewJob { job: JOB + 1, ..common::job(fixed, 2) }).unwrap();
    let shared_header = |rank| contribution(2, rank, 0);
    let fixed_header = |rank| Header { job: JOB + 1, ..common::header(2, rank, 0, ELEMENTS) };
    let mut send = |rank, header: &Header| {
        let mut packet = packet(header, &values(rank, 0, ELEMENTS));
        (aggregator.on_packet(worker_ip(rank), &mut packet), elements(&packet))
    };
    assert_eq!(send(0, &shared_header(0)).0, Answer::None(Reason::Added));
    assert_eq!(send(0, &fixed_header(0)).0, Answer::None(Reason::Added));
    let sum = reference(2, 0, ELEMENTS);
    assert_eq!(send(1, &shared_header(1)), (Answer::One(Reason::Forwarded, HOST, None), sum.clone()));
    assert_eq!(send(1, &fixed_header(1)), (Answer::All(Reason::Completed, JOB + 1), sum));
}

/// Below a root, and at it, only what comes by its way.
#[test]
fn each_level_takes_only_its_own() {
    let at = |flags, rack| {
        let mut aggregator = shared::empty();
        let new = shared::job(2, &[HOST]);
        let entry = JobEntry { flags: new.entry.flags | flags, rack, racks: 2, ..new.entry };
        aggregator.install(&NewJob { entry, ..new }).unwrap();
        aggregator
    };
    let below = Header { fan_in_1: 2, bitmap_1: 2, ..contribution(2, 1, 0) };
    let above = Header { flags: flag::LEVEL, bitmap_0: 3, ..below };
    let reason = |aggregator: &mut HostAggregator, header: &Header| {
        aggregator.on_packet(worker_ip(1), &mut of(header)).reason()
    };
    let mut rack = at(job_flag::CHILD, 1);
    let mut root = at(job_flag::ROOT, 0);
    for (what, change, at_rack, at_root) in [
        ("as they come", (|_| ()) as Change, Reason::Added, Reason::Added),
        ("another rack", |h| h.bitmap_1 = 1, Reason::WrongWorker, Reason::WrongSource),
        ("two racks", |h| h.bitmap_1 = 3, Reason::WrongWorker, Reason::WrongWorker),
        ("no rack", |h| h.bitmap_1 = 0, Reason::WrongWorker, Reason::WrongWorker),
        ("other racks", |h| h.fan_in_1 = 3, Reason::WrongWorker, Reason::WrongWorker),
        ("nobody of the rack", |h| h.bitmap_0 = 0, Reason::WrongWorker, Reason::WrongWorker),
        ("the other level", |h| h.flags ^= flag::LEVEL, Reason::WrongWorker, Reason::WrongWorker),
    ] {
        let changed = |mut header: Header| {
            change(&mut header);
            header
        };
        assert_eq!(reason(&mut rack, &changed(below)), at_rack, "at a rack: {what}");
        assert_eq!(reason(&mut root, &changed(above)), at_root, "at the root: {what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// No bytes whatever make it panic, and every packet is counted exactly once.
    #[test]
    fn no_packet_panics(
        packets in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..400), 0..4u8), 1..20),
    ) {
        let mut aggregator = aggregator(2);
        let count = packets.len() as u64;
        for (noise, kind) in packets {
            let mut packet = match kind {
                0 => Vec::new(),
                1 => of(&contribution(2, 0, 0)),
                2 => of(&Header { flags: flag::RESEND, ..contribution(2, 0, 0) }),
                _ => of(&result(&contribution(2, 0, 0))),
            };
            for (at, byte) in noise.into_iter().enumerate() {
                match packet.get_mut(at) {
                    Some(old) => *old ^= if byte < 16 { byte } else { 0 },
                    None => packet.push(byte),
                }
            }
            let source = if kind == 3 { *HOST.ip() } else { worker_ip(0) };
            aggregator.on_marked_packet(source, &mut packet);
        }
        let counted: u64 = Reason::ALL.iter().map(|reason| aggregator.counter(*reason)).sum();
        prop_assert_eq!(counted, count);
    }
}

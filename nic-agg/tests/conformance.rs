//! The XDP program and the host aggregator, given the same valid and forged packets of dynamic jobs in random order: both
//! have the same reason for each packet, and forward the same bits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
};

use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use sumac_agg_host::{Answer, HostAggregator, NewJob};
use sumac_wire::{
    Header, Kind, Reason,
    frame::OVERHEAD,
    header::{NO_SLOT, flag},
    tables::WorkerEntry,
};
use support::{
    Bench, DROP, DYNAMIC_SLOTS, SHARDS,
    dynamic::{self, SLOTS, dynamic_job, frame, rack_job, result, root_job},
    needs_privileges, worker,
};

/// Packets of each job.
const PACKETS: usize = 3000;
const ELEMENTS: u16 = 20;
/// Few, so that chunks collide.
const CHUNKS: u32 = 24;

/// Returns a host aggregator with the same job.
fn on_host(job: &NewJob) -> HostAggregator {
    let aggregator = HostAggregator::of_shard(0, SHARDS, 1, ELEMENTS).unwrap();
    let mut aggregator = aggregator.with_dynamic(DYNAMIC_SLOTS).unwrap();
    aggregator.install(job).unwrap();
    aggregator
}

/// A packet and its source.
struct Packet {
    from: WorkerEntry,
    header: Header,
    values: Vec<i32>,
    is_marked: bool,
}

/// Returns a packet that a worker, root or parameter host could send.
fn good(rng: &mut SmallRng, job: &NewJob) -> Packet {
    let rank = rng.random_range(0..job.workers.len());
    let seq = rng.random_range(0..CHUNKS);
    let mut header = dynamic::header(job, rank, seq, seq * 5 % SLOTS);
    header.next_exponent = rng.random_range(-3..3);
    header.received = rng.random_range(0..=seq);
    header.flags |= [0, 0, 0, flag::RESEND, flag::OVERFLOW][rng.random_range(0..5usize)];
    let mut from = job.workers[rank];
    match rng.random_range(0..12) {
        0 => header.kind = Kind::Probe as u8,
        1 | 2 => {
            (header, from) = (result(&header), job.parents[0]);
            header.flags = [0, flag::ECN_ECHO, flag::COLLISION][rng.random_range(0..3usize)];
        }
        3 => (header.kind, from) = (Kind::Report as u8, job.parents[0]),
        4 => (header.slot, header.flags) = (NO_SLOT, header.flags | flag::RESEND),
        5 => header.flags |= flag::RAW_FLOAT | flag::RESEND,
        6 => header.flags |= flag::MAXIMUM,
        7 => header.tensor ^= 1,
        8 => header.exponent = 1,
        9 => header.elements = rng.random_range(1..=ELEMENTS),
        _ => {}
    }
    // Large values overflow; the sums of small ones can be compared.
    let shift = [0, 4][rng.random_range(0..2usize)];
    let values = (0..header.elements).map(|_| rng.random::<i32>() >> shift).collect();
    Packet { from, header, values, is_marked: rng.random_range(0..4) == 0 }
}

/// Falsifies one field.
fn forge(rng: &mut SmallRng, job: &NewJob, packet: &mut Packet) {
    let header = &mut packet.header;
    let bit = |rng: &mut SmallRng| 1u32 << rng.random_range(0..32);
    match rng.random_range(0..14) {
        0 => header.kind = rng.random_range(0..16),
        1 => header.flags ^= bit(rng) as u16,
        2 => header.job = rng.random_range(0..80),
        3 => header.epoch ^= bit(rng) as u16,
        4 => header.token ^= 1 << rng.random_range(0..64),
        5 => header.slot = rng.random_range(0..40),
        6 => header.slot ^= bit(rng),
        7 => header.fan_in_0 ^= bit(rng) as u8,
        8 => header.fan_in_1 ^= bit(rng) as u8,
        9 => header.bitmap_0 ^= bit(rng),
        10 => header.bitmap_1 ^= bit(rng),
        11 => header.lane ^= bit(rng) as u16,
        12 => {
            header.elements = [0, ELEMENTS + 1][rng.random_range(0..2usize)];
            packet.values = vec![1; usize::from(header.elements)];
        }
        _ => {
            let others = [job.workers[0], job.parents[0], worker(77)];
            packet.from = others[rng.random_range(0..3usize)];
        }
    }
}

fn play(seed: u64, what: &str, job: &NewJob, needed: &[Reason]) {
    let (bench, mut host) = (Bench::new(std::slice::from_ref(job)), on_host(job));
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut met = BTreeSet::new();
    for number in 0..PACKETS {
        let mut packet = good(&mut rng, job);
        if rng.random_range(0..4) == 0 {
            forge(&mut rng, job, &mut packet);
        }
        let Packet { from, header, values, is_marked } = packet;
        let dscp_ecn = if is_marked { dynamic::CE } else { dynamic::ECT };
        let bytes = frame(job, &from, &header, &values, dscp_ecn);
        let seen = bench.show(&bytes);
        let mut payload = bytes[OVERHEAD..].to_vec();
        let source = Ipv4Addr::from_bits(from.ip);
        let answer = match is_marked {
            true => host.on_marked_packet(source, &mut payload),
            false => host.on_packet(source, &mut payload),
        };
        let at = format!("{what}, packet {number}: {header:?} from {source}");
        assert_eq!(seen.reason, answer.reason(), "{at}");
        assert_eq!(seen.verdict == DROP, matches!(answer, Answer::None(_)), "{at}");
        met.insert(seen.reason.name());
        if seen.verdict == DROP {
            continue;
        }
        assert_eq!(
            seen.out[OVERHEAD..],
            payload,
            "{at}: {seen_header:?}",
            seen_header = read(&seen.out[OVERHEAD..])
        );
        if let Answer::One(_, to) = answer {
            assert_eq!(destination(&seen.out), to, "{at}");
        }
    }
    let missed: Vec<&str> =
        needed.iter().map(|reason| reason.name()).filter(|name| !met.contains(name)).collect();
    assert!(missed.is_empty(), "{what}: nothing was {missed:?}: the test tests less than it says");
    let held = (0..DYNAMIC_SLOTS).filter(|slot| bench.dynamic_slot(*slot).meta.owner != 0).count();
    assert_eq!(held as u32, host.held(), "{what}");
}

fn read(payload: &[u8]) -> Header {
    Header::read(payload, 0, payload.len()).unwrap()
}

fn destination(bytes: &[u8]) -> SocketAddrV4 {
    let ip: [u8; 4] = bytes[30..34].try_into().unwrap();
    SocketAddrV4::new(Ipv4Addr::from(ip), u16::from_be_bytes([bytes[36], bytes[37]]))
}

#[test]
fn both_aggregators_do_the_same() {
    needs_privileges!("both_aggregators_do_the_same");
    use Reason::{Added, Collided, Concluded, Duplicate, Flushed, Forwarded, Passed, Probed};
    let all = [Added, Collided, Concluded, Duplicate, Flushed, Forwarded, Passed, Probed];
    // A root flushes nothing: a packet sent again may be a part of a rack's sum.
    let root = all.map(|reason| if reason == Flushed { Passed } else { reason });
    play(1, "the only level", &dynamic_job(3, ELEMENTS), &all);
    play(2, "a worker alone", &dynamic_job(1, ELEMENTS), &[Passed, Concluded, Probed]);
    play(3, "a rack", &rack_job(2, ELEMENTS), &all);
    play(4, "a root", &root_job(2, ELEMENTS), &root);
}

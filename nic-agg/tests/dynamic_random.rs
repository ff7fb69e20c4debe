//! The program for dynamic jobs, the host aggregator, and a model of plain arithmetic over the shared decisions: random valid
//! and forged packets of jobs on all levels, truncated or corrupted frames. All three have the same reason for each packet,
//! and forward the same bits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::{collections::BTreeSet, net::Ipv4Addr};

use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use sumac_agg_host::{Answer, HostAggregator, NewJob};
use sumac_loader::Variant;
use sumac_wire::{
    Header, Kind, Reason,
    frame::OVERHEAD,
    header::{NO_SLOT, flag},
    tables::{JobEntry, WorkerEntry, job_flag},
};
use support::{
    Bench, DYNAMIC_SLOTS, REDIRECT, SHARDS,
    dynamic::{CE, ECT, SLOTS, dynamic_job, frame, header, host, rack_job, root_job},
    frames::{answer, tag},
    model::{Model, Sent, To},
    needs_privileges, refusal, result_token, with_entry, worker,
};

/// DSCP and ECN of frames whose sender does not react to marks.
const UNMARKABLE: u8 = ECT & !0b11;
/// The most elements here: two strides of the loops and some.
const ELEMENTS: u16 = 35;

/// Returns true in one of so many cases.
fn once_in(rng: &mut SmallRng, cases: u32) -> bool {
    rng.random_ratio(1, cases)
}

fn one_of<T: Copy>(rng: &mut SmallRng, all: &[T]) -> T {
    all[rng.random_range(0..all.len())]
}

/// Returns jobs of every level, most with two shards and parameter hosts, with and without checksums, and the reasons that
/// packets of each must meet.
fn jobs() -> Vec<(NewJob, Vec<Reason>)> {
    use Reason::{Added, Collided, Concluded, Duplicate, Flushed, Forwarded, Passed, Probed};
    let two_shards = |new: NewJob| with_entry(new, |entry| JobEntry { shards: 2, ..entry });
    let (hosts, flags) = (vec![host(0), host(1)], job_flag::DYNAMIC);
    let unchecked =
        with_entry(dynamic_job(4, ELEMENTS), |entry| JobEntry { slots: SLOTS / 2, flags, ..entry });
    let all = vec![Added, Collided, Concluded, Duplicate, Flushed, Forwarded, Passed, Probed];
    // A root flushes nothing: a packet sent again may be a part of a rack's sum.
    let root = all.iter().copied().filter(|reason| *reason != Flushed).collect();
    vec![
        (NewJob { parents: hosts.clone(), ..two_shards(dynamic_job(3, ELEMENTS)) }, all.clone()),
        (NewJob { job: 6, ..two_shards(rack_job(2, ELEMENTS)) }, all.clone()),
        (NewJob { job: 7, parents: hosts, ..two_shards(root_job(2, ELEMENTS)) }, root),
        (NewJob { job: 8, parents: vec![host(2)], ..unchecked }, all),
        (NewJob { job: 9, ..dynamic_job(1, ELEMENTS) }, vec![Passed, Concluded, Probed]),
    ]
}

/// Returns a host aggregator with the same jobs for each shard.
fn on_hosts(jobs: &[NewJob]) -> Vec<HostAggregator> {
    let of_shard = |shard| {
        let aggregator = HostAggregator::of_shard(shard, SHARDS, 1, ELEMENTS).unwrap();
        let mut aggregator = aggregator.with_dynamic(DYNAMIC_SLOTS).unwrap();
        jobs.iter().for_each(|job| aggregator.install(job).unwrap());
        aggregator
    };
    (0..SHARDS).map(of_shard).collect()
}

/// Returns a valid packet.
fn good(rng: &mut SmallRng, job: &NewJob) -> (Header, WorkerEntry) {
    let rank = rng.random_range(0..job.workers.len());
    let seq = rng.random_range(0..3);
    // Mostly slots of the job's own and chunks of one kind, so that they collide.
    let slot = if once_in(rng, 6) { 0 } else { (u32::from(job.job) * 3 + seq) % (SLOTS / 2) };
    let mut header = header(job, rank, seq, slot);
    header.lane = one_of(rng, &[0, 0, 0, 1, 1, 2]);
    header.elements = if once_in(rng, 25) { one_of(rng, &[1, 15, 16, 33, ELEMENTS]) } else { 17 };
    header.tensor = if once_in(rng, 25) { 8 } else { 7 };
    header.exponent = if once_in(rng, 25) { 3 } else { 0 };
    header.next_exponent = one_of(rng, &[-5, 2, 7]);
    header.received = one_of(rng, &[0, 1, 2, u32::MAX]);
    header.flags |= if (seq == 2) ^ once_in(rng, 25) { flag::MAXIMUM } else { 0 };
    for mark in [flag::OVERFLOW, flag::NOT_FINITE, flag::ECN_ECHO, flag::COLLISION] {
        header.flags |= if once_in(rng, 12) { mark } else { 0 };
    }
    match rng.random_range(0..23) {
        0..12 => {}
        12..15 => header.flags |= flag::RESEND,
        15 => header.flags |= flag::RESEND | flag::RAW_FLOAT,
        16 => (header.flags, header.slot) = (header.flags | flag::RESEND, NO_SLOT),
        17 => header.kind = Kind::Probe as u8,
        18..20 => {
            header.flags |= flag::RESEND | flag::PARTIAL;
            (header.contributors, header.next_seq) = (one_of(rng, &[0, 1, 9]), one_of(rng, &[0, seq, 9]));
        }
        20 => header.flags |= flag::PARTIAL,
        _ => return (from_above(rng, &header), above_of(job, header.lane.into())),
    }
    (header, job.workers[rank])
}

/// Returns a parameter host's packet, or a root's.
fn from_above(rng: &mut SmallRng, request: &Header) -> Header {
    let kind = if once_in(rng, 8) { Kind::Report } else { Kind::Result };
    let flags = one_of(rng, &[0, 0, flag::ECN_ECHO, flag::RAW_FLOAT, flag::COLLISION, flag::LEVEL]);
    let elements = if once_in(rng, 5) { 0 } else { request.elements };
    Header { kind: kind as u8, token: result_token(), flags, elements, ..*request }
}

fn above_of(job: &NewJob, lane: u32) -> WorkerEntry {
    let shard = lane % u32::from(job.entry.shards);
    job.parents[shard as usize % job.parents.len()]
}

/// Changes one field, which makes most packets invalid.
fn spoil(rng: &mut SmallRng, header: &mut Header, from: &mut WorkerEntry) {
    match rng.random_range(0..14) {
        0 => header.token ^= 1 << rng.random_range(0..64),
        1 => header.epoch ^= 1 << rng.random_range(0..16),
        2 => header.bitmap_0 ^= 1 << rng.random_range(0..32),
        3 => header.bitmap_1 ^= 1 << rng.random_range(0..32),
        4 => header.fan_in_0 ^= 1 << rng.random_range(0..8),
        5 => header.fan_in_1 ^= 1 << rng.random_range(0..8),
        6 => header.slot = one_of(rng, &[SLOTS / 2, SLOTS, 40, NO_SLOT - 1, NO_SLOT]),
        7 => header.slot ^= 1 << rng.random_range(0..32),
        8 => header.flags ^= 1 << rng.random_range(0..16),
        9 => header.elements = one_of(rng, &[0, ELEMENTS + 1, 832]),
        10 => header.kind = rng.random_range(0..16),
        11 => header.lane ^= 1 << rng.random_range(0..16),
        12 => header.job = one_of(rng, &[0, 4, 10, 63, 64, 79, u16::MAX]),
        _ => *from = one_of(rng, &[host(0), host(1), worker(0), worker(9), worker(77)]),
    }
}

#[test]
fn random_packets_do_what_the_decisions_say() {
    needs_privileges!("random_packets_do_what_the_decisions_say");
    for variant in [Variant::Plain, Variant::Jumbo] {
        storm(variant, 10_000);
    }
}

fn storm(variant: Variant, packets: usize) {
    let (jobs, needed): (Vec<_>, Vec<_>) = jobs().into_iter().unzip();
    let (bench, mut hosts) = (Bench::of(variant, &jobs), on_hosts(&jobs));
    let active = |job: &NewJob| NewJob { entry: job.active_entry(), ..job.clone() };
    let tables: Vec<NewJob> = jobs.iter().map(active).collect();
    let (mut rng, mut model) = (SmallRng::seed_from_u64(variant as u64), Model::default());
    let mut met = BTreeSet::new();
    for turn in 0..packets {
        let which = rng.random_range(0..jobs.len());
        let job = &jobs[which];
        let (mut header, mut from) = good(&mut rng, job);
        if once_in(&mut rng, 6) {
            spoil(&mut rng, &mut header, &mut from);
        }
        // Large values overflow; the sums of small ones can be compared.
        let shift = if once_in(&mut rng, 6) { 0 } else { 4 };
        let values: Vec<i32> = (0..header.elements).map(|_| rng.random::<i32>() >> shift).collect();
        let dscp_ecn = one_of(&mut rng, &[CE, ECT, ECT, ECT, ECT, ECT, UNMARKABLE, UNMARKABLE]);
        let is_marked = dscp_ecn == CE;
        let mut bytes = frame(job, &from, &header, &values, dscp_ecn);
        let is_bent = once_in(&mut rng, 16) && header.elements > 0;
        if is_bent {
            *bytes.last_mut().unwrap() ^= 1 << rng.random_range(0..8);
        }
        let mut payload = bytes[OVERHEAD..].to_vec();
        let sent = Sent {
            header,
            values: if is_bent { bent(&values, &bytes) } else { values },
            from: from.ip,
            shard: header.lane % job.entry.shards,
            is_marked,
            is_intact: !is_bent || job.entry.flags & job_flag::CHECKSUM == 0,
        };
        let (reason, out) = match () {
            () if Kind::from_number(header.kind).is_none() => (Reason::BadType, None),
            () if header.job != job.job => (Reason::UnknownJob, None),
            () => model.show(&tables[which], &sent),
        };
        let is_tagged = once_in(&mut rng, 5);
        let shown = bench.show(&if is_tagged { tag(bytes) } else { bytes });
        let what = format!("{variant:?} packet {turn} of job {}: {sent:x?}", job.job);
        assert_eq!(shown.reason, reason, "{what}");
        met.insert((which, reason.name()));
        assert_eq!(shown.verdict, if out.is_some() { REDIRECT } else { refusal(reason) }, "{what}");
        // The kernel verifies checksums before a host aggregator's socket.
        let on_host = (reason != Reason::BadChecksum).then(|| {
            let host = &mut hosts[usize::from(sent.shard)];
            let source = Ipv4Addr::from_bits(sent.from);
            match is_marked {
                true => host.on_marked_packet(source, &mut payload),
                false => host.on_packet(source, &mut payload),
            }
        });
        assert_eq!(on_host.map_or(reason, Answer::reason), reason, "{what}: at the host aggregator");
        if let Some((expected, values, to)) = out {
            let got = answer(&shown.out);
            assert_eq!(shown.out[got.frame.payload()..], payload, "{what}: the host aggregator's");
            assert_eq!((got.header, got.values), (expected, values), "{what}");
            assert_eq!(got.frame.dscp_ecn, if is_marked { ECT } else { dscp_ecn }, "{what}");
            match (to, on_host.unwrap()) {
                (To::All, Answer::All(..)) => assert_eq!(got.macs[0], [0; 6], "{what}"),
                (To::One(ip, port), Answer::One(_, to)) => {
                    assert_eq!((got.frame.dst_ip, got.frame.dst_port), (ip, port), "{what}");
                    assert_eq!((to.ip().to_bits(), to.port()), (ip, port), "{what}");
                }
                (_, answer) => panic!("{what}: {answer:?} at the host aggregator"),
            }
        }
        if let Some((meta, values)) = model.slots.get(&(sent.shard, header.slot)) {
            let slot = bench.dynamic_slot(u32::from(sent.shard) * DYNAMIC_SLOTS + header.slot);
            let meta = sumac_wire::dynamic::SlotMeta { stamp: slot.meta.stamp, ..*meta };
            assert_eq!((slot.meta, slot.lock), (meta, 0), "{what}: slot");
            let held = slot.values.iter().zip(values).take(usize::from(meta.elements));
            held.for_each(|(got, value)| assert_eq!((*got ^ 1 << 31) as i32, *value, "{what}: values"));
        }
    }
    println!("{variant:?}: {met:?}");
    for (which, reasons) in needed.iter().enumerate() {
        let missed: Vec<_> = reasons.iter().filter(|reason| !met.contains(&(which, reason.name()))).collect();
        assert!(missed.is_empty(), "job {which}: nothing was {missed:?}: the test tests less than it says");
    }
    let names: BTreeSet<_> = met.iter().map(|(_, name)| name).collect();
    assert!(names.len() > 15, "the storm has too little of everything: {names:?}");
    let slots = (0..2 * DYNAMIC_SLOTS).map(|slot| bench.dynamic_slot(slot).meta.owner);
    let held = hosts.iter().map(HostAggregator::held).sum::<u32>();
    assert_eq!(slots.filter(|owner| *owner != 0).count() as u32, held);
}

/// Returns the values of a frame whose last byte was changed.
fn bent(values: &[i32], bytes: &[u8]) -> Vec<i32> {
    let mut values = values.to_vec();
    let last = bytes.last_chunk::<4>().unwrap();
    *values.last_mut().unwrap() = i32::from_be_bytes(*last);
    values
}

//! The program for dynamic jobs against the shared decisions and plain arithmetic: random valid and forged packets of jobs
//! on all levels, and truncated or corrupted frames.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use sumac_agg_host::NewJob;
use sumac_loader::Variant;
use sumac_wire::{
    Header, Kind,
    header::{NO_SLOT, flag},
    tables::{JobEntry, WorkerEntry, job_flag},
};
use support::{
    Bench, DROP, REDIRECT,
    dynamic::{CE, ECT, SLOTS, dynamic_job, frame, header, host, rack_job, root_job},
    frames::{answer, tag},
    model::{JobTables, Model, Sent, To},
    needs_privileges, with_entry,
};

/// The most elements here: two strides of the loops and some.
const ELEMENTS: u16 = 35;

/// A deterministic sequence of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns true in one of so many cases.
    fn once_in(&mut self, cases: u64) -> bool {
        self.below(cases) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Returns jobs of every level, with two shards and parameter hosts, with and without checksums.
fn jobs() -> [NewJob; 4] {
    let two_shards = |new: NewJob| with_entry(new, |entry| JobEntry { shards: 2, ..entry });
    let (hosts, flags) = (vec![host(0), host(1)], job_flag::DYNAMIC);
    let unchecked =
        with_entry(dynamic_job(4, ELEMENTS), |entry| JobEntry { slots: SLOTS / 2, flags, ..entry });
    [
        NewJob { parents: hosts.clone(), ..two_shards(dynamic_job(3, ELEMENTS)) },
        NewJob { job: 6, ..two_shards(rack_job(2, ELEMENTS)) },
        NewJob { job: 7, parents: hosts, ..two_shards(root_job(2, ELEMENTS)) },
        NewJob { job: 8, parents: vec![host(2)], ..unchecked },
    ]
}

fn tables_of(bench: &Bench, job: &NewJob) -> JobTables {
    JobTables {
        entry: bench.tables.lock().unwrap().job(job.job).unwrap(),
        workers: job.workers.clone(),
        parents: job.parents.clone(),
    }
}

/// Returns a valid packet.
fn good(random: &mut Random, job: &NewJob) -> (Header, WorkerEntry) {
    let rank = random.below(job.workers.len() as u64) as usize;
    let seq = random.below(3) as u32;
    // Mostly slots of the job's own and chunks of one kind, so that they collide.
    let slot = if random.once_in(6) { 0 } else { (u32::from(job.job) * 3 + seq) % (SLOTS / 2) };
    let mut header = header(job, rank, seq, slot);
    header.lane = random.of(&[0, 0, 0, 1, 1, 2]);
    let odd = |random: &mut Random| random.once_in(25);
    header.elements = if odd(random) { random.of(&[1, 15, 16, 33, ELEMENTS]) } else { 17 };
    header.tensor = if odd(random) { 8 } else { 7 };
    header.exponent = if odd(random) { 3 } else { 0 };
    header.next_exponent = random.of(&[-5, 2, 7]);
    header.received = random.of(&[0, 1, 2, u32::MAX]);
    header.flags |= if (seq == 2) ^ odd(random) { flag::MAXIMUM } else { 0 };
    for mark in [flag::OVERFLOW, flag::NOT_FINITE, flag::ECN_ECHO, flag::COLLISION] {
        header.flags |= if random.once_in(12) { mark } else { 0 };
    }
    match random.below(20) {
        0..12 => {}
        12..15 => header.flags |= flag::RESEND,
        15 => header.flags |= flag::RESEND | flag::RAW_FLOAT,
        16 => (header.flags, header.slot) = (header.flags | flag::RESEND, NO_SLOT),
        17 => header.kind = Kind::Probe as u8,
        _ => return (from_above(random, &header), above_of(job, header.lane.into())),
    }
    (header, job.workers[rank])
}

/// Returns a parameter host's packet, or a root's.
fn from_above(random: &mut Random, request: &Header) -> Header {
    let kind = if random.once_in(8) { Kind::Report } else { Kind::Result };
    let flags = random.of(&[0, 0, flag::ECN_ECHO, flag::RAW_FLOAT, flag::COLLISION, flag::LEVEL]);
    let elements = if random.once_in(5) { 0 } else { request.elements };
    Header { kind: kind as u8, flags, elements, ..*request }
}

fn above_of(job: &NewJob, lane: u32) -> WorkerEntry {
    let shard = lane % u32::from(job.entry.shards);
    job.parents[shard as usize % job.parents.len()]
}

/// Changes one field, which makes the packet invalid.
fn spoil(random: &mut Random, header: &mut Header, from: &mut WorkerEntry) {
    match random.below(12) {
        0 => header.token ^= 1 << random.below(64),
        1 => header.epoch ^= 1 << random.below(16),
        2 => header.bitmap_0 ^= 1 << random.below(32),
        3 => header.bitmap_1 ^= 1 << random.below(32),
        4 => header.fan_in_0 ^= 1 << random.below(8),
        5 => header.fan_in_1 ^= 1 << random.below(8),
        6 => header.slot = random.of(&[SLOTS / 2, SLOTS, NO_SLOT - 1, NO_SLOT]),
        7 => header.flags ^= 1 << random.below(16),
        8 => header.elements = random.of(&[0, ELEMENTS + 1, 832]),
        9 => header.kind = 1 + random.below(7) as u8,
        10 => header.lane ^= 1 << random.below(16),
        _ => *from = random.of(&[host(0), host(1), support::worker(0), support::worker(9)]),
    }
}

#[test]
fn random_packets_do_what_the_decisions_say() {
    needs_privileges!("random_packets_do_what_the_decisions_say");
    for variant in [Variant::Plain, Variant::Jumbo] {
        storm(variant, 6000);
    }
}

fn storm(variant: Variant, packets: usize) {
    let jobs = jobs();
    let bench = Bench::of(variant, &jobs);
    let tables: Vec<JobTables> = jobs.iter().map(|job| tables_of(&bench, job)).collect();
    let (mut random, mut model) = (Random(variant as u64), Model::default());
    let mut seen = std::collections::BTreeMap::<&str, u32>::new();
    for turn in 0..packets {
        let which = random.below(jobs.len() as u64) as usize;
        let job = &jobs[which];
        let (mut header, mut from) = good(&mut random, job);
        if random.once_in(6) {
            spoil(&mut random, &mut header, &mut from);
        }
        let extremes = random.once_in(6);
        let mut value = || if extremes { random.next() as i32 } else { random.next() as i32 >> 4 };
        let values: Vec<i32> = (0..header.elements).map(|_| value()).collect();
        let is_marked = random.once_in(8);
        let mut bytes = frame(job, &from, &header, &values, if is_marked { CE } else { ECT });
        let is_bent = random.once_in(16) && header.elements > 0;
        if is_bent {
            *bytes.last_mut().unwrap() ^= 1 << random.below(8);
        }
        let sent = Sent {
            header,
            values: if is_bent { bent(&values, &bytes) } else { values },
            from: from.ip,
            shard: header.lane % job.entry.shards,
            is_marked,
            is_intact: !is_bent || job.entry.flags & job_flag::CHECKSUM == 0,
        };
        let (reason, out) = model.show(&tables[which], &sent);
        let is_tagged = random.once_in(5);
        let shown = bench.show(&if is_tagged { tag(bytes) } else { bytes });
        let what = format!("{variant:?} packet {turn} of job {}: {sent:x?}", job.job);
        assert_eq!(shown.reason, reason, "{what}");
        *seen.entry(reason.name()).or_default() += 1;
        assert_eq!(shown.verdict, if out.is_some() { REDIRECT } else { DROP }, "{what}");
        if let Some((expected, values, to)) = out {
            let got = answer(&shown.out);
            assert_eq!((got.header, got.values), (expected, values), "{what}");
            assert_eq!(got.frame.dscp_ecn & 0xfc, ECT & 0xfc, "{what}");
            match to {
                To::All => assert_eq!(got.macs[0], [0; 6], "{what}"),
                To::One(ip, port) => {
                    assert_eq!((got.frame.dst_ip, got.frame.dst_port), (ip, port), "{what}");
                }
            }
        }
        if let Some((meta, values)) = model.slots.get(&(sent.shard, header.slot)) {
            let slot = bench.dynamic_slot(u32::from(sent.shard) * support::DYNAMIC_SLOTS + header.slot);
            let meta = sumac_wire::dynamic::SlotMeta { stamp: slot.meta.stamp, ..*meta };
            assert_eq!((slot.meta, slot.lock), (meta, 0), "{what}: slot");
            let held = slot.values.iter().zip(values).take(usize::from(meta.elements));
            held.for_each(|(got, value)| assert_eq!((*got ^ 1 << 31) as i32, *value, "{what}: values"));
        }
    }
    println!("{variant:?}: {seen:?}");
    assert!(seen.len() > 15, "the storm has too little of everything: {seen:?}");
}

/// Returns the values of a frame whose last byte was changed.
fn bent(values: &[i32], bytes: &[u8]) -> Vec<i32> {
    let mut values = values.to_vec();
    let last = bytes.last_chunk::<4>().unwrap();
    *values.last_mut().unwrap() = i32::from_be_bytes(*last);
    values
}

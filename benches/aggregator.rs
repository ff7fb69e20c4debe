//! The host aggregator's time per chunk, without sockets: all contributions of its workers, and in dynamic
//! jobs the parameter host's result.
#![allow(clippy::expect_used, reason = "a benchmark that cannot go on")]

use std::{
    hint::black_box,
    net::{Ipv4Addr, SocketAddrV4},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sumac_agg_host::HostAggregator;
use sumac_agg_job::NewJob;
use sumac_wire::{
    Header, Kind, Reason,
    header::flag,
    stream::place,
    tables::{JobEntry, job_flag},
};

const WORKERS: u8 = 4;
const SLOTS: u32 = 256;
const HOST: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

fn worker(rank: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, rank, 2)
}

/// An aggregator with one job, which has as many slots in either mode.
fn aggregator(elements: u16, is_dynamic: bool) -> HostAggregator {
    let aggregator = HostAggregator::new(SLOTS, elements).expect("memory");
    let mut aggregator = aggregator.with_dynamic(SLOTS).expect("memory");
    let socket = |ip| SocketAddrV4::new(ip, 48_700);
    let (flags, parents, lane_slots_log2) = match is_dynamic {
        true => (job_flag::DYNAMIC, vec![socket(HOST)], 0),
        false => (0, Vec::new(), SLOTS.ilog2() as u16),
    };
    let entry = JobEntry {
        token: 7,
        slots: SLOTS,
        elements,
        flags,
        lane_slots_log2,
        shards: 1,
        ..JobEntry::default()
    };
    let job = NewJob::at(1, entry, (0..WORKERS).map(|rank| socket(worker(rank))), parents);
    aggregator.install(&job).expect("a job that fits");
    aggregator
}

fn contribution(rank: u8, seq: u32, elements: u16, is_dynamic: bool) -> Header {
    let place = place(seq, SLOTS.ilog2());
    let is_second = place.version == 1 && !is_dynamic;
    Header {
        kind: Kind::Contribution as u8,
        flags: if is_second { flag::POOL_VERSION } else { 0 },
        job: 1,
        seq,
        received: seq,
        slot: place.slot,
        fan_in_0: WORKERS,
        elements,
        bitmap_0: 1 << rank,
        token: 7,
        ..Header::default()
    }
}

fn chunk(aggregator: &mut HostAggregator, packet: &mut [u8], seq: u32, elements: u16, is_dynamic: bool) {
    let mut last = Reason::Internal;
    for rank in 0..WORKERS {
        let header = contribution(rank, seq, elements, is_dynamic).to_bytes();
        packet[..header.len()].copy_from_slice(&header);
        last = aggregator.on_packet(worker(rank), black_box(packet)).reason();
    }
    if !is_dynamic {
        return assert_eq!(last, Reason::Completed);
    }
    assert_eq!(last, Reason::Forwarded);
    let result = Header { kind: Kind::Result as u8, bitmap_0: 0, ..contribution(0, seq, elements, true) };
    packet[..result.to_bytes().len()].copy_from_slice(&result.to_bytes());
    assert_eq!(aggregator.on_packet(HOST, packet).reason(), Reason::Concluded);
}

fn aggregate(criterion: &mut Criterion) {
    for (mode, is_dynamic) in [("static", false), ("dynamic", true)] {
        let mut group = criterion.benchmark_group(format!("host aggregator, {mode}"));
        for elements in [64u16, 256, 352] {
            let mut aggregator = aggregator(elements, is_dynamic);
            let mut packet = vec![0; sumac_wire::admit::payload_len(elements)];
            let mut seq = 0;
            group.throughput(Throughput::Elements(WORKERS.into()));
            group.bench_function(BenchmarkId::from_parameter(elements), |bencher| {
                bencher.iter(|| {
                    chunk(&mut aggregator, &mut packet, seq, elements, is_dynamic);
                    seq = seq.wrapping_add(1);
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, aggregate);
criterion_main!(benches);

//! The parameter host's time per packet: workers' contributions, aggregators' sums, and the floats of chunks
//! that overflowed.
//!
//! Each turn sums one chunk and takes its result out, so that a chunk's price is its contributions' and one
//! result's.
#![allow(clippy::expect_used, reason = "a benchmark that cannot go on")]

use std::net::{Ipv4Addr, SocketAddrV4};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sumac_parameter::{HostJob, ParameterHost, Worker};
use sumac_wire::{
    Header, Kind, Reason, Time,
    admit::payload_len,
    header::{HEADER_LEN, flag},
};

const JOB: u16 = 1;
const WORKERS: u16 = 4;
const WINDOW: u32 = 256;
const AGGREGATOR: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 48700);

fn worker(rank: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, 1, rank as u8 + 1), 48700)
}

fn host(elements: u16) -> ParameterHost {
    let mut host = ParameterHost::new();
    let place = |rank: u16| Worker { address: worker(rank), rack: 0, bit: rank as u8 };
    let job = HostJob {
        job: JOB,
        epoch: 1,
        token: 7,
        elements,
        window: WINDOW,
        slots: 1024,
        lanes: 2,
        shards: 1,
        checksum: true,
        congestion_control: true,
        workers: (0..WORKERS).map(place).collect(),
        upstream: vec![AGGREGATOR],
    };
    host.install(job).expect("a good job");
    host
}

/// A packet with the values of these workers.
fn packet(elements: u16, bitmap: u32, flags: u16) -> Vec<u8> {
    let header = Header {
        kind: Kind::Contribution as u8,
        flags: flags | flag::LEVEL,
        job: JOB,
        epoch: 1,
        token: 7,
        fan_in_0: WORKERS as u8,
        bitmap_0: bitmap,
        elements,
        ..Header::default()
    };
    let mut packet = header.to_bytes().to_vec();
    let is_float = flags & flag::RAW_FLOAT != 0;
    let word = |at: u16| if is_float { (f32::from(at) + 0.5).to_bits() } else { at.into() };
    packet.extend((0..elements).flat_map(|at| word(at).to_be_bytes()));
    packet
}

/// Takes a chunk's packets in and its result out.
fn turn(host: &mut ParameterHost, packets: &mut [Vec<u8>], seq: u32, out: &mut [u8]) {
    let count = packets.len();
    for (at, packet) in packets.iter_mut().enumerate() {
        packet[8..12].copy_from_slice(&seq.to_be_bytes());
        let reason = host.on_packet(Time(0), AGGREGATOR, 0, packet, false);
        assert_eq!(reason, if at + 1 == count { Reason::Completed } else { Reason::Added });
    }
    let sent = host.poll_transmit(out).expect("the result");
    assert!(sent.len > HEADER_LEN && host.poll_transmit(out).is_none(), "once, to the aggregator");
}

fn parameter(c: &mut Criterion) {
    let mut group = c.benchmark_group("parameter host");
    group.throughput(Throughput::Elements(1));
    let own = |flags| move |elements| (0..WORKERS).map(|rank| packet(elements, 1 << rank, flags)).collect();
    type Make = Box<dyn Fn(u16) -> Vec<Vec<u8>>>;
    let cases: [(&str, Make); 3] = [
        ("the sum of 4", Box::new(|elements| vec![packet(elements, (1 << WORKERS) - 1, 0)])),
        ("4 contributions", Box::new(own(flag::RESEND))),
        ("4 workers' floats", Box::new(own(flag::RESEND | flag::RAW_FLOAT))),
    ];
    for (elements, (name, make)) in [256u16, 352].into_iter().flat_map(|e| cases.iter().map(move |c| (e, c)))
    {
        let (mut host, mut packets) = (host(elements), make(elements));
        let mut out = vec![0; payload_len(elements)];
        let mut seq = 0u32;
        group.bench_function(format!("a chunk of {elements}, {name}"), |b| {
            b.iter(|| {
                turn(&mut host, &mut packets, seq, &mut out);
                seq = seq.wrapping_add(1);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parameter);
criterion_main!(benches);

//! A job's workers and aggregators as its parameter host hears them.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_parameter::{HostJob, ParameterHost, Sending, Worker};
use sumac_wire::{
    Header, Kind, Reason, Time,
    admit::payload_len,
    header::{HEADER_LEN, NO_SLOT, flag},
};

pub const JOB: u16 = 3;
pub const EPOCH: u16 = 7;
pub const TOKEN: u64 = 0xfeed;
pub const WINDOW: u32 = 4;
pub const SLOTS: u32 = 64;
pub const ELEMENTS: u16 = 4;
pub const AGGREGATOR: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 48700);
pub const STRANGER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 9, 9), 48700);

/// A job whose racks have so many workers each; one level where there is one rack.
pub fn job(racks: &[u32]) -> HostJob {
    let places =
        racks.iter().enumerate().flat_map(|(rack, workers)| (0..*workers).map(move |bit| (rack, bit)));
    let worker = |(rack, bit): (usize, u32)| Worker {
        address: SocketAddrV4::new(Ipv4Addr::new(10, 1, rack as u8, bit as u8 + 1), 48800),
        rack: rack as u8,
        bit: bit as u8,
    };
    HostJob {
        job: JOB,
        epoch: EPOCH,
        token: TOKEN,
        elements: ELEMENTS,
        window: WINDOW,
        slots: SLOTS,
        lanes: 4,
        shards: 2,
        checksum: true,
        congestion_control: true,
        workers: places.map(worker).collect(),
        upstream: vec![AGGREGATOR],
    }
}

/// The header of a contribution of lane 1, which is of shard 1: of the worker with this bit in this rack.
pub fn header(racks: &[u32], rack: usize, bit: u32, seq: u32) -> Header {
    let two_levels = racks.len() > 1;
    Header {
        kind: Kind::Contribution as u8,
        job: JOB,
        epoch: EPOCH,
        token: TOKEN,
        seq,
        received: seq,
        slot: seq % SLOTS,
        fan_in_0: racks[rack] as u8,
        fan_in_1: if two_levels { racks.len() as u8 } else { 0 },
        bitmap_0: 1 << bit,
        bitmap_1: if two_levels { 1 << rack } else { 0 },
        elements: ELEMENTS,
        tensor: 77,
        exponent: i8::MIN,
        next_exponent: i8::MIN,
        lane: 1,
        timestamp: seq * 10,
        ..Header::default()
    }
}

/// As an aggregator sends it on.
pub fn passed(header: Header) -> Header {
    Header { flags: header.flags | flag::LEVEL, ..header }
}

/// As a worker sends it that does not believe in aggregators any more.
pub fn direct(header: Header) -> Header {
    Header { flags: header.flags | flag::RESEND, slot: NO_SLOT, ..header }
}

/// A packet.
pub fn packet(header: &Header, values: &[i32]) -> Vec<u8> {
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend(values.iter().flat_map(|value| value.to_be_bytes()));
    assert_eq!(bytes.len(), payload_len(header.elements));
    bytes
}

/// A packet that a parameter host sent, with its destination.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    pub sending: Sending,
    pub header: Header,
    pub values: Vec<i32>,
}

/// Everything that a host has to send.
pub fn sent(host: &mut ParameterHost) -> Vec<Sent> {
    let mut out = [0x55; 4096];
    let mut all = Vec::new();
    while let Some(sending) = host.poll_transmit(&mut out) {
        let bytes = &out[..sending.len];
        let header = Header::read(bytes, 0, bytes.len()).unwrap();
        let (words, rest) = bytes[HEADER_LEN..].as_chunks::<4>();
        assert!(rest.is_empty());
        all.push(Sent {
            sending,
            header,
            values: words.iter().map(|word| i32::from_be_bytes(*word)).collect(),
        });
    }
    assert!(host.is_idle());
    all
}

/// A worker's address at shard 1.
pub fn address(job: &HostJob, rank: usize) -> SocketAddrV4 {
    let address = job.workers[rank].address;
    SocketAddrV4::new(*address.ip(), address.port() + 1)
}

/// The aggregator's at shard 1.
pub fn aggregator() -> SocketAddrV4 {
    SocketAddrV4::new(*AGGREGATOR.ip(), AGGREGATOR.port() + 1)
}

/// Hands a packet of shard 1 to a host.
pub fn give(host: &mut ParameterHost, from: SocketAddrV4, header: &Header, values: &[i32]) -> Reason {
    give_at(host, Time(0), from, header, values)
}

/// The same at a time.
pub fn give_at(
    host: &mut ParameterHost,
    now: Time,
    from: SocketAddrV4,
    header: &Header,
    values: &[i32],
) -> Reason {
    host.on_packet(now, from, 1, &packet(header, values), false)
}

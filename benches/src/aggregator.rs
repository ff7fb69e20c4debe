//! A host aggregator without sockets, and packets of the workers of its job.

use std::{
    hint::black_box,
    net::{Ipv4Addr, SocketAddrV4},
};

use sumac_agg_host::HostAggregator;
use sumac_agg_job::NewJob;
use sumac_job::result_token;
use sumac_wire::{
    Header, Kind, Reason,
    admit::payload_len,
    header::flag,
    stream::place,
    tables::{JobEntry, job_flag},
};

pub const WORKERS: u8 = 4;
const SLOTS: u32 = 256;
const TOKEN: u64 = 7;
const HOST: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

fn worker(rank: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, rank, 2)
}

/// An aggregator with one job, and the place of its next chunk.
pub struct Sums {
    aggregator: HostAggregator,
    packet: Vec<u8>,
    elements: u16,
    is_dynamic: bool,
    seq: u32,
}

impl Sums {
    /// A job with as many slots in either mode.
    pub fn new(elements: u16, is_dynamic: bool) -> Sums {
        let aggregator = HostAggregator::new(SLOTS, elements).expect("memory");
        let mut aggregator = aggregator.with_dynamic(SLOTS).expect("memory");
        let socket = |ip| SocketAddrV4::new(ip, 48_700);
        let (flags, parents, lane_slots_log2) = match is_dynamic {
            true => (job_flag::DYNAMIC, vec![socket(HOST)], 0),
            false => (0, Vec::new(), SLOTS.ilog2() as u16),
        };
        let entry = JobEntry {
            token: TOKEN,
            slots: SLOTS,
            elements,
            flags,
            lane_slots_log2,
            shards: 1,
            ..JobEntry::default()
        };
        let job = NewJob::at(1, entry, (0..WORKERS).map(|rank| socket(worker(rank))), parents);
        aggregator.install(&job).expect("a job that fits");
        Sums { aggregator, packet: vec![0; payload_len(elements)], elements, is_dynamic, seq: 0 }
    }

    /// Sums one chunk: all contributions of its workers, and in dynamic jobs the parameter host's result.
    pub fn chunk(&mut self) {
        let mut last = Reason::Internal;
        for rank in 0..WORKERS {
            last = self.receive(worker(rank), self.contribution(rank));
        }
        if self.is_dynamic {
            assert_eq!(last, Reason::Forwarded);
            let token = result_token(TOKEN);
            let result = Header { kind: Kind::Result as u8, bitmap_0: 0, token, ..self.contribution(0) };
            assert_eq!(self.receive(HOST, result), Reason::Concluded);
        } else {
            assert_eq!(last, Reason::Completed);
        }
        self.seq = self.seq.wrapping_add(1);
    }

    fn contribution(&self, rank: u8) -> Header {
        let place = place(self.seq, SLOTS.ilog2());
        let is_second = place.version == 1 && !self.is_dynamic;
        Header {
            kind: Kind::Contribution as u8,
            flags: if is_second { flag::POOL_VERSION } else { 0 },
            job: 1,
            seq: self.seq,
            received: self.seq,
            slot: place.slot,
            fan_in_0: WORKERS,
            elements: self.elements,
            bitmap_0: 1 << rank,
            token: TOKEN,
            ..Header::default()
        }
    }

    fn receive(&mut self, from: Ipv4Addr, header: Header) -> Reason {
        let header = header.to_bytes();
        self.packet[..header.len()].copy_from_slice(&header);
        self.counted_packet(from)
    }

    #[inline(never)]
    fn counted_packet(&mut self, from: Ipv4Addr) -> Reason {
        self.aggregator.on_packet(from, black_box(&mut self.packet)).reason()
    }
}

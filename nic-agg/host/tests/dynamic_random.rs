//! Random packets of workers through one level of aggregators or two, with too few slots: whatever reaches the parameter
//! host is the sum of exactly those whom it names, and in the end all of them reach it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use std::net::SocketAddrV4;

use common::{ELEMENTS, JOB, elements, packet, read, shared, worker, worker_ip};
use proptest::prelude::*;
use shared::{HOST, contribution, result, values};
use sumac_agg_host::{Answer, HostAggregator};
use sumac_agg_job::NewJob;
use sumac_wire::{
    Header,
    dynamic::host::{Bits, MAX_RACKS, holds},
    header::flag,
    tables::{JobEntry, job_flag},
};

const SLOTS: u32 = 3;
const CHUNKS: u32 = 12;
const MAX_AGE_MICROS: u32 = 100;
const ROOT: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 77, 99, 1), 48_500);

fn rack_ip(rack: u16) -> SocketAddrV4 {
    SocketAddrV4::new([10, 77, 98, rack as u8].into(), 48_500)
}

/// Racks below a root, or the only aggregator by itself, and what its parameter host got.
struct Tree {
    /// Workers of each rack; the last one of two levels stands for a worker beside the racks.
    racks: Vec<u16>,
    below: Vec<HostAggregator>,
    root: Option<HostAggregator>,
    now: u32,
    /// Of each chunk, whose values the parameter host has.
    seen: Vec<Bits>,
}

impl Tree {
    fn new(racks: &[u16]) -> Tree {
        let with = |flags, rack: usize, workers: Vec<SocketAddrV4>, parents: Vec<SocketAddrV4>| {
            let mut aggregator = HostAggregator::new(1, ELEMENTS).unwrap().with_dynamic(SLOTS).unwrap();
            aggregator.set_slot_timeout(MAX_AGE_MICROS);
            let (rack, racks) = (rack as u16, racks.len() as u16);
            let entry = shared::entry();
            let entry = JobEntry { flags: entry.flags | flags, slots: SLOTS, rack, racks, ..entry };
            aggregator.install(&NewJob::at(JOB, entry, workers, parents)).unwrap();
            aggregator
        };
        let workers = |rack: usize| (0..racks[rack]).map(|bit| worker(place(rack, bit))).collect();
        let seen = vec![[0; MAX_RACKS]; CHUNKS as usize];
        let racks = racks.to_vec();
        if racks.len() == 1 {
            let below = vec![with(0, 0, workers(0), vec![HOST])];
            return Tree { racks, below, root: None, now: 0, seen };
        }
        let beside = racks.len() - 1;
        let below: Vec<_> =
            (0..beside).map(|rack| with(job_flag::CHILD, rack, workers(rack), vec![ROOT])).collect();
        let of_root = (0..beside as u16).map(rack_ip).chain([worker(place(beside, 0))]).collect();
        Tree { root: Some(with(job_flag::ROOT, 0, of_root, vec![HOST])), racks, below, now: 0, seen }
    }

    fn all(&self) -> Bits {
        let mut all = [0; MAX_RACKS];
        all.iter_mut().zip(&self.racks).for_each(|(bits, workers)| *bits = (1 << workers) - 1);
        all
    }

    fn header(&self, rack: usize, bit: u16, seq: u32) -> Header {
        let header = Header { slot: seq % SLOTS, ..contribution(self.racks[rack], bit, seq) };
        match &self.root {
            None => header,
            Some(_) => {
                let level = if rack < self.below.len() { 0 } else { flag::LEVEL };
                let (flags, fan_in_1) = (header.flags | level, self.racks.len() as u8);
                Header { flags, fan_in_1, bitmap_1: 1 << rack, ..header }
            }
        }
    }

    /// A worker sends; returns what the parameter host got.
    fn send(&mut self, rack: usize, bit: u16, seq: u32, flags: u16) {
        let header = self.header(rack, bit, seq);
        let header = Header { flags: header.flags | flags, ..header };
        let mut packet = packet(&header, &values(place(rack, bit), seq, ELEMENTS));
        let mut source = worker_ip(place(rack, bit));
        let up = self.below.get_mut(rack).map(|below| {
            below.set_now(self.now);
            below.on_packet(source, &mut packet)
        });
        match up {
            Some(Answer::None(_)) => return,
            Some(Answer::One(_, HOST)) => return self.arrives(&packet),
            Some(Answer::One(_, to)) => {
                assert_eq!(to, ROOT);
                source = *rack_ip(rack as u16).ip();
            }
            Some(Answer::All(..)) => panic!("nobody sent a result"),
            None => {}
        }
        let root = self.root.as_mut().unwrap();
        root.set_now(self.now);
        match root.on_packet(source, &mut packet) {
            Answer::None(_) => {}
            Answer::One(_, to) => {
                assert_eq!(to, HOST);
                self.arrives(&packet);
            }
            Answer::All(..) => panic!("nobody sent a result"),
        }
    }

    /// The parameter host's use of bits, and the check of its input.
    fn arrives(&mut self, packet: &[u8]) {
        let header = read(packet);
        let bits = holds(&header, &self.all()).unwrap();
        let mut sum = vec![0; usize::from(ELEMENTS)];
        for (rack, bits) in bits.iter().enumerate() {
            for bit in (0..32).filter(|bit| bits >> bit & 1 == 1) {
                let values = values(place(rack, bit), header.seq, ELEMENTS);
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        assert_eq!(elements(packet), sum, "{header:?}");
        let seen = &mut self.seen[header.seq as usize];
        if seen.iter().zip(&bits).all(|(seen, bits)| seen & bits == 0) {
            seen.iter_mut().zip(&bits).for_each(|(seen, bits)| *seen |= bits);
        }
    }

    /// The parameter host's result, or a late copy of one, at all aggregators that it reaches.
    fn conclude(&mut self, seq: u32, reached: u8) {
        let header = result(&self.header(0, 0, seq));
        let mut packet = packet(&header, &vec![0; usize::from(ELEMENTS)]);
        let above = if self.root.is_some() { *ROOT.ip() } else { *HOST.ip() };
        if let Some(root) = &mut self.root {
            root.on_packet(*HOST.ip(), &mut packet);
        }
        for (rack, below) in self.below.iter_mut().enumerate().filter(|(rack, _)| reached >> rack & 1 == 1) {
            let answer = below.on_packet(above, &mut packet);
            assert!(matches!(answer, Answer::All(..)), "at rack {rack}: {answer:?}");
        }
    }

    fn workers(&self) -> Vec<(usize, u16)> {
        let of = |(rack, workers): (usize, &u16)| (0..*workers).map(move |bit| (rack, bit));
        self.racks.iter().enumerate().flat_map(of).collect()
    }
}

/// The number that addresses and values of a worker are made of.
fn place(rack: usize, bit: u16) -> u16 {
    rack as u16 * 8 + bit
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn what_arrives_is_the_sum_of_whom_it_names(
        racks in prop::sample::select(vec![vec![4], vec![2, 3, 1], vec![1, 2, 2, 1]]),
        steps in prop::collection::vec((any::<u32>(), any::<u8>()), 100..400),
    ) {
        let mut tree = Tree::new(&racks);
        let workers = tree.workers();
        for (choice, kind) in steps {
            let (rack, bit) = workers[choice as usize % workers.len()];
            let seq = (choice >> 8) % CHUNKS;
            match kind {
                0..160 => tree.send(rack, bit, seq, 0),
                160..220 => tree.send(rack, bit, seq, flag::RESEND),
                220..235 => tree.conclude(seq, (choice >> 16) as u8),
                _ => tree.now = tree.now.wrapping_add(choice >> 16 & 0x7f),
            }
        }
        // Whoever is missing sends again, and by itself, until the last is there.
        for seq in 0..CHUNKS {
            for _ in 0..2 {
                for (rack, bit) in &workers {
                    if tree.seen[seq as usize][*rack] >> bit & 1 == 0 {
                        tree.send(*rack, *bit, seq, flag::RESEND);
                    }
                }
            }
            prop_assert_eq!(tree.seen[seq as usize], tree.all(), "chunk {}", seq);
        }
    }
}

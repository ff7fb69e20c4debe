//! Lanes and levels: reassigned chunks, maxima, exponent rounds, refusals, and two racks below a root.
//!
//! ```text
//! worker 0 ---+                worker 2 ---+
//!             +--- rack 0 ---+             +--- rack 1 ---+
//! worker 1 ---+              |  worker 3 ---+              |
//!                            +---------- root ------------+
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use std::net::{Ipv4Addr, SocketAddrV4};

use common::*;
use proptest::prelude::*;
use sumac_agg_host::{Answer, HostAggregator};
use sumac_agg_job::NewJob;
use sumac_wire::{
    Header, Kind, Reason,
    header::{HEADER_LEN, exponent, flag},
    tables::{JobEntry, job_flag},
};

const RACKS: u16 = 2;
const WORKERS: u16 = 2;
const CHUNKS: u32 = 24;

fn one_level(flags: u16) -> HostAggregator {
    let mut aggregator = HostAggregator::new(16, 360).unwrap();
    aggregator.install(&job(JobEntry { flags, contributors: 2, ..entry() }, 2)).unwrap();
    aggregator
}

#[test]
fn drawn_chunks_go_to_the_slot_that_is_done_first() {
    let mut aggregator = one_level(job_flag::STEALING);
    let mut done = |seq| {
        aggregator.on_packet(worker_ip(0), &mut contribution(2, 0, seq));
        let mut last = contribution(2, 1, seq);
        assert_eq!(aggregator.on_packet(worker_ip(1), &mut last), Answer::All(Reason::Completed, JOB));
        let mut again = contribution(2, 0, seq);
        aggregator.on_packet(worker_ip(0), &mut again);
        assert_eq!(read(&again).next_seq, read(&last).next_seq, "a repeated result repeats it");
        read(&last).next_seq
    };
    assert_eq!((done(2), done(0), done(6)), (8, 9, 10));
}

#[test]
fn maxima_are_signed() {
    let mut aggregator = one_level(0);
    let send = |aggregator: &mut HostAggregator, rank: u16, values: [i32; 3]| {
        let header = header(2, rank, 0, 3);
        let mut packet = packet(&Header { flags: header.flags | flag::MAXIMUM, ..header }, &values);
        aggregator.on_packet(worker_ip(rank), &mut packet);
        packet
    };
    send(&mut aggregator, 0, [-5, i32::MIN, 7]);
    assert_eq!(elements(&send(&mut aggregator, 1, [-9, i32::MAX, 7])), [-5, i32::MAX, 7]);
}

#[test]
fn an_exponent_round_comes_before_the_values() {
    let mut aggregator = one_level(0);
    let mut ask = |rank: u16, own: i8| {
        let header = Header { flags: flag::EXPONENT, next_exponent: own, ..header(2, rank, 0, 0) };
        let mut packet = packet(&header, &[]);
        (aggregator.on_packet(worker_ip(rank), &mut packet), read(&packet))
    };
    assert_eq!(ask(0, -3).0, Answer::None(Reason::Added));
    let (answer, agreed) = ask(1, 5);
    assert_eq!(answer, Answer::All(Reason::Completed, JOB));
    assert_eq!((agreed.kind, agreed.flags, agreed.exponent), (Kind::Result as u8, flag::EXPONENT, 5));
    assert_eq!(ask(0, -3).1.exponent, 5, "asked again");
    let send = |aggregator: &mut HostAggregator, rank: u16, next_exponent| {
        let mut packet =
            packet(&Header { next_exponent, ..header(2, rank, 0, ELEMENTS) }, &values(rank, 0, ELEMENTS));
        aggregator.on_packet(worker_ip(rank), &mut packet);
        packet
    };
    send(&mut aggregator, 0, exponent::UNKNOWN);
    let result = send(&mut aggregator, 1, 2);
    assert_eq!(read(&result).next_exponent, exponent::UNKNOWN);
    assert_eq!(elements(&result), reference(2, 0, ELEMENTS));
}

fn question(world: u16, rank: u16, seq: u32) -> Vec<u8> {
    let header = header(world, rank, seq, 0);
    packet(&Header { flags: header.flags | flag::QUERY, ..header }, &[])
}

#[test]
fn questions_are_answered_and_change_nothing() {
    let mut aggregator = one_level(0);
    let ask = |aggregator: &mut HostAggregator, rank, seq| {
        let mut packet = question(2, rank, seq);
        (aggregator.on_packet(worker_ip(rank), &mut packet), packet)
    };
    let wanted = |rank| Answer::One(Reason::Wanted, worker(rank));
    assert_eq!(ask(&mut aggregator, 0, 0).0, wanted(0), "nobody has come");
    aggregator.on_packet(worker_ip(0), &mut contribution(2, 0, 0));
    assert_eq!(ask(&mut aggregator, 0, 0).0, Answer::None(Reason::Duplicate));
    let (answer, packet) = ask(&mut aggregator, 1, 0);
    assert_eq!(answer, wanted(1));
    let asked = header(2, 1, 0, 0);
    let token = result_token();
    let expected = Header { kind: Kind::Result as u8, token, flags: flag::QUERY, contributors: 2, ..asked };
    assert_eq!((read(&packet), packet.len()), (expected, HEADER_LEN));
    assert_eq!(ask(&mut aggregator, 1, SLOTS).0, Answer::None(Reason::OutOfTurn));
    let last = aggregator.on_packet(worker_ip(1), &mut contribution(2, 1, 0));
    assert_eq!(last, Answer::All(Reason::Completed, JOB), "as if nobody had asked");
    assert_eq!(
        ask(&mut aggregator, 0, 0).0,
        wanted(0),
        "its result was lost: the contribution is answered with it"
    );
    assert_eq!(ask(&mut aggregator, 0, SLOTS).0, wanted(0), "the next");
}

#[test]
fn a_question_goes_up_and_its_answer_comes_back_to_its_worker() {
    let mut tree = Tree::new(0, 1, 0);
    let last = WORKERS - 1;
    for rank in 0..WORKERS {
        let mut packet = contribution(WORKERS, rank, 0);
        // The part that the last one completes is lost.
        tree.racks[0].on_packet(worker_ip(rank), &mut packet);
    }
    let told = tree.send(last, question(WORKERS, last, 0));
    let told: Vec<_> = told.iter().map(|(rank, packet)| (*rank, read(packet).flags)).collect();
    assert_eq!(told, [(last, flag::QUERY)], "this worker alone");
    assert!(tree.send(last, contribution(WORKERS, last, 0)).is_empty(), "the root has it now");
    assert!(tree.send(last, question(WORKERS, last, 0)).is_empty(), "and says nothing until all are there");
}

const ROOT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 100, 1), 48700);

fn uplink(rack: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, 100 + rack as u8, 2), 48700)
}

/// Two racks and their root, over a network that loses.
struct Tree {
    root: HostAggregator,
    racks: Vec<HostAggregator>,
    choices: u64,
    loss: u64,
}

impl Tree {
    fn new(flags: u16, seed: u64, loss: u64) -> Tree {
        let entry = |flags| JobEntry { flags, contributors: RACKS * WORKERS, racks: RACKS, ..entry() };
        let mut root = HostAggregator::new(16, 360).unwrap();
        let job = NewJob::at(JOB, entry(flags | job_flag::ROOT), (0..RACKS).map(uplink), []);
        root.install(&job).unwrap();
        let racks = (0..RACKS).map(|rack| {
            let mut aggregator = HostAggregator::new(16, 360).unwrap();
            let entry = JobEntry { rack, ..entry(flags | job_flag::CHILD) };
            let workers = (0..WORKERS).map(|own| worker(rack * WORKERS + own));
            aggregator.install(&NewJob::at(JOB, entry, workers, [ROOT])).unwrap();
            aggregator
        });
        Tree { root, racks: racks.collect(), choices: seed | 1, loss }
    }

    fn is_lost(&mut self) -> bool {
        self.choices =
            self.choices.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.choices >> 33) % 100 < self.loss
    }

    /// A worker sends; returns what reaches which workers of that.
    fn send(&mut self, rank: u16, mut packet: Vec<u8>) -> Vec<(u16, Vec<u8>)> {
        let rack = rank / WORKERS;
        if self.is_lost() {
            return Vec::new();
        }
        match self.racks[usize::from(rack)].on_packet(worker_ip(rank), &mut packet) {
            Answer::None(_) => Vec::new(),
            Answer::One(Reason::Forwarded, to) => {
                assert_eq!(to, ROOT);
                self.send_up(rack, packet)
            }
            Answer::One(_, to) => {
                assert_eq!(to, worker(rank));
                self.reach([rank], &packet)
            }
            Answer::All(reason, _) => panic!("a rack alone cannot end a chunk: {reason:?}"),
        }
    }

    fn send_up(&mut self, rack: u16, mut packet: Vec<u8>) -> Vec<(u16, Vec<u8>)> {
        if self.is_lost() {
            return Vec::new();
        }
        let to = match self.root.on_packet(*uplink(rack).ip(), &mut packet) {
            Answer::None(_) => return Vec::new(),
            Answer::One(_, to) => vec![(0..RACKS).find(|rack| uplink(*rack) == to).unwrap()],
            Answer::All(Reason::Completed, _) => (0..RACKS).collect(),
            Answer::All(reason, _) => panic!("{reason:?}"),
        };
        to.into_iter().flat_map(|rack| self.send_down(rack, packet.clone())).collect()
    }

    fn send_down(&mut self, rack: u16, mut packet: Vec<u8>) -> Vec<(u16, Vec<u8>)> {
        if self.is_lost() {
            return Vec::new();
        }
        match self.racks[usize::from(rack)].on_packet(*ROOT.ip(), &mut packet) {
            Answer::All(Reason::Concluded, _) => self.reach(rack * WORKERS..(rack + 1) * WORKERS, &packet),
            Answer::One(Reason::Wanted, to) => {
                let rank = (0..RACKS * WORKERS).find(|rank| worker(*rank) == to).unwrap();
                self.reach([rank], &packet)
            }
            Answer::None(_) => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    fn reach(&mut self, ranks: impl IntoIterator<Item = u16>, packet: &[u8]) -> Vec<(u16, Vec<u8>)> {
        ranks.into_iter().filter(|_| !self.is_lost()).map(|rank| (rank, packet.to_vec())).collect()
    }
}

/// A worker that follows the chunk that each result names.
struct Follower {
    rank: u16,
    /// By slot: which version is next, and the chunks of both.
    slots: Vec<(usize, [u32; 2])>,
    got: Vec<Option<Vec<i32>>>,
}

impl Follower {
    fn new(rank: u16) -> Follower {
        let slots = (0..SLOTS).map(|slot| (0, [slot, SLOTS + slot])).collect();
        Follower { rank, slots, got: vec![None; CHUNKS as usize] }
    }

    fn contribution(&self, slot: u32) -> Option<Vec<u8>> {
        let (version, seqs) = self.slots[slot as usize];
        let seq = seqs[version];
        let header = Header {
            slot,
            flags: if version == 1 { flag::POOL_VERSION } else { 0 },
            ..header(WORKERS, self.rank % WORKERS, seq, ELEMENTS)
        };
        (seq < CHUNKS).then(|| packet(&header, &values(self.rank, seq, ELEMENTS)))
    }

    fn take(&mut self, packet: &[u8]) {
        let result = read(packet);
        assert_eq!(
            (result.flags & flag::LEVEL, result.bitmap_1, result.contributors),
            (0, 0, RACKS * WORKERS)
        );
        let (version, seqs) = &mut self.slots[result.slot as usize];
        if usize::from(result.pool_version()) != *version || seqs[*version] != result.seq {
            return;
        }
        seqs[*version] = result.next_seq;
        *version ^= 1;
        self.got[result.seq as usize] = Some(elements(packet));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Two levels give, bit by bit, what one would, whatever is lost on either.
    #[test]
    fn two_levels_are_bit_identical_to_one(seed in any::<u64>(), loss in 0u64..40, stealing in any::<bool>()) {
        let mut tree = Tree::new(if stealing { job_flag::STEALING } else { 0 }, seed, loss);
        let mut workers: Vec<Follower> = (0..RACKS * WORKERS).map(Follower::new).collect();
        for _ in 0..4000 {
            for rank in 0..RACKS * WORKERS {
                for slot in 0..SLOTS {
                    let Some(packet) = workers[usize::from(rank)].contribution(slot) else { continue };
                    for (receiver, result) in tree.send(rank, packet) {
                        workers[usize::from(receiver)].take(&result);
                    }
                }
            }
            if workers.iter().all(|worker| worker.got.iter().all(Option::is_some)) {
                break;
            }
        }
        for worker in &workers {
            for (seq, sum) in (0..).zip(&worker.got) {
                prop_assert_eq!(sum.as_ref(), Some(&reference(RACKS * WORKERS, seq, ELEMENTS)), "chunk {}", seq);
            }
        }
    }
}

#[test]
fn a_parents_refusal_reaches_all_workers_of_the_rack() {
    let mut tree = Tree::new(0, 1, 0);
    let chunk = |rank: u16, tensor| {
        let header = Header { tensor, ..header(WORKERS, rank % WORKERS, 0, ELEMENTS) };
        packet(&header, &values(rank, 0, ELEMENTS))
    };
    for rank in 0..WORKERS {
        tree.send(rank, chunk(rank, 9));
    }
    tree.send(WORKERS, chunk(WORKERS, 77));
    // The root sends the part back to its rack: that is where it must go on from.
    let mut part = chunk(WORKERS + 1, 77);
    let up = tree.racks[1].on_packet(worker_ip(WORKERS + 1), &mut part);
    assert_eq!(up, Answer::One(Reason::Forwarded, ROOT));
    assert_eq!(tree.root.on_packet(*uplink(1).ip(), &mut part), Answer::One(Reason::Mismatch, uplink(1)));
    assert_eq!(
        tree.racks[1].on_packet(*ROOT.ip(), &mut part),
        Answer::All(Reason::Mismatch, JOB),
        "all workers hear it"
    );
    let refusal = read(&part);
    assert_eq!((refusal.flags & flag::MISMATCH, refusal.tensor), (flag::MISMATCH, 9), "what the others have");
    assert_eq!(refusal.flags & flag::LEVEL, 0);
}

//! A tree of three levels, packet by packet: the same sums as from one aggregator, whatever is lost and sent
//! again (SwitchML section 7).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddrV4},
};

use common::{ELEMENTS, JOB, TOKEN, elements, entry, header, packet, read, reference, result_token, values};
use rand::{Rng, SeedableRng, rngs::StdRng};
use sumac_agg_host::{Answer, HostAggregator};
use sumac_agg_job::{JobError, NewJob};
use sumac_wire::{
    Header, Reason,
    header::flag,
    tables::{JobEntry, job_flag},
};

/// By address: the root, the two aggregators in the middle, and their two racks each, with two workers.
const ROOT: u8 = 100;
const MIDDLES: [u8; 2] = [110, 120];
const RACKS: [u8; 4] = [111, 112, 121, 122];
const WORKERS: u16 = 8;

fn at(host: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 88, 0, host), 48700)
}

/// `ranks`: the job's ranks below each sender, as bits.
fn aggregator(below: [u8; 2], ranks: [u32; 2], parent: Option<u8>, rack: u16, flags: u16) -> HostAggregator {
    let entry = JobEntry { contributors: WORKERS, rack, racks: 2, flags, ..entry() };
    let mut new = NewJob::at(JOB, entry, below.into_iter().map(at), parent.map(at));
    new.workers.iter_mut().zip(ranks).for_each(|(worker, ranks)| worker.ranks = ranks);
    let mut aggregator = HostAggregator::new(16, 360).unwrap();
    aggregator.install(&new).unwrap();
    aggregator
}

/// The tree, with what is under way and how much of it is lost.
struct Tree {
    aggregators: HashMap<u8, HostAggregator>,
    /// Destination, source, packet.
    sent: Vec<(u8, u8, Vec<u8>)>,
    results: Vec<Vec<Vec<u8>>>,
    random: StdRng,
    loss: f64,
}

impl Tree {
    fn new(seed: u64, loss: f64) -> Tree {
        let mut aggregators =
            HashMap::from([(ROOT, aggregator(MIDDLES, [0xf, 0xf0], None, 0, job_flag::ROOT))]);
        for (number, middle) in MIDDLES.into_iter().enumerate() {
            let racks = [middle + 1, middle + 2];
            let flags = job_flag::CHILD | job_flag::ROOT;
            let ranks = [0b11, 0b1100].map(|ranks| ranks << (4 * number));
            aggregators.insert(middle, aggregator(racks, ranks, Some(ROOT), number as u16, flags));
        }
        for (number, rack) in RACKS.into_iter().enumerate() {
            let workers = [2 * number as u8, 2 * number as u8 + 1];
            let bit = (number % 2) as u16;
            let (ranks, parent) = ([1, 2].map(|rank| rank << (2 * number)), MIDDLES[number / 2]);
            aggregators.insert(rack, aggregator(workers, ranks, Some(parent), bit, job_flag::CHILD));
        }
        let random = StdRng::seed_from_u64(seed);
        Tree { aggregators, sent: Vec::new(), results: vec![Vec::new(); 8], random, loss }
    }

    /// Adds a packet of a worker to its rack.
    fn send(&mut self, rank: u16, change: impl FnOnce(&mut Header)) {
        let mut header = header(2, rank % 2, 0, ELEMENTS);
        change(&mut header);
        let values = if header.elements == 0 { Vec::new() } else { values(rank, 0, ELEMENTS) };
        self.sent.push((RACKS[usize::from(rank / 2)], rank as u8, packet(&header, &values)));
    }

    /// Delivers what is under way, in random order.
    fn deliver(&mut self) {
        while !self.sent.is_empty() {
            let next = self.random.random_range(0..self.sent.len());
            let (to, from, mut packet) = self.sent.swap_remove(next);
            if self.random.random_bool(self.loss) {
                continue;
            }
            let Some(aggregator) = self.aggregators.get_mut(&to) else {
                self.results[usize::from(to)].push(packet);
                continue;
            };
            let to_whom = match aggregator.on_packet(*at(from).ip(), &mut packet) {
                Answer::None(_) => Vec::new(),
                Answer::One(_, whom, _) => vec![whom],
                Answer::All(_, job) => aggregator.workers(job).to_vec(),
            };
            self.sent.extend(to_whom.iter().map(|whom| (whom.ip().octets()[3], to, packet.clone())));
        }
    }

    fn count(&self, host: u8, reason: Reason) -> u64 {
        self.aggregators[&host].counter(reason)
    }
}

#[test]
fn three_levels_have_the_sum_of_one() {
    let mut tree = Tree::new(0, 0.0);
    for rank in 0..WORKERS {
        tree.send(rank, |h| h.next_exponent = rank as i8);
        tree.deliver();
    }
    for results in &tree.results {
        let [result] = &results[..] else { panic!("{} results", results.len()) };
        let header = read(result);
        assert_eq!((header.token, header.contributors), (result_token(), WORKERS));
        assert_eq!((header.bitmap_0, header.bitmap_1, header.next_exponent), (0b11, 0, 7));
        assert_eq!((header.flags, header.fan_in_0), (0, 2));
        assert_eq!(elements(result), reference(WORKERS, 0, ELEMENTS));
    }
    assert_eq!([ROOT, 110, 111].map(|host| tree.count(host, Reason::Concluded)), [0, 1, 1]);
    // One that lacks the result has it from its rack, and a rack from the middle.
    tree.send(3, |_| ());
    tree.deliver();
    assert_eq!(elements(&tree.results[3][1]), reference(WORKERS, 0, ELEMENTS));
    assert_eq!(tree.count(112, Reason::Replied), 1);
}

/// Two workers of different branches are late: their racks complete without them, all others are waited for,
/// and nobody is left out twice where all have stated a limit of one chunk.
#[test]
fn a_rack_leaves_out_its_own_worker_and_all_learn_whom() {
    let mut tree = Tree::new(0, 0.0);
    for rank in 0..WORKERS {
        tree.send(rank, |h| (h.contributors, h.next_seq) = (if rank == 0 { u16::MAX } else { 1 }, 4));
    }
    tree.deliver();
    let at = |seq: u32| move |h: &mut Header| (h.seq, h.slot) = (seq, seq);
    let flush = |seq: u32| {
        move |h: &mut Header| {
            (h.seq, h.slot, h.flags, h.contributors) = (seq, seq, h.flags | flag::PARTIAL, u16::MAX);
        }
    };
    let mut results = 1;
    for (seq, late, completes) in [(1, [2, 7], true), (2, [2, 6], false), (3, [3, 5], true)] {
        for rank in (0..WORKERS).filter(|rank| !late.contains(rank)) {
            tree.send(rank, at(seq));
        }
        tree.deliver();
        tree.send(late[0] ^ 1, flush(seq));
        tree.deliver();
        assert!(tree.results.iter().all(|got| got.len() == results), "{seq}: another rack is waited for");
        tree.send(late[1] ^ 1, flush(seq));
        tree.deliver();
        results += usize::from(completes);
        assert!(tree.results.iter().all(|got| got.len() == results), "{seq}");
        if !completes {
            continue;
        }
        let left_out = late.iter().fold(0, |bits, rank| bits | 1 << rank);
        let mut sums = vec![0_i32; ELEMENTS.into()];
        for rank in (0..WORKERS).filter(|rank| !late.contains(rank)) {
            let own = values(rank, 0, ELEMENTS);
            sums.iter_mut().zip(own).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
        }
        // A late one gets the same as the others did.
        late.iter().for_each(|rank| tree.send(*rank, at(seq)));
        tree.deliver();
        for (rank, got) in tree.results.iter_mut().enumerate() {
            assert_eq!(got.len(), results + usize::from(late.contains(&(rank as u16))), "{seq}, {rank}");
            got[results - 1..].iter().for_each(|result| {
                let header = read(result);
                assert_eq!((header.seq, header.flags, header.contributors), (seq, flag::PARTIAL, 6));
                assert_eq!((header.bitmap_0, header.bitmap_1), (0xff & !left_out, 0), "{seq}, {rank}");
                assert_eq!(elements(result), sums, "{seq}, {rank}");
            });
            got.truncate(results);
        }
    }
}

#[test]
fn what_is_lost_is_sent_again() {
    for seed in 0..40 {
        let mut tree = Tree::new(seed, 0.3);
        for round in 0.. {
            assert!(round < 200, "seed {seed}: it does not end");
            let lacking: Vec<_> =
                (0..WORKERS).filter(|rank| tree.results[usize::from(*rank)].is_empty()).collect();
            if lacking.is_empty() {
                break;
            }
            for rank in lacking {
                tree.send(rank, |_| ());
            }
            tree.deliver();
        }
        for (rank, result) in
            tree.results.iter().enumerate().flat_map(|(rank, all)| all.iter().map(move |it| (rank, it)))
        {
            assert_eq!(elements(result), reference(WORKERS, 0, ELEMENTS), "seed {seed}, rank {rank}");
        }
    }
}

#[test]
fn rounds_and_questions_take_the_same_ways() {
    let mut tree = Tree::new(1, 0.0);
    for rank in 0..WORKERS {
        let exponent = if rank == 5 { 11 } else { -3 };
        tree.send(rank, |h| (h.elements, h.flags, h.next_exponent) = (0, flag::EXPONENT, exponent));
    }
    tree.deliver();
    for results in &mut tree.results {
        let header = read(&results.pop().unwrap());
        assert_eq!((header.flags, header.exponent), (flag::EXPONENT, 11));
    }

    // The part of the middle is lost: the root has nothing of the chunk.
    let mut tree = Tree::new(1, 0.0);
    for rank in 0..4 {
        tree.send(rank, |_| ());
    }
    tree.deliver();
    let blank = aggregator(MIDDLES, [0; 2], None, 0, job_flag::ROOT);
    tree.aggregators.insert(ROOT, blank);
    tree.send(3, |h| (h.elements, h.flags) = (0, flag::QUERY));
    tree.deliver();
    let asked = read(&tree.results[3][0]);
    assert_eq!((asked.flags, asked.bitmap_0), (flag::QUERY, 0b10));
    // The middle does not know whose question it was: the second worker of its other rack is asked too.
    let heard: Vec<_> = tree.results.iter().map(Vec::len).collect();
    assert_eq!(heard, [0, 1, 0, 1, 0, 0, 0, 0]);
    for rank in [3, 4, 5, 6, 7] {
        tree.send(rank, |_| ());
    }
    tree.deliver();
    assert_eq!(elements(tree.results[0].last().unwrap()), reference(WORKERS, 0, ELEMENTS));

    // Another operation's chunk is refused by name, for all of the middle's workers.
    let mut tree = Tree::new(1, 0.0);
    for rank in 0..WORKERS {
        tree.send(rank, |h| h.tensor = if rank < 4 { 1 } else { 2 });
        tree.deliver();
    }
    let refused: Vec<_> = tree.results.iter().map(|all| all.first().map(|it| read(it).tensor)).collect();
    assert_eq!(refused, [[None; 4], [Some(1); 4]].concat());
}

#[test]
fn a_dynamic_job_has_no_middle() {
    let flags = job_flag::CHILD | job_flag::ROOT | job_flag::DYNAMIC;
    let entry = JobEntry { slots: 8, contributors: WORKERS, racks: 2, flags, token: TOKEN, ..entry() };
    let new = NewJob::at(JOB, entry, MIDDLES.map(at), [at(ROOT)]);
    let aggregator = HostAggregator::new(16, 360).unwrap().with_dynamic(16).unwrap();
    assert!(matches!(aggregator.check(&new), Err(JobError::Middle)));
}

//! Two levels of aggregators (SwitchML section 7): each program runs on the frames that the other sent.
//!
//! ```text
//!   w0 w1 \           / w0 w1 w2
//!          rack 0 - root - rack 1
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use sumac_agg_job::NewJob;
use sumac_wire::{
    Header, Kind, Reason,
    header::flag,
    tables::{JobEntry, job_flag},
};
use support::{
    AGGREGATOR, AGGREGATOR_MAC, Bench, DROP, REDIRECT, Shown,
    frames::{answer, frame_of, header, sum},
    job_of, needs_privileges, result_token,
    tree::{ROOT, ROOT_MAC, hop, uplink},
    with_entry,
};

const ELEMENTS: u16 = 37;
/// Workers of the racks.
const RACKS: [u8; 2] = [2, 3];
const CONTRIBUTORS: u16 = 5;

fn rack_job(rack: usize, stealing: bool) -> NewJob {
    let parents = vec![hop((ROOT, ROOT_MAC), uplink(rack), 77)];
    let job = with_entry(job_of(RACKS[rack], ELEMENTS), |entry| JobEntry {
        rack: rack as u16,
        racks: 2,
        ..of_level(entry, job_flag::CHILD, stealing)
    });
    NewJob { parents, ..job }
}

fn root_job(stealing: bool) -> NewJob {
    let worker = |rack| hop(uplink(rack), (ROOT, ROOT_MAC), 200 + rack as u32);
    let job = with_entry(job_of(2, ELEMENTS), |entry| of_level(entry, job_flag::ROOT, stealing));
    NewJob { workers: (0..2).map(worker).collect(), ..job }
}

fn of_level(entry: JobEntry, level: u16, stealing: bool) -> JobEntry {
    let stealing = if stealing { job_flag::STEALING } else { 0 };
    JobEntry { flags: entry.flags | level | stealing, contributors: CONTRIBUTORS, ..entry }
}

/// Two racks and their root.
struct Tree {
    racks: [(NewJob, Bench); 2],
    root: Bench,
}

impl Tree {
    fn new(stealing: bool) -> Tree {
        let rack = |rack| {
            let job = rack_job(rack, stealing);
            let bench = Bench::new(std::slice::from_ref(&job));
            (job, bench)
        };
        Tree { racks: [rack(0), rack(1)], root: Bench::new(&[root_job(stealing)]) }
    }

    /// Returns a worker's contribution; ranks count within the rack, values over all racks.
    fn frame(&self, rack: usize, rank: usize, change: impl FnOnce(&mut Header)) -> Vec<u8> {
        let (job, _) = &self.racks[rack];
        let mut header = header(job, rank, 3, ELEMENTS);
        change(&mut header);
        frame_of(job, rank, &header)
    }

    fn show(&self, rack: usize, rank: usize, change: impl FnOnce(&mut Header)) -> Shown {
        self.racks[rack].1.show(&self.frame(rack, rank, change))
    }

    /// Runs a chunk up to the root's result; returns the last frame that each rack sent up, and the result.
    fn up(&self, change: impl Fn(&mut Header) + Copy) -> ([Vec<u8>; 2], Shown) {
        let part = |rack: usize| {
            for rank in 1..usize::from(RACKS[rack]) {
                assert_eq!(self.show(rack, rank, change).reason, Reason::Added);
            }
            let last = self.show(rack, 0, change);
            assert_eq!((last.verdict, last.reason), (REDIRECT, Reason::Forwarded), "rack {rack}");
            last.out
        };
        let parts = [part(0), part(1)];
        assert_eq!(self.root.show(&parts[0]).reason, Reason::Added);
        let result = self.root.show(&parts[1]);
        assert_eq!((result.verdict, result.reason), (REDIRECT, Reason::Completed));
        (parts, result)
    }
}

/// Returns the sum of the ranks of both racks.
fn total(seq: u32) -> Vec<i32> {
    let sums = RACKS.map(|world| sum(0..usize::from(world), seq, ELEMENTS.into()));
    sums[0].iter().zip(&sums[1]).map(|(a, b)| a + b).collect()
}

#[test]
fn a_part_goes_up_and_the_result_comes_down() {
    needs_privileges!("a_part_goes_up_and_the_result_comes_down");
    let tree = Tree::new(true);
    let flags = flag::OVERFLOW;
    let (parts, result) = tree.up(|h| (h.flags, h.next_exponent) = (h.flags | flags, -7));
    for (rack, part) in parts.iter().enumerate() {
        let part = answer(part);
        let (ip, mac) = uplink(rack);
        assert_eq!(part.macs, [ROOT_MAC, mac], "rack {rack}");
        assert_eq!((part.frame.src_ip, part.frame.dst_ip), (ip.to_bits(), ROOT.to_bits()));
        let expected = (Kind::Contribution as u8, flag::LEVEL | flags, 1 << rack, 2);
        let header = part.header;
        assert_eq!((header.kind, header.flags, header.bitmap_1, header.fan_in_1), expected, "rack {rack}");
        assert_eq!((header.bitmap_0, header.next_exponent), ((1 << RACKS[rack]) - 1, -7));
        assert_eq!(part.values, sum(0..usize::from(RACKS[rack]), 3, ELEMENTS.into()));
    }
    let at_root = answer(&result.out).header;
    assert_eq!((at_root.flags, at_root.bitmap_1, at_root.next_seq), (flag::LEVEL | flags, 0b11, 16));
    for (rack, (job, bench)) in tree.racks.iter().enumerate() {
        let down = bench.show(&result.out);
        assert_eq!((down.verdict, down.reason), (REDIRECT, Reason::Concluded), "rack {rack}");
        let down = answer(&down.out);
        let header = down.header;
        assert_eq!((header.kind, header.flags, header.bitmap_1), (Kind::Result as u8, flags, 0));
        assert_eq!((header.contributors, header.next_seq, header.next_exponent), (CONTRIBUTORS, 16, -7));
        assert_eq!((header.bitmap_0, header.fan_in_0), ((1 << RACKS[rack]) - 1, RACKS[rack]));
        assert_eq!(down.values, total(3));
        assert_eq!(down.frame.src_ip, AGGREGATOR.to_bits(), "from the address that workers know");
        // A worker that lost it sends again.
        let again = tree.show(rack, 0, |_| ());
        assert_eq!(again.reason, Reason::Replied);
        let again = answer(&again.out);
        assert_eq!((again.values, again.header.next_seq), (total(3), 16));
        assert_eq!(again.macs, [job.workers[0].mac, AGGREGATOR_MAC]);
    }
}

#[test]
fn losses_between_the_levels_are_made_good() {
    needs_privileges!("losses_between_the_levels_are_made_good");
    let tree = Tree::new(false);
    let (parts, result) = tree.up(|_| ());
    // The root's result for rack 0 was lost: a worker sends again, the part goes up again, the root replies
    // to the rack.
    let asked = tree.show(0, 1, |_| ());
    assert_eq!((asked.verdict, asked.reason), (REDIRECT, Reason::Forwarded));
    assert_eq!(answer(&asked.out).values, answer(&parts[0]).values);
    let reply = tree.root.show(&asked.out);
    assert_eq!((reply.verdict, reply.reason), (REDIRECT, Reason::Replied));
    assert_eq!(answer(&reply.out).values, total(3));
    assert_eq!(answer(&reply.out).frame.dst_ip, uplink(0).0.to_bits());
    assert_eq!(tree.racks[0].1.show(&reply.out).reason, Reason::Concluded);
    // The first one arrives after all, and once more.
    let before = tree.racks[0].1.pool();
    assert_eq!(tree.racks[0].1.show(&result.out).reason, Reason::Duplicate);
    assert!(tree.racks[0].1.pool() == before);
}

#[test]
fn a_question_goes_up_and_its_answer_comes_back_to_its_worker() {
    needs_privileges!("a_question_goes_up_and_its_answer_comes_back_to_its_worker");
    let tree = Tree::new(true);
    let (job, rack) = &tree.racks[0];
    let ask = |h: &mut Header| (h.elements, h.flags) = (0, h.flags | flag::QUERY);
    assert_eq!(tree.show(0, 1, |_| ()).reason, Reason::Added);
    assert_eq!(tree.show(0, 1, ask).reason, Reason::Duplicate);
    assert_eq!(tree.show(0, 0, ask).reason, Reason::Wanted, "the rack knows by itself");
    assert_eq!(tree.show(0, 0, |_| ()).reason, Reason::Forwarded, "and this part is lost");
    let before = rack.pool();
    let up = tree.show(0, 1, ask);
    assert_eq!((up.verdict, up.reason), (REDIRECT, Reason::Forwarded));
    let asked = answer(&up.out);
    assert_eq!(asked.header.flags, flag::QUERY | flag::LEVEL);
    assert_eq!((asked.header.bitmap_0, asked.header.bitmap_1, asked.header.fan_in_1), (0b10, 0b01, 2));
    assert_eq!(asked.frame.dst_ip, ROOT.to_bits());
    let wanted = tree.root.show(&up.out);
    assert_eq!((wanted.verdict, wanted.reason), (REDIRECT, Reason::Wanted));
    let down = rack.show(&wanted.out);
    assert_eq!((down.verdict, down.reason), (REDIRECT, Reason::Wanted));
    let got = answer(&down.out);
    assert_eq!((got.header.kind, got.header.flags), (Kind::Result as u8, flag::QUERY));
    assert_eq!((got.header.bitmap_0, got.header.bitmap_1), (0b10, 0));
    assert_eq!(got.frame.dst_ip, job.workers[1].ip);
    assert_eq!(got.macs, [job.workers[1].mac, job.workers[1].aggregator_mac]);
    assert!(rack.pool() == before, "a question changed a slot");
    // Its packet carries the part.
    let part = tree.show(0, 1, |_| ());
    assert_eq!(part.reason, Reason::Forwarded);
    assert_eq!(tree.root.show(&part.out).reason, Reason::Added);
    assert_eq!(tree.root.show(&up.out).reason, Reason::Duplicate, "it is there now");
}

#[test]
fn a_root_refuses_another_operation_for_all_workers() {
    needs_privileges!("a_root_refuses_another_operation_for_all_workers");
    let tree = Tree::new(true);
    for (rack, workers) in RACKS.into_iter().enumerate() {
        for rank in 1..usize::from(workers) {
            tree.show(rack, rank, |h| h.tensor = rack as u32);
        }
    }
    let parts = [tree.show(0, 0, |h| h.tensor = 0).out, tree.show(1, 0, |h| h.tensor = 1).out];
    assert_eq!(tree.root.show(&parts[0]).reason, Reason::Added);
    let refused = tree.root.show(&parts[1]);
    assert_eq!((refused.verdict, refused.reason), (REDIRECT, Reason::Mismatch));
    let down = tree.racks[1].1.show(&refused.out);
    assert_eq!((down.verdict, down.reason), (REDIRECT, Reason::Mismatch));
    let header = answer(&down.out).header;
    assert_eq!((header.kind, header.flags, header.tensor), (Kind::Result as u8, flag::MISMATCH, 0));
}

#[test]
fn strangers_do_not_speak_for_the_parent() {
    needs_privileges!("strangers_do_not_speak_for_the_parent");
    let tree = Tree::new(true);
    let (_, result) = tree.up(|_| ());
    // The root addresses the frame to the rack whose part came last; the egress program, each copy.
    let (job, bench) = &tree.racks[1];
    type Change = fn(&mut Vec<u8>);
    let table: [(&str, Change, Reason); 6] = [
        ("another address", |b| b[29] ^= 1, Reason::WrongSource),
        ("no mark of the level: as a worker's", |b| b[45] &= !(flag::LEVEL as u8), Reason::BadToken),
        ("a token", |b| b[90] ^= 1, Reason::BadToken),
        ("an epoch", |b| b[49] ^= 1, Reason::WrongEpoch),
        ("a slot of nobody", |b| b[56] = 9, Reason::WrongSlot),
        ("a damaged payload", |b| *b.last_mut().unwrap() ^= 1, Reason::BadChecksum),
    ];
    for (what, change, reason) in table {
        let mut bad = result.out.clone();
        change(&mut bad);
        let before = bench.pool();
        let shown = bench.show(&bad);
        assert_eq!((shown.verdict, shown.reason), (DROP, reason), "{what}");
        assert!(bench.pool() == before, "{what}: a slot changed");
    }
    // A worker of the rack with a parent's packet, and a rack at a rack.
    let played = tree.frame(1, 0, |h| {
        (h.kind, h.token, h.flags) = (Kind::Result as u8, result_token(), h.flags | flag::LEVEL);
    });
    assert_eq!(bench.show(&played).reason, Reason::WrongSource);
    let up = bench.show(&tree.frame(1, 1, |_| ()));
    assert_eq!(up.reason, Reason::Forwarded);
    assert_eq!(bench.show(&up.out).reason, Reason::BadToken, "its own part");
    assert_eq!(tree.root.show(&frame_of(job, 0, &header(job, 0, 3, ELEMENTS))).reason, Reason::WrongWorker);
}

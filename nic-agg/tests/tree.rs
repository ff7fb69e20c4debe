//! Three levels of aggregators (SwitchML section 7): each program runs on the frames that the others sent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::net::Ipv4Addr;

use sumac_agg_job::NewJob;
use sumac_wire::{
    Header, Kind, Reason,
    header::flag,
    tables::{JobEntry, job_flag},
};
use support::{
    Bench, REDIRECT, Shown,
    frames::{answer, frame_of, header, sum},
    job_of, needs_privileges, result_token,
    tree::{ROOT, ROOT_MAC, hop, uplink},
    with_entry,
};

const ELEMENTS: u16 = 37;

/// Three levels: racks of 2 and of 3 workers below one middle, a rack of 1 below another.
///
/// ```text
///   rack 0 \
///            middle 0 \
///   rack 1 /            root
///   rack 2 - middle 1 /
/// ```
struct Tall {
    racks: Vec<(NewJob, Bench)>,
    middles: Vec<Bench>,
    root: Bench,
}

/// Workers of the racks, the number of racks below their middle, and that.
const TALL: [(u8, u16, usize); 3] = [(2, 2, 0), (3, 2, 0), (1, 1, 1)];

fn middle_address(middle: usize) -> (Ipv4Addr, [u8; 6]) {
    (Ipv4Addr::new(10, 99, 1, 1 + middle as u8), [2, 9, 9, 0, 2, middle as u8])
}

impl Tall {
    fn new() -> Tall {
        let level = |entry: JobEntry, flags: u16, rack: usize, racks: u16| JobEntry {
            rack: rack as u16,
            racks,
            flags: entry.flags | flags,
            contributors: 6,
            ..entry
        };
        let rack = |rack: usize| {
            let (world, racks, middle) = TALL[rack];
            let job = with_entry(job_of(world, ELEMENTS), |entry| {
                level(entry, job_flag::CHILD, rack % usize::from(racks), racks)
            });
            let parents = vec![hop(middle_address(middle), uplink(rack), 77)];
            let job = NewJob { parents, ..job };
            let bench = Bench::new(std::slice::from_ref(&job));
            (job, bench)
        };
        let middle = |middle: usize| {
            let below = (0..3).filter(|rack| TALL[*rack].2 == middle);
            let workers: Vec<_> =
                below.map(|rack| hop(uplink(rack), middle_address(middle), 200 + rack as u32)).collect();
            let job = with_entry(job_of(1, ELEMENTS), |entry| {
                level(entry, job_flag::CHILD | job_flag::ROOT, middle, 2)
            });
            let parents = vec![hop((ROOT, ROOT_MAC), middle_address(middle), 78)];
            Bench::new(&[NewJob { workers, parents, ..job }])
        };
        let workers =
            (0..2).map(|middle| hop(middle_address(middle), (ROOT, ROOT_MAC), 300 + middle as u32)).collect();
        let root = with_entry(job_of(2, ELEMENTS), |entry| level(entry, job_flag::ROOT, 0, 0));
        let root = Bench::new(&[NewJob { workers, ..root }]);
        Tall { racks: (0..3).map(rack).collect(), middles: (0..2).map(middle).collect(), root }
    }

    fn show(&self, rack: usize, rank: usize, change: impl FnOnce(&mut Header)) -> Shown {
        let (job, bench) = &self.racks[rack];
        let mut header = header(job, rank, 3, ELEMENTS);
        change(&mut header);
        bench.show(&frame_of(job, rank, &header))
    }

    /// The last frame of a rack for its middle.
    fn part(&self, rack: usize, change: impl Fn(&mut Header) + Copy) -> Vec<u8> {
        let last = (0..usize::from(TALL[rack].0)).map(|rank| self.show(rack, rank, change)).last().unwrap();
        assert_eq!((last.verdict, last.reason), (REDIRECT, Reason::Forwarded), "rack {rack}");
        last.out
    }

    /// Runs a chunk up to the root's result; returns the last frame of each middle, and the result.
    fn up(&self, change: impl Fn(&mut Header) + Copy) -> ([Vec<u8>; 2], Shown) {
        let [zero, one, two] = [0, 1, 2].map(|rack| self.part(rack, change));
        assert_eq!(self.middles[0].show(&zero).reason, Reason::Added);
        let first = self.middles[0].show(&one);
        assert_eq!((first.verdict, first.reason), (REDIRECT, Reason::Forwarded));
        let second = self.middles[1].show(&two);
        assert_eq!((second.verdict, second.reason), (REDIRECT, Reason::Forwarded));
        assert_eq!(self.root.show(&first.out).reason, Reason::Added);
        let result = self.root.show(&second.out);
        assert_eq!((result.verdict, result.reason), (REDIRECT, Reason::Completed));
        ([first.out, second.out], result)
    }

    /// Has a frame of the root go down past the middles to all racks; returns what these send.
    fn down(&self, result: &[u8], reason: Reason) -> Vec<Vec<u8>> {
        let frames = self.middles.iter().map(|middle| {
            let down = middle.show(result);
            assert_eq!((down.verdict, down.reason), (REDIRECT, reason));
            down.out
        });
        let frames: Vec<_> = frames.collect();
        assert_eq!(self.middles[0].show(result).reason, Reason::Duplicate);
        // The egress program makes a copy for each rack of a middle.
        TALL.iter()
            .zip(&self.racks)
            .map(|((.., middle), (_, bench))| {
                let shown = bench.show(&frames[*middle]);
                assert_eq!((shown.verdict, shown.reason), (REDIRECT, reason));
                shown.out
            })
            .collect()
    }
}

#[test]
fn three_levels_have_the_sum_of_one() {
    needs_privileges!("three_levels_have_the_sum_of_one");
    let tree = Tall::new();
    let total: Vec<i32> = (0..usize::from(ELEMENTS))
        .map(|i| TALL.iter().map(|(world, ..)| sum(0..usize::from(*world), 3, ELEMENTS.into())[i]).sum())
        .collect();
    let (parts, result) = tree.up(|h| h.next_exponent = -7);
    for (middle, part) in parts.iter().enumerate() {
        let part = answer(part);
        assert_eq!(part.macs, [ROOT_MAC, middle_address(middle).1]);
        assert_eq!(part.frame.src_ip, middle_address(middle).0.to_bits());
        let header = part.header;
        assert_eq!((header.kind, header.flags), (Kind::Contribution as u8, flag::LEVEL));
        assert_eq!((header.bitmap_1, header.fan_in_1, header.next_exponent), (1 << middle, 2, -7));
    }
    let top = answer(&result.out).header;
    assert_eq!((top.bitmap_1, top.fan_in_1, top.contributors), (0b11, 2, 6));
    for (rack, down) in tree.down(&result.out, Reason::Concluded).iter().enumerate() {
        let down = answer(down);
        assert_eq!((down.header.kind, down.header.flags), (Kind::Result as u8, 0), "rack {rack}");
        assert_eq!((down.header.bitmap_1, down.header.fan_in_0), (0, TALL[rack].0));
        assert_eq!((down.header.contributors, down.header.next_exponent), (6, -7));
        assert_eq!(down.values, total, "rack {rack}");
    }
    // The middle has the result: a part that comes again gets it, in the name of all racks there.
    let before = tree.middles[0].pool();
    let part = {
        let (job, _) = &tree.racks[1];
        let bench = Bench::new(std::slice::from_ref(job));
        let last =
            (0..3).map(|rank| bench.show(&frame_of(job, rank, &header(job, rank, 3, ELEMENTS)))).last();
        last.unwrap().out
    };
    let again = tree.middles[0].show(&part);
    assert_eq!((again.verdict, again.reason), (REDIRECT, Reason::Replied));
    let again = answer(&again.out);
    assert_eq!((again.header.flags, again.header.bitmap_1, again.header.fan_in_1), (flag::LEVEL, 0b11, 2));
    assert_eq!((again.values, again.frame.dst_ip), (total, uplink(1).0.to_bits()));
    assert!(tree.middles[0].pool() == before, "a part was added twice");
}

#[test]
fn three_levels_agree_on_an_exponent() {
    needs_privileges!("three_levels_agree_on_an_exponent");
    let tree = Tall::new();
    let round = |h: &mut Header| {
        (h.elements, h.flags) = (0, h.flags | flag::EXPONENT);
        h.next_exponent = if h.fan_in_0 == 3 && h.bitmap_0 == 2 { 9 } else { 4 };
    };
    let (parts, result) = tree.up(round);
    let exponents = parts.each_ref().map(|part| answer(part).header.next_exponent);
    assert_eq!(exponents, [9, 4]);
    for down in tree.down(&result.out, Reason::Concluded) {
        let header = answer(&down).header;
        assert_eq!((header.flags, header.exponent), (flag::EXPONENT, 9));
    }
}

#[test]
fn a_question_over_three_levels_is_answered_to_all_racks() {
    needs_privileges!("a_question_over_three_levels_is_answered_to_all_racks");
    let tree = Tall::new();
    // Both parts have come to the middle, whose own is lost.
    for rack in [0, 1] {
        tree.middles[0].show(&tree.part(rack, |_| ()));
    }
    let ask = |h: &mut Header| (h.elements, h.flags) = (0, h.flags | flag::QUERY);
    let asked = tree.show(1, 2, ask);
    assert_eq!(asked.reason, Reason::Forwarded);
    let up = tree.middles[0].show(&asked.out);
    assert_eq!((up.verdict, up.reason), (REDIRECT, Reason::Forwarded));
    let header = answer(&up.out).header;
    assert_eq!((header.flags, header.bitmap_0), (flag::LEVEL | flag::QUERY, 0b100));
    assert_eq!((header.bitmap_1, header.fan_in_1), (0b01, 2));
    let wanted = tree.root.show(&up.out);
    assert_eq!(wanted.reason, Reason::Wanted);
    let down = tree.middles[0].show(&wanted.out);
    assert_eq!((down.verdict, down.reason), (REDIRECT, Reason::Wanted));
    let header = answer(&down.out).header;
    assert_eq!((header.flags, header.bitmap_0, header.bitmap_1), (flag::LEVEL | flag::QUERY, 0b100, 0b11));
    // The rack of the worker hands it on; the other one has no such worker.
    let to_worker = tree.racks[1].1.show(&down.out);
    assert_eq!(to_worker.reason, Reason::Wanted);
    assert_eq!(answer(&to_worker.out).frame.dst_ip, tree.racks[1].0.workers[2].ip);
    assert_eq!(tree.racks[0].1.show(&down.out).reason, Reason::WrongWorker);
    // Its contribution takes the parts of both levels up.
    let again = tree.show(1, 2, |_| ());
    assert_eq!(again.reason, Reason::Forwarded);
    let part = tree.middles[0].show(&again.out);
    assert_eq!(part.reason, Reason::Forwarded);
    assert_eq!(tree.root.show(&part.out).reason, Reason::Added);
}

#[test]
fn another_operation_is_refused_over_three_levels() {
    needs_privileges!("another_operation_is_refused_over_three_levels");
    let tree = Tall::new();
    for (rack, (.., middle)) in TALL.into_iter().enumerate() {
        let part = tree.part(rack, |h| h.tensor = u32::from(rack == 2));
        let up = tree.middles[middle].show(&part);
        match rack {
            0 => assert_eq!(up.reason, Reason::Added),
            1 => assert_eq!(tree.root.show(&up.out).reason, Reason::Added),
            _ => {
                let refused = tree.root.show(&up.out);
                assert_eq!(refused.reason, Reason::Mismatch);
                let down = tree.middles[1].show(&refused.out);
                assert_eq!((down.verdict, down.reason), (REDIRECT, Reason::Mismatch));
                let last = tree.racks[2].1.show(&down.out);
                assert_eq!((last.verdict, last.reason), (REDIRECT, Reason::Mismatch));
                let header = answer(&last.out).header;
                assert_eq!((header.flags, header.tensor), (flag::MISMATCH, 0));
            }
        }
    }
    // A rack does not speak for the parent of its middle, nor that for the rack.
    let (job, _) = &tree.racks[0];
    let played = frame_of(
        job,
        0,
        &Header {
            kind: Kind::Result as u8,
            token: result_token(),
            flags: flag::LEVEL,
            ..header(job, 0, 3, ELEMENTS)
        },
    );
    assert_eq!(tree.middles[0].show(&played).reason, Reason::WrongSource);
}

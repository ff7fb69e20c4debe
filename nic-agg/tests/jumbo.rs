//! Frames of several buffers: elements beyond the first page are summed, refused and sent like those in it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use sumac_agg::AddJobError;
use sumac_agg_job::NewJob;
use sumac_loader::Variant;
use sumac_wire::{Kind, MAX_ELEMENTS, Reason, header::flag};
use support::{
    Bench, DROP, PASS, REDIRECT,
    frames::{answer, contribution, frame_of, header, sum, tag, value},
    job_of, needs_privileges,
};

/// Lengths around the first page's end and the strides of the loops, and the largest.
const LENGTHS: [u16; 18] = [
    1,
    8,
    352,
    824,
    825,
    831,
    832,
    833,
    834,
    839,
    840,
    841,
    847,
    1500,
    2215,
    2216,
    2223,
    MAX_ELEMENTS as u16,
];

/// All workers are behind one interface: long results cannot be copied to several.
fn job(world: u8) -> NewJob {
    let mut job = job_of(world, MAX_ELEMENTS as u16);
    job.workers.iter_mut().for_each(|worker| worker.ifindex = 7);
    job
}

#[test]
fn long_results_are_not_promised_to_several_ports() {
    needs_privileges!("long_results_are_not_promised_to_several_ports");
    let bench = Bench::of(Variant::Jumbo, &[]);
    let mut tables = bench.tables.lock().unwrap();
    let refused = sumac_agg::job::add(&mut tables, &job_of(2, 833)).unwrap_err();
    assert!(matches!(refused, AddJobError::Copies { elements: 833 }), "{refused}");
    sumac_agg::job::add(&mut tables, &job_of(2, 832)).unwrap();
}

#[test]
fn every_length_is_summed_to_its_last_element() {
    needs_privileges!("every_length_is_summed_to_its_last_element");
    for tagged in [false, true] {
        let job = job(3);
        let bench = Bench::of(Variant::Jumbo, std::slice::from_ref(&job));
        let show = |rank, seq, elements| {
            let frame = contribution(&job, rank, seq, elements);
            bench.show(&if tagged { tag(frame) } else { frame })
        };
        for (seq, elements) in (0..).zip(LENGTHS) {
            assert_eq!(show(0, seq, elements).reason, Reason::Added, "{elements} elements");
            assert_eq!(show(2, seq, elements).reason, Reason::Added, "{elements} elements");
            let expected = sum(0..3, seq, elements.into());
            for (rank, reason) in [(1, Reason::Completed), (0, Reason::Replied)] {
                let shown = show(rank, seq, elements);
                assert_eq!((shown.verdict, shown.reason), (REDIRECT, reason), "{elements} elements");
                assert!(answer(&shown.out).values == expected, "{elements} elements: another sum");
            }
        }
    }
}

#[test]
fn the_larger_values_are_kept() {
    needs_privileges!("the_larger_values_are_kept");
    let job = job(3);
    let bench = Bench::of(Variant::Jumbo, std::slice::from_ref(&job));
    let mut last = Vec::new();
    for rank in 0..3 {
        let mut header = header(&job, rank, 0, 1501);
        header.flags |= flag::MAXIMUM;
        last = bench.show(&frame_of(&job, rank, &header)).out;
    }
    let expected: Vec<_> = (0..1501).map(|i| (0..3).map(|rank| value(rank, 0, i)).max().unwrap()).collect();
    assert!(answer(&last).values == expected);
}

#[test]
fn probes_come_back_whole() {
    needs_privileges!("probes_come_back_whole");
    let job = job(1);
    let bench = Bench::of(Variant::Jumbo, std::slice::from_ref(&job));
    let mut probe = header(&job, 0, 0, MAX_ELEMENTS as u16);
    probe.kind = Kind::Probe as u8;
    let shown = bench.show(&frame_of(&job, 0, &probe));
    assert_eq!((shown.verdict, shown.reason), (REDIRECT, Reason::Probed));
    assert_eq!(answer(&shown.out).values, sum(0..1, 0, MAX_ELEMENTS));
}

#[test]
fn damage_anywhere_is_refused_and_taken_back() {
    needs_privileges!("damage_anywhere_is_refused_and_taken_back");
    let job = job(2);
    let bench = Bench::of(Variant::Jumbo, std::slice::from_ref(&job));
    let tail = |bench: &Bench| bench.tables.lock().unwrap().tails.get(16).unwrap().values;
    let good = contribution(&job, 1, 0, MAX_ELEMENTS as u16);
    for situation in ["stored", "added"] {
        let (pool, tail_before) = (bench.pool(), tail(&bench));
        for at in [98, 98 + 3327, 98 + 3328, 3600, 7000, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 4;
            let shown = bench.show(&bad);
            assert_eq!((shown.verdict, shown.reason), (DROP, Reason::BadChecksum), "{situation}, byte {at}");
        }
        for cut in [97, 98, 1000, 98 + 3328, 98 + 3332, 5000, good.len() - 1] {
            let shown = bench.show(&good[..cut]);
            assert_eq!((shown.verdict, shown.reason), (PASS, Reason::Truncated), "{situation}, cut at {cut}");
        }
        assert!(bench.pool() == pool && tail(&bench) == tail_before, "{situation}: a slot changed");
        bench.show(&contribution(&job, 0, 0, MAX_ELEMENTS as u16));
    }
    assert_eq!(answer(&bench.show(&good).out).values, sum(0..2, 0, MAX_ELEMENTS));
}

#[test]
fn verification_stays_below_the_kernels_limit() {
    needs_privileges!("verification_stays_below_the_kernels_limit");
    let bench = Bench::of(Variant::Jumbo, &[support::dynamic::dynamic_job(2, 4)]);
    for (name, program) in bench.ebpf.programs().filter(|(_, program)| program.fd().is_ok()) {
        let steps = program.info().unwrap().verified_instruction_count();
        println!("{name}: {steps:?} steps");
        assert!(steps.is_none_or(|steps| steps < 600_000), "{name}: {steps:?} steps");
    }
}

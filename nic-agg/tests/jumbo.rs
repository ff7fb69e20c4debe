//! Frames of several buffers: elements beyond the first page are summed, refused and sent like those in it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use sumac_agg::AddJobError;
use sumac_agg_job::NewJob;
use sumac_loader::Variant;
use sumac_wire::{
    Kind, MAX_ELEMENTS, Reason,
    header::{HEADER_LEN, flag},
};
use support::{
    Bench, DROP, PASS, REDIRECT, can_split, dynamic,
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

/// Lengths of first buffers: headers alone, within an element, and those of drivers with small buffers.
const FIRST_BUFFERS: [usize; 6] = [HEADERS, HEADERS + 2, HEADERS + 64, 1536, 2048, 3072];
const HEADERS: usize = 14 + 20 + 8 + HEADER_LEN;

#[test]
fn frames_are_summed_wherever_a_driver_splits_them() {
    needs_privileges!("frames_are_summed_wherever_a_driver_splits_them");
    if !can_split("frames_are_summed_wherever_a_driver_splits_them") {
        return;
    }
    let job = job(2);
    let bench = Bench::of(Variant::Jumbo, std::slice::from_ref(&job));
    let cases = [1, 15, 16, 256, 352, 831, 832, 833, 1500, MAX_ELEMENTS as u16]
        .into_iter()
        .flat_map(|elements| FIRST_BUFFERS.map(|first| (elements, first)));
    for (seq, (elements, first)) in (0..).zip(cases) {
        let case = format!("{elements} elements, {first} bytes");
        let show = |rank| {
            let frame = contribution(&job, rank, seq, elements);
            bench.show_split(&frame, first.min(frame.len()))
        };
        assert_eq!(show(0).reason, Reason::Added, "{case}");
        let mut bad = contribution(&job, 1, seq, elements);
        *bad.last_mut().unwrap() ^= 4;
        assert_eq!(bench.show_split(&bad, first.min(bad.len())).reason, Reason::BadChecksum, "{case}");
        let expected = sum(0..2, seq, elements.into());
        for (rank, reason) in [(1, Reason::Completed), (0, Reason::Replied)] {
            let shown = show(rank);
            assert_eq!((shown.verdict, shown.reason), (REDIRECT, reason), "{case}");
            assert!(answer(&shown.out).values == expected, "{case}: another sum");
        }
    }
}

#[test]
fn frames_of_dynamic_jobs_are_summed_wherever_a_driver_splits_them() {
    needs_privileges!("frames_of_dynamic_jobs_are_summed_wherever_a_driver_splits_them");
    if !can_split("frames_of_dynamic_jobs_are_summed_wherever_a_driver_splits_them") {
        return;
    }
    for elements in [1, 17, 352, 832] {
        let job = &dynamic::dynamic_job(2, elements);
        let bench = Bench::of(Variant::Jumbo, std::slice::from_ref(job));
        for (slot, first) in (0..).zip(FIRST_BUFFERS) {
            let case = format!("{elements} elements, {first} bytes");
            let show = |rank| {
                let frame = dynamic::contribution(job, rank, &dynamic::header(job, rank, slot, slot));
                bench.show_split(&frame, first.min(frame.len()))
            };
            assert_eq!(show(0).reason, Reason::Added, "{case}");
            let shown = show(1);
            assert_eq!((shown.verdict, shown.reason), (REDIRECT, Reason::Forwarded), "{case}");
            let expected = sum(0..2, slot, elements.into());
            assert!(answer(&shown.out).values == expected, "{case}: another sum");
        }
    }
}

#[test]
fn a_frame_of_several_buffers_is_not_copied_to_several_ports() {
    needs_privileges!("a_frame_of_several_buffers_is_not_copied_to_several_ports");
    if !can_split("a_frame_of_several_buffers_is_not_copied_to_several_ports") {
        return;
    }
    let job = job_of(2, 352);
    let bench = Bench::of(Variant::Jumbo, std::slice::from_ref(&job));
    let frame = |rank| contribution(&job, rank, 0, 352);
    assert_eq!(bench.show_split(&frame(0), 1024).reason, Reason::Added);
    let shown = bench.show_split(&frame(1), 1024);
    assert_eq!((shown.verdict, shown.reason), (DROP, Reason::Internal));
    // So no such job opens: its probe is not answered.
    let mut probe = header(&job, 0, 0, 352);
    probe.kind = Kind::Probe as u8;
    let probe = frame_of(&job, 0, &probe);
    assert_eq!(bench.show(&probe).reason, Reason::Probed);
    let shown = bench.show_split(&probe, 1024);
    assert_eq!((shown.verdict, shown.reason), (DROP, Reason::Internal));
}

#[test]
fn verification_stays_below_the_kernels_limit() {
    needs_privileges!("verification_stays_below_the_kernels_limit");
    let bench = Bench::of(Variant::Jumbo, &[dynamic::dynamic_job(2, 4)]);
    for (name, program) in bench.ebpf.programs().filter(|(_, program)| program.fd().is_ok()) {
        let steps = program.info().unwrap().verified_instruction_count();
        println!("{name}: {steps:?} steps");
        // The limit is a million; other kernels count a few more.
        assert!(steps.is_none_or(|steps| steps < 600_000), "{name}: {steps:?} steps");
    }
}

//! Static jobs on the program in the kernel, beyond the conformance vectors: destinations, lengths, worlds, exponent rounds and
//! lanes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use sumac_agg_job::NewJob;
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind, Reason,
    header::{exponent, flag},
    slot::SlotMeta,
    tables::{JobEntry, job_flag},
    tos::{CE, ECN_MASK, ECT_0},
};
use support::{
    AGGREGATOR, AGGREGATOR_MAC, Bench, REDIRECT,
    frames::{Answer, answer, contribution, emit, frame_of, header, move_to_port, sum, tag, with_ecn},
    job_of, needs_privileges, result_token, with_entry,
};

/// Checks a result's header and sums, but not its destination.
fn check_result(what: &str, job: &NewJob, got: &Answer, asked_by: usize, seq: u32, elements: u16) {
    let asked = header(job, asked_by, seq, elements);
    let world = job.workers.len();
    assert_eq!(got.header.kind, Kind::Result as u8, "{what}");
    assert_eq!(
        (got.header.bitmap_0, got.header.contributors),
        ((1u64 << world).wrapping_sub(1) as u32, world as u16),
        "{what}"
    );
    let same = [
        (got.header.seq, asked.seq),
        (got.header.slot, asked.slot),
        (got.header.tensor, asked.tensor),
        (got.header.offset, asked.offset),
        (got.header.timestamp, asked.timestamp),
        (u32::from(got.header.flags), u32::from(asked.flags)),
        (u32::from(got.header.job), u32::from(asked.job)),
        (u32::from(got.header.epoch), u32::from(asked.epoch)),
    ];
    assert!(same.iter().all(|(got, asked)| got == asked), "{what}: {same:?}");
    assert_eq!(got.header.token, result_token(), "{what}");
    assert_eq!(got.header.next_seq, seq.wrapping_add(16), "{what}: the version's next chunk");
    assert_eq!(got.values, sum(0..world, seq, usize::from(elements)), "{what}");
}

#[test]
fn results_and_replies_are_addressed() {
    needs_privileges!("results_and_replies_are_addressed");
    for tagged in [false, true] {
        let job = job_of(2, 20);
        let bench = Bench::new(std::slice::from_ref(&job));
        let show = |rank| {
            let frame = contribution(&job, rank, 0, 20);
            bench.show(&if tagged { tag(frame) } else { frame })
        };
        show(0);
        let completed = show(1);
        let result = answer(&completed.out);
        assert_eq!(result.frame.tagged, tagged);
        // The broadcast's egress program writes each worker's addresses into its copy; until then they are the last one's.
        assert_eq!(result.frame.dst_ip, job.workers[1].ip);
        let reply = show(0);
        assert_eq!(reply.verdict, REDIRECT);
        let got = answer(&reply.out);
        assert_eq!((got.frame.src_ip, got.frame.dst_ip), (AGGREGATOR.to_bits(), job.workers[0].ip));
        assert_eq!(
            (got.frame.src_port, got.frame.dst_port),
            (48700, 49000),
            "the registered port, not the source"
        );
        assert_eq!(got.macs, [job.workers[0].mac, AGGREGATOR_MAC]);
        assert_eq!((got.frame.tagged, got.frame.dscp_ecn), (tagged, 0x28), "tag and priority stay");
    }
}

#[test]
fn one_armed_jobs_get_one_multicast_result() {
    needs_privileges!("one_armed_jobs_get_one_multicast_result");
    let mut job = job_of(3, 20);
    job.workers.iter_mut().for_each(|worker| worker.ifindex = 7);
    let bench = Bench::new(std::slice::from_ref(&job));
    bench.show(&contribution(&job, 0, 0, 20));
    bench.show(&contribution(&job, 1, 0, 20));
    let completed = bench.show(&contribution(&job, 2, 0, 20));
    assert_eq!((completed.verdict, completed.reason), (REDIRECT, Reason::Completed));
    let result = answer(&completed.out);
    check_result("multicast", &job, &result, 2, 0, 20);
    assert_eq!(std::net::Ipv4Addr::from_bits(result.frame.dst_ip).to_string(), "239.77.0.5");
    assert_eq!(result.macs, [[1, 0, 0x5e, 77, 0, 5], AGGREGATOR_MAC]);
    assert_eq!((result.frame.src_port, result.frame.dst_port), (48700, 49000));
}

#[test]
fn every_length_is_summed_to_its_last_element() {
    needs_privileges!("every_length_is_summed_to_its_last_element");
    let job = job_of(2, 832);
    let bench = Bench::new(std::slice::from_ref(&job));
    for (seq, elements) in (0..).zip((1..40).chain([62, 64, 255, 256, 257, 352, 360, 825, 831, 832])) {
        bench.show(&contribution(&job, 0, seq, elements));
        let completed = bench.show(&contribution(&job, 1, seq, elements));
        assert_eq!(completed.reason, Reason::Completed, "{elements} elements");
        check_result(&format!("{elements} elements"), &job, &answer(&completed.out), 1, seq, elements);
    }
}

#[test]
fn all_world_sizes_complete() {
    needs_privileges!("all_world_sizes_complete");
    for world in [1, 2, 31, 32u8] {
        let job = job_of(world, 9);
        let bench = Bench::new(std::slice::from_ref(&job));
        for seq in 0..20 {
            for rank in 0..usize::from(world) {
                let shown = bench.show(&contribution(&job, rank, seq, 9));
                let expected = if rank + 1 == usize::from(world) { Reason::Completed } else { Reason::Added };
                assert_eq!(shown.reason, expected, "rank {rank} of {world}, chunk {seq}");
                if shown.reason == Reason::Completed {
                    check_result("complete", &job, &answer(&shown.out), rank, seq, 9);
                }
            }
        }
    }
}

#[test]
fn the_largest_value_is_kept() {
    needs_privileges!("the_largest_value_is_kept");
    let job = job_of(3, 9);
    let bench = Bench::new(std::slice::from_ref(&job));
    let extremes = [i32::MIN, i32::MAX, -1, 0, 1, i32::MIN + 1, 77, -77, 1 << 30];
    let mut last = Vec::new();
    for rank in 0..3 {
        let mut header = header(&job, rank, 3, 9);
        header.flags |= flag::MAXIMUM;
        let mut payload = header.to_bytes().to_vec();
        payload.extend((0..9).flat_map(|i| extremes[(i + 2 * rank) % 9].to_be_bytes()));
        let frame = emit(&job, rank, &payload);
        let mut bad = frame.clone();
        *bad.last_mut().unwrap() ^= 0x40;
        let before = bench.pool();
        assert_eq!(bench.show(&bad).reason, Reason::BadChecksum, "rank {rank}");
        assert!(bench.pool() == before, "what cannot be taken back is verified before");
        last = bench.show(&frame).out;
    }
    let largest = |i: usize| (0..3).map(|rank| extremes[(i + 2 * rank) % 9]).max().unwrap();
    assert_eq!(answer(&last).values, (0..9).map(largest).collect::<Vec<_>>());
}

#[test]
fn exponents_are_agreed_on_and_looked_ahead() {
    needs_privileges!("exponents_are_agreed_on_and_looked_ahead");
    let job = job_of(3, 4);
    let bench = Bench::new(std::slice::from_ref(&job));
    let round = |rank: usize, own: i8| {
        let mut header = header(&job, rank, 3, 0);
        (header.flags, header.next_exponent) = (header.flags | flag::EXPONENT, own);
        bench.show(&frame_of(&job, rank, &header))
    };
    let data = |rank: usize, next: i8| {
        let mut header = header(&job, rank, 3, 4);
        (header.exponent, header.next_exponent) = (9, next);
        bench.show(&frame_of(&job, rank, &header))
    };
    assert_eq!(round(0, -3).reason, Reason::Added);
    assert_eq!(data(0, 1).reason, Reason::OutOfTurn, "no elements before the exponent");
    assert_eq!(round(2, 9).reason, Reason::Added);
    assert_eq!(round(2, 9).reason, Reason::Duplicate);
    let agreed = round(1, exponent::LEAST);
    assert_eq!((agreed.verdict, agreed.reason), (REDIRECT, Reason::Completed));
    let expected = (Kind::Result as u8, flag::EXPONENT, 0, 9);
    let of = |out: &[u8]| {
        let header = answer(out).header;
        (header.kind, header.flags, header.elements, header.exponent)
    };
    assert_eq!(of(&agreed.out), expected);
    assert_eq!(data(0, 5).reason, Reason::Added);
    let again = round(1, exponent::LEAST);
    assert_eq!((again.reason, of(&again.out)), (Reason::Replied, expected), "asked again while data comes");
    assert_eq!(data(1, exponent::NONE).reason, Reason::Added);
    let result = answer(&data(2, exponent::UNKNOWN).out).header;
    assert_eq!((result.exponent, result.next_exponent), (9, exponent::UNKNOWN), "unknown wins");
}

#[test]
fn marks_of_congestion_are_merged_into_results_and_rounds() {
    needs_privileges!("marks_of_congestion_are_merged_into_results_and_rounds");
    let job = job_of(3, 5);
    let bench = Bench::new(std::slice::from_ref(&job));
    let show = |rank: usize, seq: u32, flags: u16, ecn: u8| {
        let elements = if flags == flag::EXPONENT { 0 } else { 5 };
        let header = header(&job, rank, seq, elements);
        let frame = frame_of(&job, rank, &Header { flags: header.flags | flags, ..header });
        let shown = bench.show(&with_ecn(frame, ecn));
        let answer = answer(&shown.out);
        (shown.reason, (answer.header.flags, answer.frame.dscp_ecn & ECN_MASK))
    };
    for (seq, marked) in [(0, Some(0)), (1, Some(2)), (2, None)] {
        let ecn = |rank| if marked == Some(rank) { CE } else { ECT_0 };
        (0..2).for_each(|rank| assert_eq!(show(rank, seq, 0, ecn(rank)).0, Reason::Added));
        let echo = if marked.is_some() { flag::ECN_ECHO } else { 0 };
        assert_eq!(show(2, seq, 0, ecn(2)), (Reason::Completed, (echo, ECT_0)), "chunk {seq}");
        // Retransmissions are not ECN-capable, and so neither is the result that they get.
        assert_eq!(show(1, seq, flag::RESEND, 0), (Reason::Replied, (echo, 0)), "chunk {seq}");
    }
    (0..2).for_each(|rank| {
        let ecn = if rank == 1 { CE } else { ECT_0 };
        assert_eq!(show(rank, 3, flag::EXPONENT, ecn).0, Reason::Added);
    });
    let agreed = flag::EXPONENT | flag::ECN_ECHO;
    assert_eq!(show(2, 3, flag::EXPONENT, ECT_0), (Reason::Completed, (agreed, ECT_0)));
    assert_eq!(show(0, 3, flag::EXPONENT, 0), (Reason::Replied, (agreed, 0)));
    (0..2).for_each(|rank| assert_eq!(show(rank, 3, 0, ECT_0).0, Reason::Added));
    assert_eq!(show(2, 3, 0, ECT_0), (Reason::Completed, (0, ECT_0)), "the round's mark was its own");
}

#[test]
fn slots_steal_what_their_lane_has_next() {
    needs_privileges!("slots_steal_what_their_lane_has_next");
    let job = with_entry(job_of(1, 4), |entry| JobEntry {
        flags: entry.flags | job_flag::STEALING,
        lane_slots_log2: 1,
        shards: 2,
        ..entry
    });
    let bench = Bench::new(std::slice::from_ref(&job));
    // Two shards of two lanes each: a lane has its own counter.
    let show = |lane: u32, seq: u32, slot: u32, version: bool| {
        let mut header = header(&job, 0, seq, 4);
        header.slot = lane * 2 + slot;
        header.flags = if version { flag::POOL_VERSION } else { 0 };
        answer(&bench.show(&frame_of(&job, 0, &header)).out).header.next_seq
    };
    assert_eq!(show(0, 0, 0, false), 4);
    assert_eq!(show(3, 0, 0, false), 4, "another lane's counter");
    assert_eq!(show(0, 2, 0, true), 5, "the same slot's second chunk");
    assert_eq!(show(0, 4, 0, false), 6, "the other slot is late, and this one goes on");
    assert_eq!(show(0, 4, 0, false), 6, "a repeated result repeats it");
    assert_eq!(show(0, 1, 1, false), 7);
    assert_eq!(show(0, 7, 1, true), 0, "not this slot's: it was never told of chunk 7");
}

#[test]
fn a_port_reaches_its_own_shards_slots_only() {
    needs_privileges!("a_port_reaches_its_own_shards_slots_only");
    let job = with_entry(job_of(2, 4), |entry| JobEntry { lane_slots_log2: 1, shards: 2, ..entry });
    let other = with_entry(job_of(2, 4), |entry| JobEntry { slot_base: 24, ..entry });
    let other = NewJob { job: 6, ..other };
    let bench = Bench::new(&[job.clone(), other]);
    for slot in 0..10u32 {
        for shard in 0..2u16 {
            let mut header = header(&job, 0, slot % 2, 4);
            header.slot = slot;
            let mut frame = frame_of(&job, 0, &header);
            move_to_port(&mut frame, DEFAULT_BASE_PORT + shard);
            let before = bench.pool();
            let shown = bench.show(&frame);
            let is_own = slot < 8 && slot / 2 % 2 == u32::from(shard);
            let expected = if is_own { Reason::Added } else { Reason::WrongSlot };
            assert_eq!(shown.reason, expected, "slot {slot} by shard {shard}");
            assert!(is_own || bench.pool() == before, "slot {slot} by shard {shard} changed a slot");
        }
    }
    // The job changed its own eight slots only.
    for index in (0..64).filter(|index| !(16..24).contains(index)) {
        assert_eq!(bench.slot(index).meta, SlotMeta::default(), "slot {index}");
    }
}

#[test]
fn jobs_without_checksums_have_none_in_results() {
    needs_privileges!("jobs_without_checksums_have_none_in_results");
    let job = with_entry(job_of(2, 20), |entry| JobEntry { flags: 0, ..entry });
    let bench = Bench::new(std::slice::from_ref(&job));
    bench.show(&contribution(&job, 0, 0, 20));
    let out = bench.show(&contribution(&job, 1, 0, 20)).out;
    check_result("without", &job, &answer(&out), 1, 0, 20);
    assert_eq!(out[40..42], [0, 0]);
}

#[test]
fn probes_are_answered_with_the_same_length() {
    needs_privileges!("probes_are_answered_with_the_same_length");
    let job = job_of(2, 256);
    let bench = Bench::new(std::slice::from_ref(&job));
    let before = bench.pool();
    for elements in [0, 1, 256] {
        let probe = sumac_wire::Header { kind: Kind::Probe as u8, ..header(&job, 1, 0, elements) };
        let frame = frame_of(&job, 1, &probe);
        let shown = bench.show(&frame);
        assert_eq!((shown.verdict, shown.reason), (REDIRECT, Reason::Probed), "{elements} elements");
        let report = answer(&shown.out);
        assert_eq!(shown.out.len(), frame.len());
        assert_eq!(
            report.header,
            sumac_wire::Header { kind: Kind::Report as u8, token: result_token(), ..probe }
        );
        assert_eq!((report.frame.dst_ip, report.frame.dst_port), (job.workers[1].ip, 49000));
        assert_eq!(report.macs, [job.workers[1].mac, AGGREGATOR_MAC]);
    }
    assert!(bench.pool() == before, "a probe touched a slot");
}

#[test]
fn workers_are_counted() {
    needs_privileges!("workers_are_counted");
    let job = job_of(2, 4);
    let bench = Bench::new(std::slice::from_ref(&job));
    for (rank, seq) in [(0, 0), (0, 0), (1, 0), (0, 0), (1, 1), (0, 1)] {
        bench.show(&contribution(&job, rank, seq, 4));
    }
    let tables = bench.tables.lock().unwrap();
    let of = |rank| {
        let c = tables.worker_seen(job.job, rank).unwrap().counters;
        (c.added, c.last, c.duplicates, c.replies)
    };
    assert_eq!(of(0), (2, 1, 1, 1));
    assert_eq!(of(1), (2, 1, 0, 0));
}

#[test]
fn verification_stays_far_below_the_kernels_limit() {
    needs_privileges!("verification_stays_far_below_the_kernels_limit");
    let bench = Bench::new(&[support::dynamic::dynamic_job(2, 4)]);
    for (name, program) in bench.ebpf.programs().filter(|(_, program)| program.fd().is_ok()) {
        let steps = program.info().unwrap().verified_instruction_count();
        println!("{name}: {steps:?} steps");
        // The limit is a million, and other kernels need more steps than this one.
        assert!(steps.is_none_or(|steps| steps < 600_000), "{name}: {steps:?} steps");
    }
}

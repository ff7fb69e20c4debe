//! Static jobs on the program in the kernel, beyond the conformance vectors: destinations, lengths, worlds
//! and shards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use sumac_agg_job::NewJob;
use sumac_wire::{DEFAULT_BASE_PORT, Kind, Reason, slot::SlotMeta, tables::JobEntry};
use support::{
    AGGREGATOR, AGGREGATOR_MAC, Bench, REDIRECT,
    frames::{Answer, answer, contribution, frame_of, header, move_to_port, sum, tag},
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
        // The broadcast's egress program writes each worker's addresses into its copy; until then they are
        // the last one's.
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

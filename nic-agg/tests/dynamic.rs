//! Dynamic jobs (ATP) on the program in the kernel, beyond the conformance vectors: lengths, overflow, age,
//! and destinations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::time::Duration;

use sumac_agg_job::NewJob;
use sumac_agg_layout::State;
use sumac_wire::{
    Header, Kind, Reason,
    dynamic::{SlotMeta, owner},
    header::flag,
    tables::{JobEntry, WorkerEntry, job_flag},
};
use support::{
    Bench, DYNAMIC_SLOTS, PASS, REDIRECT,
    dynamic::{
        ECT, SLOTS, contribution, dynamic_job, frame, header, host, rack_job, result, root_job, values,
    },
    frames::{self, answer, sum},
    job_of, needs_privileges, refusal, result_token, with_entry,
};

/// Runs the program on the parameter host's result of a chunk.
fn free(bench: &Bench, job: &NewJob, seq: u32, slot: u32) {
    let result = result(&header(job, 0, seq, slot));
    let shown = bench.show(&frame(job, &host(0), &result, &values(&result, 0), ECT));
    assert_eq!(shown.reason, Reason::Concluded, "result of chunk {seq} of job {}", job.job);
}

/// Returns the contribution of `rank` to a chunk with all elements equal to `value`.
fn all_of(job: &NewJob, rank: usize, header: &Header, value: i32) -> Vec<u8> {
    frame(job, &job.workers[rank], header, &vec![value; usize::from(header.elements)], ECT)
}

#[test]
fn worlds_of_all_sizes_and_chunks_of_all_lengths() {
    needs_privileges!("worlds_of_all_sizes_and_chunks_of_all_lengths");
    let worlds = (2..=32).map(|world| (world, 20));
    let lengths = [1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 352, 800, 815, 816, 817, 830, 831, 832];
    let cases = worlds.chain(lengths.map(|elements| (2, elements)));
    let jobs: Vec<_> =
        (1..).zip(cases).map(|(job, (world, len))| NewJob { job, ..dynamic_job(world, len) }).collect();
    let bench = Bench::new(&jobs);
    for job in &jobs {
        let (world, elements) = (job.workers.len(), job.entry.elements);
        for rank in 0..world {
            let shown = bench.show(&contribution(job, rank, &header(job, rank, 3, 3)));
            if rank + 1 < world {
                assert_eq!(shown.reason, Reason::Added, "{world} workers, {elements} elements: rank {rank}");
                continue;
            }
            assert_eq!(shown.reason, Reason::Forwarded, "{world} workers, {elements} elements");
            let sums = answer(&shown.out).values;
            assert!(sums == sum(0..world, 3, elements.into()), "{world} workers, {elements} elements");
        }
        free(&bench, job, 3, 3);
    }
}

#[test]
fn sums_that_leave_32_bits_are_clamped_and_marked() {
    needs_privileges!("sums_that_leave_32_bits_are_clamped_and_marked");
    let job = dynamic_job(2, 33);
    let bench = Bench::new(std::slice::from_ref(&job));
    let cases = [
        (i32::MAX, 1, i32::MAX, true),
        (i32::MIN, -1, i32::MIN, true),
        (i32::MIN, i32::MIN, i32::MIN, true),
        (i32::MAX, i32::MAX, i32::MAX, true),
        (i32::MAX, 0, i32::MAX, false),
        (i32::MAX, i32::MIN, -1, false),
        (i32::MIN + 1, -1, i32::MIN, false),
    ];
    for (slot, (a, b, expected, overflows)) in (0..).zip(cases) {
        for again in [0, flag::RESEND] {
            let of = |rank| header(&job, rank, 1, slot);
            bench.show(&all_of(&job, 0, &of(0), a));
            // A wrong checksum undoes all of it.
            let second = Header { flags: again, ..of(1) };
            let mut bad = all_of(&job, 1, &second, b);
            *bad.last_mut().unwrap() ^= 1;
            assert_eq!(bench.show(&bad).reason, Reason::BadChecksum);
            let shown = bench.show(&all_of(&job, 1, &second, b));
            let got = answer(&shown.out);
            assert_eq!(got.values, [expected; 33], "{a} + {b}");
            assert_eq!(got.header.has(flag::OVERFLOW), overflows, "{a} + {b}");
            let kept = bench.dynamic_slot(slot).meta;
            assert_eq!(kept.flags & flag::OVERFLOW != 0, overflows && again == 0, "{a} + {b}: slot");
            free(&bench, &job, 1, slot);
        }
    }
}

#[test]
fn orphans_are_taken_back() {
    needs_privileges!("orphans_are_taken_back");
    let (dead, alive) = (dynamic_job(2, 20), NewJob { job: 6, ..dynamic_job(2, 20) });
    let bench = Bench::new(&[dead.clone(), alive.clone()]);
    let of = |job: &NewJob, seq: u32| contribution(job, 0, &header(job, 0, seq, seq % SLOTS));
    for seq in 0..SLOTS {
        assert_eq!(bench.show(&of(&dead, seq)).reason, Reason::Added);
    }
    for seq in 0..SLOTS {
        assert_eq!(bench.show(&of(&alive, seq)).reason, Reason::Collided, "slot {seq} is the other's");
    }
    // Another job's result leaves them unchanged, too.
    free(&bench, &alive, 0, 0);
    assert_ne!(bench.dynamic_slot(0).meta.owner, 0);
    {
        let mut tables = bench.tables.lock().unwrap();
        let state = tables.state.get(0).unwrap();
        tables.state.set(0, &State { slot_timeout: 1, ..state }).unwrap();
    }
    // The kernel's coarse clock advances every few milliseconds.
    std::thread::sleep(Duration::from_millis(50));
    free(&bench, &alive, 0, 0);
    assert_eq!(bench.dynamic_slot(0).meta.owner, 0, "a result takes an orphan with it");
    for seq in 1..SLOTS {
        assert_eq!(bench.show(&of(&alive, seq)).reason, Reason::Collided, "slot {seq} has refused the chunk");
        assert_eq!(bench.show(&of(&alive, SLOTS + seq)).reason, Reason::Reclaimed, "slot {seq}");
        assert_eq!(bench.dynamic_slot(seq).meta.owner, owner(alive.job, alive.entry.epoch, 0));
    }
}

#[test]
fn shards_and_jobs_keep_apart() {
    needs_privileges!("shards_and_jobs_keep_apart");
    let job = with_entry(dynamic_job(2, 20), |entry| JobEntry { shards: 2, ..entry });
    let job = NewJob { parents: vec![host(0), host(1)], ..job };
    let other = NewJob { job: 6, ..job_of(2, 20) };
    let bench = Bench::new(&[job.clone(), other.clone()]);
    for rank in 0..2 {
        let shown = bench.show(&frames::contribution(&other, rank, 3, 20));
        let expected = [Reason::Added, Reason::Completed][rank];
        assert_eq!(shown.reason, expected, "a static job beside it");
        for lane in 0..2 {
            let of_lane = Header { lane, ..header(&job, rank, 3, 3) };
            let shown = bench.show(&contribution(&job, rank, &of_lane));
            if rank == 0 {
                assert_eq!(shown.reason, Reason::Added);
                let slot = bench.dynamic_slot(u32::from(lane) * DYNAMIC_SLOTS + 3);
                assert_eq!(slot.meta.owner, owner(job.job, job.entry.epoch, lane));
                continue;
            }
            assert_eq!(shown.reason, Reason::Forwarded);
            let got = answer(&shown.out);
            let to = host(lane as u8);
            assert_eq!((got.frame.dst_ip, got.frame.dst_port), (to.ip, to.port + lane));
            assert_eq!(got.values, sum(0..2, 3, 20));
        }
    }
    let by_the_wrong_port = Header { lane: 1, ..result(&header(&job, 0, 3, 3)) };
    let of_host_0 = frame(&job, &host(0), &by_the_wrong_port, &values(&by_the_wrong_port, 0), ECT);
    assert_eq!(bench.show(&of_host_0).reason, Reason::WrongSource, "shard 1 is host 1's");
}

/// Workers that bypass their aggregator, and the parameter host that replies to them, may be reachable
/// through its interfaces only.
#[test]
fn what_is_for_somebody_else_is_the_kernels() {
    needs_privileges!("what_is_for_somebody_else_is_the_kernels");
    let only = NewJob { job: 4, ..dynamic_job(3, 20) };
    let (rack, root) = (rack_job(3, 20), NewJob { job: 6, ..root_job(2, 20) });
    let bench = Bench::new(&[only.clone(), rack.clone(), root.clone()]);
    for (what, job, above) in [("only", &only, host(0)), ("rack", &rack, host(9)), ("root", &root, host(0))] {
        let again = Header { flags: flag::RESEND, ..header(job, 0, 3, 3) };
        let report = Header { kind: Kind::Report as u8, token: result_token(), ..again };
        // A worker's packet, one of another level, and the reply.
        let other = Header { flags: again.flags ^ flag::LEVEL, ..again };
        let crossing = [
            (&job.workers[0], again, above.ip),
            (&job.workers[0], Header { kind: Kind::Probe as u8, ..again }, above.ip),
            (&job.workers[0], other, above.ip),
            (&above, result(&again), job.workers[0].ip),
            (&above, report, job.workers[0].ip),
        ];
        // At a rack, the reply is not from the destination of its own sums.
        let at_rack = (&host(7), result(&again), job.workers[0].ip);
        let is_rack = job.entry.flags & job_flag::CHILD != 0;
        for (from, header, to) in crossing.into_iter().chain(is_rack.then_some(at_rack)) {
            let to = WorkerEntry { aggregator_ip: to, ..*from };
            let shown = bench.show(&frame(job, &to, &header, &values(&header, 0), ECT));
            assert_eq!((shown.verdict, shown.reason), (PASS, Reason::Foreign), "{what}: {header:?}");
        }
        assert_eq!(bench.dynamic_slot(3).meta, SlotMeta::default(), "{what}");
    }
}

#[test]
fn results_to_one_port_go_to_a_group() {
    needs_privileges!("results_to_one_port_go_to_a_group");
    let mut job = dynamic_job(2, 20);
    job.workers.iter_mut().for_each(|worker| worker.ifindex = 7);
    let bench = Bench::new(std::slice::from_ref(&job));
    let result = result(&header(&job, 0, 3, 3));
    let shown = bench.show(&frame(&job, &host(0), &result, &values(&result, 0), ECT));
    let got = answer(&shown.out);
    assert_eq!((shown.verdict, got.macs[0]), (REDIRECT, [1, 0, 0x5e, 77, 0, 5]));
    assert_eq!(got.frame.dst_ip, u32::from_be_bytes([239, 77, 0, 5]));
}

#[test]
fn packets_of_a_removed_job_are_told_or_cross_to_the_parameter_host() {
    needs_privileges!("packets_of_a_removed_job_are_told_or_cross_to_the_parameter_host");
    let job = dynamic_job(3, 20);
    let bench = Bench::new(std::slice::from_ref(&job));
    let straight = |header: &Header| {
        let mut frame = contribution(&job, 0, header);
        frame[30..34].copy_from_slice(&host(0).ip.to_be_bytes());
        frame
    };
    let sent = header(&job, 0, 3, 3);
    assert_eq!(bench.show(&straight(&sent)).verdict, PASS, "of a job that is here");
    assert!(sumac_agg::job::remove(&mut bench.tables.lock().unwrap(), job.job).unwrap());
    let shown = bench.show(&straight(&sent));
    assert_eq!((shown.verdict, shown.out == straight(&sent)), (PASS, true), "of one that was removed");
    let shown = bench.show(&contribution(&job, 0, &sent));
    assert_eq!((shown.verdict, shown.reason), (REDIRECT, Reason::UnknownJob));
    let told = answer(&shown.out);
    let token = result_token();
    assert_eq!(told.header, Header { kind: Kind::Report as u8, token, flags: flag::UNKNOWN_JOB, ..sent });
    assert_eq!((told.frame.dst_ip, told.frame.dscp_ecn & 3), (job.workers[0].ip, 0));
    let back = result(&sent);
    let from_above = frame(&job, &host(0), &back, &values(&back, 0), ECT);
    assert_eq!(bench.show(&from_above).verdict, PASS, "results are answered by none");
    // Of another control plane's job, whose number nobody ever had here or somebody has.
    for other in [Header { job: job.job + 1, ..sent }, Header { token: sent.token ^ 1, ..sent }] {
        assert_eq!(bench.show(&straight(&other)).verdict, PASS);
    }
}

#[test]
fn what_is_cut_off_or_bent_changes_nothing() {
    needs_privileges!("what_is_cut_off_or_bent_changes_nothing");
    let job = dynamic_job(3, 20);
    let bench = Bench::new(std::slice::from_ref(&job));
    bench.show(&contribution(&job, 0, &header(&job, 0, 3, 3)));
    let pool = |bench: &Bench| {
        let slots = (0..2 * DYNAMIC_SLOTS).map(|index| bench.dynamic_slot(index));
        slots.flat_map(|slot| zerocopy::IntoBytes::as_bytes(&slot).to_vec()).collect::<Vec<u8>>()
    };
    let before = pool(&bench);
    let second = header(&job, 1, 3, 3);
    let again = Header { flags: flag::RESEND, ..second };
    let result = result(&second);
    let frames = [
        contribution(&job, 1, &second),
        contribution(&job, 1, &again),
        frame(&job, &host(0), &result, &values(&result, 0), ECT),
    ];
    for good in frames {
        for cut in 14..good.len() {
            let (verdict, reason) =
                if cut < 38 { (PASS, Reason::Foreign) } else { (PASS, Reason::Truncated) };
            let shown = bench.show(&good[..cut]);
            assert_eq!((shown.verdict, shown.reason), (verdict, reason), "cut at {cut} of {}", good.len());
        }
        for at in 42..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let shown = bench.show(&bad);
            assert_eq!(shown.verdict, refusal(shown.reason), "byte {at}: {:?}", shown.reason);
        }
    }
    assert!(pool(&bench) == before, "a slot has changed");
    assert_eq!(bench.dynamic_slot(3).meta.bitmap, 1);
}

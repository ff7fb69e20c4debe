//! Two CPUs add to one slot at once: every sum is exactly that of all workers.
//!
//! ```text
//!   CPU 0: ranks 0, 2, 4 ... --\
//!                               > the same slots at the same time
//!   CPU 1: ranks 1, 3, 5 ... --/
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::{
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
    thread,
};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use sumac_agg_job::NewJob;
use sumac_wire::Reason;
use support::{
    Bench, REDIRECT,
    dynamic::{self, dynamic_job},
    frames::{answer, contribution, sum},
    job_of, needs_privileges,
};

const WORKERS: u8 = 8;
const ELEMENTS: u16 = 832;
const CHUNKS: u32 = 2000;

/// A barrier that spins: a wake-up would take longer than the frames.
struct SpinBarrier {
    arrived: AtomicU32,
}

impl SpinBarrier {
    fn wait(&self, round: u32) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        let mut spins = 0u32;
        while self.arrived.load(Ordering::SeqCst) < 2 * (round + 1) {
            spins += 1;
            // The other thread may be off its CPU.
            if spins.is_multiple_of(10_000) {
                thread::yield_now();
            }
        }
    }
}

#[test]
fn nothing_is_lost_between_two_cpus() {
    needs_privileges!("nothing_is_lost_between_two_cpus");
    let job = job_of(WORKERS, ELEMENTS);
    let frame = |rank: usize, seq: u32| contribution(&job, rank, seq, ELEMENTS);
    both_sum_all("nothing_is_lost_between_two_cpus", &job, Reason::Completed, frame, None);
}

#[test]
fn nothing_is_lost_of_dynamic_jobs() {
    needs_privileges!("nothing_is_lost_of_dynamic_jobs");
    let job = dynamic_job(WORKERS, ELEMENTS);
    let header = |rank: usize, seq: u32| dynamic::header(&job, rank, seq, seq % dynamic::SLOTS);
    let frame = |rank: usize, seq: u32| dynamic::contribution(&job, rank, &header(rank, seq));
    let result = |seq: u32| {
        let result = dynamic::result(&header(0, seq));
        dynamic::frame(&job, &dynamic::host(0), &result, &dynamic::values(&result, 0), dynamic::ECT)
    };
    both_sum_all("nothing_is_lost_of_dynamic_jobs", &job, Reason::Forwarded, frame, Some(&result));
}

/// Runs the program on each half of the workers' frames on a CPU of its own; `freed` returns the frame that
/// frees a complete chunk's slot.
fn both_sum_all(
    test: &str,
    job: &NewJob,
    completes: Reason,
    frame: impl Fn(usize, u32) -> Vec<u8> + Sync,
    freed: Option<&(dyn Fn(u32) -> Vec<u8> + Sync)>,
) {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpus: Vec<_> = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap()).take(2).collect();
    if cpus.len() < 2 {
        println!("SKIP {test}: needs two CPUs");
        return;
    }
    let bench = Bench::new(std::slice::from_ref(job));
    let (barrier, completed) = (SpinBarrier { arrived: AtomicU32::new(0) }, AtomicUsize::new(0));
    thread::scope(|scope| {
        for (half, cpu) in cpus.iter().enumerate() {
            let (frame, bench, barrier, completed) = (&frame, &bench, &barrier, &completed);
            scope.spawn(move || {
                let mut only = CpuSet::new();
                only.set(*cpu).unwrap();
                sched_setaffinity(Pid::from_raw(0), &only).unwrap();
                // Returns whether the frame completed its chunk.
                let send = |seq: u32, frame: &[u8]| {
                    let (verdict, out) = bench.run(frame);
                    if verdict != REDIRECT {
                        return false;
                    }
                    completed.fetch_add(1, Ordering::Relaxed);
                    let expected = sum(0..usize::from(WORKERS), seq, ELEMENTS.into());
                    assert!(answer(&out).values == expected, "chunk {seq}: another sum");
                    freed.map(|freed| bench.run(&freed(seq)));
                    true
                };
                for seq in 0..CHUNKS {
                    let ranks = (half..usize::from(WORKERS)).step_by(2);
                    let frames: Vec<_> = ranks.map(|rank| frame(rank, seq)).collect();
                    barrier.wait(2 * seq);
                    for frame in &frames {
                        send(seq, frame);
                    }
                    barrier.wait(2 * seq + 1);
                    // The kernel may preempt the holder of a slot's lock; the program then drops the other
                    // CPU's frame, and its worker sends it again.
                    if half == 0 && completed.load(Ordering::SeqCst) == seq as usize {
                        (0..usize::from(WORKERS)).any(|rank| send(seq, &frame(rank, seq)));
                    }
                }
            });
        }
    });
    assert_eq!(completed.into_inner(), CHUNKS as usize, "each chunk completes once");
    let counters = bench.tables.lock().unwrap().counters().unwrap();
    let count = |wanted| counters.iter().find(|(reason, _)| *reason == wanted).map_or(0, |(_, count)| *count);
    assert_eq!(count(completes), u64::from(CHUNKS));
    assert_eq!(count(Reason::Added), u64::from(CHUNKS) * (u64::from(WORKERS) - 1));
}

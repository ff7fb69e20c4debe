//! Two CPUs deliver into one slot at once: every sum is that of all workers, exactly.
//!
//! ```text
//!   CPU 0: ranks 0, 2, 4 ... --\
//!                               > the same slots, the same moment
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
use sumac_wire::Reason;
use support::{
    Bench, REDIRECT,
    frames::{answer, contribution, sum},
    job_of, privileged,
};

const WORKERS: u8 = 8;
const ELEMENTS: u16 = 832;
const CHUNKS: u32 = 2000;

/// Lets both threads go at the same moment, by spinning: a wake-up would take longer than the frames.
struct Gate {
    arrived: AtomicU32,
}

impl Gate {
    fn pass(&self, round: u32) {
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
    if !privileged("nothing_is_lost_between_two_cpus") {
        return;
    }
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpus: Vec<_> = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap()).take(2).collect();
    if cpus.len() < 2 {
        println!("SKIP nothing_is_lost_between_two_cpus: needs two CPUs");
        return;
    }
    let job = job_of(WORKERS, ELEMENTS);
    let bench = Bench::new(std::slice::from_ref(&job));
    let (gate, completed) = (Gate { arrived: AtomicU32::new(0) }, AtomicUsize::new(0));
    thread::scope(|scope| {
        for (half, cpu) in cpus.iter().enumerate() {
            let (job, bench, gate, completed) = (&job, &bench, &gate, &completed);
            scope.spawn(move || {
                let mut only = CpuSet::new();
                only.set(*cpu).unwrap();
                sched_setaffinity(Pid::from_raw(0), &only).unwrap();
                for seq in 0..CHUNKS {
                    let frames: Vec<_> = (half..usize::from(WORKERS))
                        .step_by(2)
                        .map(|rank| contribution(job, rank, seq, ELEMENTS))
                        .collect();
                    gate.pass(seq);
                    for frame in &frames {
                        let (verdict, out) = bench.run(frame);
                        if verdict == REDIRECT {
                            completed.fetch_add(1, Ordering::Relaxed);
                            let expected = sum(0..usize::from(WORKERS), seq, ELEMENTS.into());
                            assert!(answer(&out).values == expected, "chunk {seq}: another sum");
                        }
                    }
                }
            });
        }
    });
    assert_eq!(completed.into_inner(), CHUNKS as usize, "each chunk completes once");
    let counters = bench.tables.lock().unwrap().counters().unwrap();
    let count = |wanted| counters.iter().find(|(reason, _)| *reason == wanted).map_or(0, |(_, count)| *count);
    assert_eq!(count(Reason::Completed), u64::from(CHUNKS));
    assert_eq!(count(Reason::Added), u64::from(CHUNKS) * (u64::from(WORKERS) - 1));
}

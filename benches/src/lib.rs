//! Workloads of the engine, the host aggregator and UDP sockets. Benchmarks time them, and `counts` counts
//! their instructions.
//!
//! The functions `counted_*` have the work of the crate under test alone: callgrind counts while they run.
#![expect(clippy::expect_used, clippy::panic, reason = "a workload that cannot go on")]

pub mod aggregator;
pub mod engine;
pub mod udp;

/// Ends what callgrind counts together, and prints the line that describes it: part, case, elements of a
/// packet, and packets; or `-` for a first turn, which allocates and joins.
#[inline(never)]
pub fn dump(line: &str) {
    println!("{}", std::hint::black_box(line));
}

//! Workloads of the engine, the host aggregator and UDP sockets. Benchmarks time them, and `counts` counts
//! their instructions.
//!
//! The functions `counted_*` have the work of the crate under test alone: callgrind counts while they run.
#![expect(clippy::expect_used, clippy::panic, reason = "a workload that cannot go on")]

pub mod aggregator;
pub mod engine;
pub mod udp;

//! The data path, over UDP on the loopback interface and over AF_XDP in network namespaces.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod aggregator;
mod hosting;
mod job;
mod namespace;
mod udp;
#[path = "../../../../tests/src/wait.rs"]
mod wait;
mod xdp;

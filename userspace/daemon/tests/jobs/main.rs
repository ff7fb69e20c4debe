//! Jobs of trainers through daemons on this machine's loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod access;
mod allreduce;
mod backend;
mod clients;
mod collectives;
mod common;
mod dynamic;
mod failures;
mod hostile;
mod kinds;
mod lab;
mod local;
mod metrics;
mod partner;
mod peer;
mod planes;
mod quotas;
mod ranks;
mod replace;
mod resume;
mod segments;
mod servers;
mod shared;
mod spans;
mod stats;
mod transfers;
mod upgrade;
#[path = "../../../../tests/src/wait.rs"]
mod wait;
mod withdraw;
mod words;

//! Sumac end to end: its programs as an operator starts them, on hosts that are network namespaces.
//!
//! Every test needs root (CAP_NET_ADMIN, CAP_BPF, CAP_SYS_ADMIN, CAP_NET_RAW); without it a test says SKIP,
//! or fails with `REQUIRE_PRIVILEGED=1`. The programs are those of `SUMAC_BIN_DIR`, of `target/release` or of
//! `target/debug`. No test asserts a time: what takes long is printed, what hangs fails after a minute.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test says why it failed by panicking")]

mod addresses;
mod aggregator;
mod allreduce;
mod auto;
mod bounded;
mod calls;
mod chaos;
mod coexistence;
mod collectives;
mod commands;
mod cut;
mod daemon;
mod death;
mod direct;
mod dynamic;
mod faults;
mod foreign;
mod hostile;
mod joining;
mod links;
mod loss;
mod lost;
mod mismatch;
mod notify;
mod numbers;
mod p4;
mod paths;
mod queues;
mod racks;
mod ranks;
mod saturation;
mod udp;
mod upgrade;

//! One target for each parser of bytes that others wrote: no input ends in a panic, and what holds for every
//! input holds.
//!
//! `cargo test -p sumac-fuzz` runs the corpus in `__fuzz__` and a second of random inputs for each; `make
//! fuzz` runs the same targets under libFuzzer. The programs' targets need root, as their tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a target ends by panicking")]

mod api;
mod config;
mod control;
mod npy;
mod packets;
mod programs;
mod wire;

#[path = "../../../nic-agg/tests/support/mod.rs"]
mod support;

/// Checks a property of every input, with the corpus and for a second at random.
macro_rules! fuzz {
    ($property:expr) => {
        bolero::check!()
            .with_test_time(std::time::Duration::from_secs(1))
            .with_iterations(50_000)
            .for_each($property)
    };
}
pub(crate) use fuzz;

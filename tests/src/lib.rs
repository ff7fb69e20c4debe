//! Shared parts of the end-to-end tests: labs that leave nothing, trainers, exact sums, forged frames,
//! foreign traffic.
//!
//! The tests are in `e2e/`. A helper that fails panics with its action: a test has no other use for an error.
#![forbid(unsafe_code)]
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test says why it failed by panicking")]

pub mod copied;
pub mod crew;
pub mod exact;
pub mod forge;
pub mod inject;
pub mod leg;
pub mod npy;
pub mod siege;
pub mod site;
pub mod stats;
pub mod traffic;
pub mod trainer;
pub mod wait;

pub use crew::Crew;
pub use site::Site;
pub use trainer::Trainer;

//! What the end-to-end tests share: labs that leave nothing behind, trainers, exact sums, forged frames, foreign traffic.
//!
//! The tests themselves stand in `e2e/`. A helper that cannot do its work panics with what it tried: a test could do
//! nothing else with an error.
#![forbid(unsafe_code)]
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test says why it failed by panicking")]

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
pub mod wait;

pub use crew::{Crew, Trainer};
pub use site::Site;

//! Memory regions that the daemon and a trainer share.
//!
//! A [`SharedRegion`] maps a sealed memfd. A [`Lease`] grants one operation a range to read and a range to write.

mod lease;
mod region;

pub use lease::{Lease, LeaseError};
pub use region::{RegionError, SharedRegion};

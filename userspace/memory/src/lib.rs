//! Memory regions that the daemon and a trainer share.
//!
//! A [`SharedRegion`] maps a sealed memfd. A [`Lease`] grants one operation a range to read and a range to
//! write. A [`ReadRegion`] is one of the daemon's, which a trainer only reads. A [`Word`] is one by which the
//! daemon signals the end of an operation. A [`Holder`] keeps the writable mappings of a daemon that another
//! one has replaced.

mod held;
mod holder;
mod lease;
mod read;
mod region;
mod word;

pub use held::HeldRegions;
pub use holder::Holder;
pub use lease::{Lease, LeaseError};
pub use read::ReadRegion;
pub use region::{RegionError, SharedRegion};
pub use word::Word;

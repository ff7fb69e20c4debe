//! The time that the caller passes in.

use std::time::Duration;

pub use sumac_wire::Time;

/// A duration in nanoseconds; 584 years at most.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

//! The time of engines without a clock of their own: the caller passes it in.

/// Nanoseconds on a monotonic clock of the caller's choice; all calls on one engine use the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Time(pub u64);

impl Time {
    /// The time `nanos` later; saturates.
    #[must_use]
    pub const fn plus(self, nanos: u64) -> Time {
        Time(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to this; zero when the clock went backwards.
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time in microseconds as packets carry it; wraps every 72 minutes.
    pub const fn stamp(self) -> u32 {
        (self.0 / 1000) as u32
    }
}

//! The clock of the times in completions and spans.

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of the machine share.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither part is negative.
    now.tv_sec.unsigned_abs().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.unsigned_abs())
}

//! The clock that all processes of the machine share.

use nix::time::{ClockId, clock_gettime};

/// Seconds of CLOCK_MONOTONIC, which is Python's `time.monotonic()` too.
pub fn monotonic() -> f64 {
    // The kernel knows this clock on every machine.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0.0, |now| now.tv_sec() as f64 + now.tv_nsec() as f64 * 1e-9)
}

/// Begin and end by that clock.
pub type Span = (f64, f64);

/// From the first one's beginning to the last one's end.
pub(crate) fn around(spans: &[Span]) -> Span {
    let begin = spans.iter().map(|(begin, _)| *begin).fold(f64::INFINITY, f64::min);
    (begin, spans.iter().map(|(_, end)| *end).fold(f64::NEG_INFINITY, f64::max))
}

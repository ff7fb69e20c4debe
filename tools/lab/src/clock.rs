//! The clock that all processes of the machine share, and medians and tails of a few times.

use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Seconds of CLOCK_MONOTONIC, which is Python's `time.monotonic()` too.
pub fn monotonic() -> f64 {
    // The kernel knows this clock on every machine.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0.0, |now| now.tv_sec() as f64 + now.tv_nsec() as f64 * 1e-9)
}

/// Begin and end by that clock.
pub type Span = (f64, f64);

/// From the first one's beginning to the last one's end.
pub fn around(spans: &[Span]) -> Span {
    let begin = spans.iter().map(|(begin, _)| *begin).fold(f64::INFINITY, f64::min);
    (begin, spans.iter().map(|(_, end)| *end).fold(f64::NEG_INFINITY, f64::max))
}

/// Seconds that the measured allreduces took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// The middle one; of an even number the mean of the two in the middle.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// 99 of 100 are at most this long, by nearest rank: with fewer than 100 it is the longest.
    pub p99: f64,
}

/// Seconds with four decimals; with six where those would hide the time of a small sum.
pub fn seconds(time: f64) -> String {
    if time < 0.01 { format!("{time:.6}") } else { format!("{time:.4}") }
}

impl Times {
    /// Returns the statistics of these spans; zeros without any.
    pub fn of_spans(spans: &[Span]) -> Times {
        Times::of(&spans.iter().map(|(begin, end)| end - begin).collect::<Vec<_>>())
    }

    /// Of these times; zeros of none.
    pub fn of(times: &[f64]) -> Times {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Times::default() };
        let rank = (sorted.len() as f64 * 0.99).ceil() as usize;
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Times { median, min, max, p99: sorted[rank.clamp(1, sorted.len()) - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_few_and_many() {
        assert_eq!(Times::of(&[]), Times::default());
        assert_eq!(Times::of(&[3.0, 1.0, 2.0]), Times { median: 2.0, min: 1.0, max: 3.0, p99: 3.0 });
        assert_eq!(Times::of(&[1.0, 2.0]).median, 1.5);
        let many: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(Times::of(&many).p99, 198.0);
    }
}

//! Histograms of durations by powers of two: small, of fixed size, with quantiles exact within a factor of
//! two.

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeStruct};

/// Up to 2^40 ns, 18 minutes; longer ones count as that long.
const BUCKETS: usize = 40;

/// Counts of durations, by powers of two nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// `buckets[i]`: from 2^i ns up to, but not including, 2^(i+1) ns; the first holds zero too.
    buckets: [u64; BUCKETS],
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [0; BUCKETS], sum: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, nanos: u64) {
        self.buckets[(nanos.max(1).ilog2() as usize).min(BUCKETS - 1)] += 1;
        self.sum = self.sum.saturating_add(nanos);
    }

    /// The sum of all durations in nanoseconds.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The quantile at this fraction (0 to 1) in nanoseconds, rounded up to a power of two; 0 when nothing
    /// was counted.
    pub fn quantile(&self, fraction: f64) -> u64 {
        let count = self.count();
        let wanted = ((count as f64 * fraction).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        let reached = self.buckets.iter().position(|bucket| {
            below += bucket;
            below >= wanted
        });
        reached.map_or(0, upper)
    }

    /// The buckets that are not empty: their upper end in nanoseconds, and their count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buckets
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(at, count)| (upper(at), *count))
    }

    pub fn merge(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(bucket, more)| *bucket += more);
        self.sum = self.sum.saturating_add(other.sum);
    }
}

fn upper(bucket: usize) -> u64 {
    2 << bucket
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Histogram", 5)?;
        out.serialize_field("count", &self.count())?;
        out.serialize_field("p50_ns", &self.quantile(0.5))?;
        out.serialize_field("p99_ns", &self.quantile(0.99))?;
        out.serialize_field("sum_ns", &self.sum)?;
        out.serialize_field("buckets", &self.buckets().collect::<Vec<_>>())?;
        out.end()
    }
}

/// From the sum and the buckets.
impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Histogram, D::Error> {
        #[derive(Deserialize)]
        struct Counted {
            sum_ns: u64,
            buckets: Vec<(u64, u64)>,
        }
        let Counted { sum_ns, buckets } = Counted::deserialize(deserializer)?;
        let mut histogram = Histogram { sum: sum_ns, ..Histogram::default() };
        for (upper, count) in buckets {
            let bucket = (upper.max(2).ilog2() as usize - 1).min(BUCKETS - 1);
            histogram.buckets[bucket] = count;
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_a_factor_of_two() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.count(), histogram.quantile(0.5)), (0, 0), "nothing counted");
        (1..=1000u64).for_each(|micros| histogram.record(micros * 1000));
        for (fraction, exact) in [(0.01, 10_000), (0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            let got = histogram.quantile(fraction);
            assert!(got > exact && got <= 2 * exact + 1, "{fraction}: {got}");
        }
        assert_eq!(histogram.count(), 1000);
    }

    #[test]
    fn extremes_have_a_bucket_and_sums_add_up() {
        let mut histogram = Histogram::default();
        histogram.record(0);
        histogram.record(u64::MAX);
        let mut sum = histogram.clone();
        sum.merge(&histogram);
        assert_eq!(sum.buckets().collect::<Vec<_>>(), [(2, 2), (1 << BUCKETS, 2)]);
        let json = serde_json::to_value(&histogram).map(|json| json["buckets"].to_string());
        assert_eq!(json.ok().as_deref(), Some("[[2,1],[1099511627776,1]]"));
    }

    #[test]
    fn a_histogram_is_read_as_it_was_written() {
        let mut histogram = Histogram::default();
        [0, 1, 2, 1000, u64::MAX / 2].into_iter().for_each(|nanos| histogram.record(nanos));
        let read = serde_json::to_string(&histogram).and_then(|text| serde_json::from_str(&text));
        assert_eq!(read.ok(), Some(histogram));
    }
}

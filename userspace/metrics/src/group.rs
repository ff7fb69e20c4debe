//! Declarations of metrics: their names, help texts and units, and where their values come from.

use std::borrow::Borrow;
use std::fmt;
use std::fmt::Debug;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry;
use sumac_job::counters::{CounterKind, DeclaredCounter};

use crate::catalog::Description;

const NANOS: f64 = 1e-9;
/// The bounds of histograms, as powers of two nanoseconds: from 4 us to 17 s. They are the same for all, so
/// that series add up.
const BOUNDS: std::ops::RangeInclusive<u32> = 12..=34;

/// The unit of a metric, a suffix of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    None,
    Bytes,
    Seconds,
}

impl Unit {
    fn registered(self) -> Option<registry::Unit> {
        match self {
            Unit::None => None,
            Unit::Bytes => Some(registry::Unit::Bytes),
            Unit::Seconds => Some(registry::Unit::Seconds),
        }
    }
}

/// Counts of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// The upper bound of each bucket in nanoseconds, and its count.
    pub buckets: Vec<(u64, u64)>,
    /// The sum of all durations in nanoseconds.
    pub sum: u64,
}

impl Histogram {
    /// Returns the counts between the bounds of all histograms, in seconds.
    fn between_bounds(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS.map(|power| 1 << power).chain([u64::MAX]);
        let mut from = 0;
        let between = bounds.map(|bound| {
            let inside = self.buckets.iter().filter(|(upper, _)| (from + 1..=bound).contains(upper));
            let count = inside.map(|(_, count)| count).sum();
            from = bound;
            (if bound == u64::MAX { f64::MAX } else { bound as f64 * NANOS }, count)
        });
        between.collect()
    }

    fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

/// Reads a metric's value from the statistics `S` of one series.
enum Read<S> {
    Counter(fn(&S) -> u64),
    /// A counter of nanoseconds, exported in seconds.
    Nanoseconds(fn(&S) -> u64),
    Gauge(fn(&S) -> f64),
    WholeGauge(fn(&S) -> u64),
    Histogram(fn(&S) -> Histogram),
    /// Labels alone: the value is 1.
    Info,
}

/// One metric.
pub struct Metric<S> {
    name: &'static str,
    help: &'static str,
    unit: Unit,
    read: Read<S>,
}

impl<S> Metric<S> {
    /// A counter; `_total` is appended to its name, after the unit.
    pub const fn counter(name: &'static str, unit: Unit, help: &'static str, read: fn(&S) -> u64) -> Self {
        Metric { name, help, unit, read: Read::Counter(read) }
    }

    /// A counter of seconds; `read` returns nanoseconds.
    pub const fn duration(name: &'static str, help: &'static str, read: fn(&S) -> u64) -> Self {
        Metric { name, help, unit: Unit::Seconds, read: Read::Nanoseconds(read) }
    }

    pub const fn gauge(name: &'static str, unit: Unit, help: &'static str, read: fn(&S) -> f64) -> Self {
        Metric { name, help, unit, read: Read::Gauge(read) }
    }

    /// A gauge without a unit.
    pub const fn whole_gauge(name: &'static str, help: &'static str, read: fn(&S) -> u64) -> Self {
        Metric { name, help, unit: Unit::None, read: Read::WholeGauge(read) }
    }

    /// A histogram of seconds.
    pub const fn histogram(name: &'static str, help: &'static str, read: fn(&S) -> Histogram) -> Self {
        Metric { name, help, unit: Unit::Seconds, read: Read::Histogram(read) }
    }

    /// A metric that has labels alone; `_info` is appended to its name.
    pub const fn info(name: &'static str, help: &'static str) -> Self {
        Metric { name, help, unit: Unit::None, read: Read::Info }
    }

    fn kind(&self) -> MetricType {
        match self.read {
            Read::Counter(_) | Read::Nanoseconds(_) => MetricType::Counter,
            Read::Gauge(_) | Read::WholeGauge(_) => MetricType::Gauge,
            Read::Histogram(_) => MetricType::Histogram,
            Read::Info => MetricType::Info,
        }
    }

    fn describe(&self, labels: &[&'static str]) -> Description {
        let unit = match self.unit {
            Unit::None => "",
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
        };
        let (kind, suffix) = match self.read {
            Read::Counter(_) | Read::Nanoseconds(_) => ("counter", "_total"),
            Read::Gauge(_) | Read::WholeGauge(_) => ("gauge", ""),
            Read::Histogram(_) => ("histogram", ""),
            Read::Info => ("gauge", "_info"),
        };
        Description {
            name: format!("{}{unit}{suffix}", self.name),
            kind,
            labels: labels.to_vec(),
            help: self.help,
        }
    }

    fn write(&self, encoder: &mut MetricEncoder<'_>, statistics: &S) -> fmt::Result {
        match self.read {
            Read::Counter(read) => encoder.encode_counter::<NoLabelSet, u64, u64>(&read(statistics), None),
            Read::Nanoseconds(read) => {
                let seconds = read(statistics) as f64 * NANOS;
                encoder.encode_counter::<NoLabelSet, f64, u64>(&seconds, None)
            }
            Read::Gauge(read) => encoder.encode_gauge(&read(statistics)),
            Read::WholeGauge(read) => encoder.encode_gauge(&(read(statistics) as f64)),
            Read::Histogram(read) => {
                let histogram = read(statistics);
                let (sum, buckets) = (histogram.sum as f64 * NANOS, histogram.between_bounds());
                encoder.encode_histogram::<NoLabelSet>(sum, histogram.count(), &buckets, None)
            }
            Read::Info => Ok(()),
        }
    }
}

/// The metrics of one kind of thing, which have the same labels.
pub struct Group<S: 'static> {
    pub labels: &'static [&'static str],
    pub metrics: &'static [Metric<S>],
}

impl<S> Group<S> {
    /// Returns the metrics of declared counters, which live as long as the program: make each group once.
    pub fn declared(labels: &'static [&'static str], counters: &[DeclaredCounter<S>]) -> Self {
        let metric = |counter: &DeclaredCounter<S>| {
            let DeclaredCounter { metric, kind, help, read } = *counter;
            match kind {
                CounterKind::Counter => Metric::counter(metric, Unit::None, help, read),
                CounterKind::Bytes => Metric::counter(metric, Unit::Bytes, help, read),
                CounterKind::Gauge => Metric::whole_gauge(metric, help, read),
            }
        };
        Group { labels, metrics: counters.iter().map(metric).collect::<Vec<_>>().leak() }
    }

    /// Returns the descriptions of the metrics.
    pub fn describe(&self) -> impl Iterator<Item = Description> {
        self.metrics.iter().map(|metric| metric.describe(self.labels))
    }

    /// Writes all metrics: of each thing its labels' values, in the order of the labels, and its statistics.
    pub fn encode(&self, encoder: &mut Encoder<'_>, things: &[(Vec<String>, impl Borrow<S>)]) -> fmt::Result {
        if things.is_empty() {
            return Ok(());
        }
        self.metrics.iter().try_for_each(|metric| {
            let unit = metric.unit.registered();
            let mut metrics =
                encoder.0.encode_descriptor(metric.name, metric.help, unit.as_ref(), metric.kind())?;
            things.iter().try_for_each(|(values, statistics)| {
                let values = values.iter().map(|value| escape(value));
                let labels: Vec<_> = self.labels.iter().copied().zip(values).collect();
                match metric.read {
                    Read::Info => metrics.encode_info(&labels),
                    _ if labels.is_empty() => metric.write(&mut metrics, statistics.borrow()),
                    _ => metric.write(&mut metrics.encode_family(&labels)?, statistics.borrow()),
                }
            })
        })
    }
}

/// Escapes a label's value, which the encoder writes as it is.
fn escape(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

/// The destination of one scrape.
pub struct Encoder<'a>(DescriptorEncoder<'a>);

/// A program whose metrics are scraped.
pub trait Encode: Debug + Send + Sync + 'static {
    /// Writes all metrics; blocks at most as long as a scrape may take.
    fn encode(&self, encoder: &mut Encoder<'_>) -> fmt::Result;
}

/// A scraped program, in the form that the registry takes.
#[derive(Debug)]
pub(crate) struct Source<T>(pub(crate) T);

impl<T: Encode> Collector for Source<T> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.encode(&mut Encoder(encoder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_between_the_same_bounds() {
        let histogram = Histogram { buckets: vec![(2, 1), (4096, 2), (8192, 4), (1 << 40, 8)], sum: 9 };
        let between = histogram.between_bounds();
        assert_eq!(between.len(), 24);
        assert_eq!(between[..3], [(4.096e-6, 3), (8.192e-6, 4), (1.6384e-5, 0)]);
        assert_eq!(between[23], (f64::MAX, 8));
        assert_eq!(histogram.count(), between.iter().map(|(_, count)| count).sum::<u64>());
    }
}

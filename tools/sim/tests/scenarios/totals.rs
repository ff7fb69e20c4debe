//! Counts of what happened in scenarios, so that a simulation without faults is noticed.

use sumac_sim::{aggregator::Aggregator, link::LinkCounters};
use sumac_transport::EngineStats;
use sumac_wire::Reason;

macro_rules! totals {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts.
        #[derive(Clone, Debug, Default)]
        pub struct Totals {
            pub links: LinkCounters,
            /// Engines of dynamic jobs and of static ones.
            pub dynamic: EngineStats,
            pub fixed: EngineStats,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Totals {
            pub fn add(&mut self, other: &Totals) {
                self.links.merge(&other.links);
                self.dynamic.merge(&other.dynamic);
                self.fixed.merge(&other.fixed);
                $(self.$name += other.$name;)*
            }
        }
    };
}

totals! {
    scenarios,
    two_levels,
    without_aggregator,
    mixed,
    collided,
    flushed,
    reclaimed,
    /// Results that aggregators sent again.
    replied,
    stale,
    duplicates,
    /// Parts of racks that were sent up again.
    forwarded_again,
    /// Chunks that the parameter hosts summed as floats.
    raw,
    /// Workers that reached parameter hosts directly at the end.
    direct,
    partial_sums,
    full_sums,
    /// Results that parameter hosts sent again.
    replies,
    restarts,
    /// Static jobs that began anew.
    begun_anew,
    /// Workers that were handed over to another process.
    handed_over,
    deaths,
    cuts,
    orphans,
    /// Lanes that a replacement took up in the middle of their streams.
    replaced,
    /// Completions with NaN in a chunk.
    carried,
    /// Questions although the network lost nothing.
    needless,
    /// Needless questions beyond those that idle intervals explain: late workers may send in another order.
    overtaken,
    /// Chunks of scenarios in which the network lost nothing.
    lossless,
    /// Operations on few floats, whose sums are exact.
    exact,
}

impl Totals {
    pub fn add_aggregator(&mut self, aggregator: &Aggregator) {
        self.collided += aggregator.counter(Reason::Collided);
        self.flushed += aggregator.counter(Reason::Flushed);
        self.reclaimed += aggregator.counter(Reason::Reclaimed);
        self.replied += aggregator.counter(Reason::Replied);
        self.stale += aggregator.counter(Reason::Stale);
        self.duplicates += aggregator.counter(Reason::Duplicate);
    }

    /// Returns the required contents of a set of mixed scenarios.
    pub fn of_mixed(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("two levels", self.two_levels),
            ("no aggregator", self.without_aggregator),
            ("static beside dynamic", self.mixed),
            ("loss", self.links.lost),
            ("duplication", self.links.duplicated),
            ("reordering", self.links.held_back),
            ("a full queue", self.links.dropped),
            ("a mark", self.links.marked),
            ("a halved window", self.dynamic.halvings),
            ("a loss by order", self.dynamic.suspects_fast),
            ("a loss by timer", self.dynamic.suspects_timer),
            ("a collision", self.collided),
            ("a flush", self.flushed),
            ("a reclaimed slot", self.reclaimed),
            ("a new slot for a position", self.dynamic.remapped),
            ("a sum of floats", self.raw),
            ("a partial sum", self.partial_sums),
            ("a full sum", self.full_sums),
            ("a result sent again", self.replies),
            ("a worker without its aggregator", self.direct),
            ("a failed operation", self.dynamic.operations_failed),
            ("a restart of an aggregator", self.restarts),
            ("a death of an aggregator", self.deaths),
            ("an aggregator cut off from above", self.cuts),
            ("an orphan in a slot", self.orphans),
            ("a stream that a replacement took up", self.replaced),
            ("a static chunk sent again", self.fixed.resent),
            ("a static job's halved window", self.fixed.halvings),
        ]
    }

    /// Returns the required contents of a set of scenarios of one static job.
    pub fn of_alone(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("loss", self.links.lost),
            ("duplication", self.links.duplicated),
            ("reordering", self.links.held_back),
            ("a loss by order", self.fixed.suspects_fast),
            ("a loss by timer", self.fixed.suspects_timer),
            ("a chunk that was only late", self.fixed.suspects_spurious),
            ("a question", self.fixed.questions),
            ("missing elements", self.fixed.missing),
            ("elements sent again", self.fixed.resent),
            ("a lost result sent again", self.replied),
            ("a halved window", self.fixed.halvings),
            ("a stale frame", self.stale),
            ("a failed operation", self.fixed.operations_failed),
            ("a probe of a straggler", self.needless),
            ("a contribution without values", self.fixed.chunks_empty),
            ("zeros that were wanted", self.fixed.empty_wanted),
            ("a reassigned chunk", self.fixed.steals),
            ("an exponent round", self.fixed.exponent_rounds),
            ("a job that began anew", self.begun_anew),
            ("a part sent up again", self.forwarded_again),
            ("NaN on all workers", self.carried),
        ]
    }

    /// Returns the required contents of a set of scenarios of one static job with few values.
    pub fn of_few(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("loss", self.links.lost),
            ("duplication", self.links.duplicated),
            ("reordering", self.links.held_back),
            ("elements sent again", self.fixed.resent),
            ("a failed operation", self.fixed.operations_failed),
            ("a reassigned chunk", self.fixed.steals),
            ("an exponent round", self.fixed.exponent_rounds),
            ("an exact sum", self.exact),
            ("NaN on all workers", self.carried),
        ]
    }
}

/// Prints counts, a line each.
pub fn print(scenarios: u64, counts: &[(&'static str, u64)]) {
    println!("{scenarios} scenarios:");
    counts.iter().for_each(|(name, count)| println!("{count:>9}  {name}"));
}

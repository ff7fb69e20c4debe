//! What happened in one or many scenarios, so that a simulation in which nothing goes wrong is noticed.

use sumac_sim::{aggregator::Aggregator, link::LinkCounters};
use sumac_transport::EngineStats;
use sumac_wire::Reason;

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub scenarios: u64,
    pub two_levels: u64,
    pub without_aggregator: u64,
    pub mixed: u64,
    pub links: LinkCounters,
    /// Engines of dynamic jobs and of static ones.
    pub dynamic: EngineStats,
    pub fixed: EngineStats,
    pub collided: u64,
    pub flushed: u64,
    pub passed: u64,
    pub reclaimed: u64,
    /// Chunks that the parameter hosts summed as floats.
    pub raw: u64,
    /// Workers that parameter hosts heard directly at the end.
    pub direct: u64,
    pub partial_sums: u64,
    pub full_sums: u64,
    pub replies: u64,
    pub restarts: u64,
    pub deaths: u64,
    pub cuts: u64,
    pub orphans: u64,
    /// Lanes whose stream a newcomer has taken up in the middle.
    pub replaced: u64,
}

impl Totals {
    pub fn of_aggregator(&mut self, aggregator: &Aggregator) {
        self.collided += aggregator.counter(Reason::Collided);
        self.flushed += aggregator.counter(Reason::Flushed);
        self.passed += aggregator.counter(Reason::Passed);
        self.reclaimed += aggregator.counter(Reason::Reclaimed);
    }

    pub fn add(&mut self, other: &Totals) {
        self.scenarios += other.scenarios;
        self.two_levels += other.two_levels;
        self.without_aggregator += other.without_aggregator;
        self.mixed += other.mixed;
        self.links.merge(&other.links);
        self.dynamic.merge(&other.dynamic);
        self.fixed.merge(&other.fixed);
        self.collided += other.collided;
        self.flushed += other.flushed;
        self.passed += other.passed;
        self.reclaimed += other.reclaimed;
        self.raw += other.raw;
        self.direct += other.direct;
        self.partial_sums += other.partial_sums;
        self.full_sums += other.full_sums;
        self.replies += other.replies;
        self.restarts += other.restarts;
        self.deaths += other.deaths;
        self.cuts += other.cuts;
        self.orphans += other.orphans;
        self.replaced += other.replaced;
    }

    /// Says what happened, a line each.
    pub fn tell(&self) {
        println!("{} scenarios, in which happened", self.scenarios);
        self.hardships().iter().for_each(|(what, count)| println!("{count:>9}  {what}"));
    }

    /// What a set of scenarios must have gone through to prove anything.
    pub fn hardships(&self) -> Vec<(&'static str, u64)> {
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
            ("a slot taken back", self.reclaimed),
            ("a new slot for a position", self.dynamic.remapped),
            ("a sum of floats", self.raw),
            ("a partial sum", self.partial_sums),
            ("a full sum", self.full_sums),
            ("a result sent again", self.replies),
            ("a worker that went past its aggregator", self.direct),
            ("a restart of an aggregator", self.restarts),
            ("a death of an aggregator", self.deaths),
            ("an aggregator that was cut off from above", self.cuts),
            ("an orphan in a slot", self.orphans),
            ("a stream that a newcomer took up", self.replaced),
            ("a static chunk sent again", self.fixed.resent),
        ]
    }
}

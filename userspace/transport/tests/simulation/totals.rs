//! What happened in one or many scenarios, so that a simulation in which nothing goes wrong is noticed.

use sumac_transport::EngineStats;

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub scenarios: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub held_back: u64,
    pub replies: u64,
    pub stale: u64,
    pub duplicates: u64,
    pub restarts: u64,
    /// Parts of racks that went up again.
    pub forwarded: u64,
    /// Results with NaN in all elements.
    pub carried: u64,
    /// Asked for although the network lost nothing.
    pub needless: u64,
    /// Of these, more than silence explains: where workers are late, they may send in another order than the others.
    pub overtaken: u64,
    /// Chunks of scenarios in which the network lost nothing.
    pub lossless: u64,
    /// All workers' engines together.
    pub engines: EngineStats,
}

impl Totals {
    pub fn add(&mut self, other: &Totals) {
        self.scenarios += other.scenarios;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.held_back += other.held_back;
        self.replies += other.replies;
        self.stale += other.stale;
        self.duplicates += other.duplicates;
        self.restarts += other.restarts;
        self.forwarded += other.forwarded;
        self.carried += other.carried;
        self.needless += other.needless;
        self.overtaken += other.overtaken;
        self.lossless += other.lossless;
        self.engines.merge(&other.engines);
    }

    /// What a set of scenarios must have gone through to prove anything.
    pub fn hardships(&self) -> [(&'static str, u64); 18] {
        let engines = &self.engines;
        [
            ("loss", self.lost),
            ("duplication", self.duplicated),
            ("reordering", self.held_back),
            ("a loss by order", engines.suspects_fast),
            ("a loss by timer", engines.suspects_timer),
            ("a result just before its question", engines.suspects_spared),
            ("a question", engines.questions),
            ("missing elements", engines.missing),
            ("elements sent again", engines.resent),
            ("a lost result sent again", self.replies),
            ("a stale frame", self.stale),
            ("a failed operation", engines.operations_failed),
            ("a probe of a straggler", self.needless),
            ("a stolen chunk", engines.steals),
            ("an exponent round", engines.exponent_rounds),
            ("a restart", self.restarts),
            ("a part sent up again", self.forwarded),
            ("NaN for everybody", self.carried),
        ]
    }
}

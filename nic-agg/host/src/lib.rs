//! The aggregator as a host process.

//! What the tests of the data path share.

pub mod aggregator;
pub mod job;

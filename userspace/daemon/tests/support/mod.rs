//! Shared parts of the tests of the data path.

#[allow(dead_code, reason = "each test file uses a part")]
pub mod aggregator;
#[allow(dead_code, reason = "each test file uses a part")]
pub mod job;

//! What the tests of the data path share.

#[allow(dead_code, reason = "each test file uses a part")]
pub mod aggregator;
#[allow(dead_code, reason = "each test file uses a part")]
pub mod job;

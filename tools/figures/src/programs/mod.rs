//! Nanoseconds per frame of the XDP programs, by the kernel's test run.

pub mod aggregator;
pub mod host;
mod table;
mod test_run;

//! Metrics for Prometheus, of the daemon and of `sumac-agg serve`: descriptions, exposition formats and the
//! HTTP endpoint.
//!
//! Each program declares its metrics as constants ([`Group`]), so that the scrape and the list of metrics in
//! the documentation come from the same place.
#![forbid(unsafe_code)]

mod cache;
mod catalog;
mod connections;
mod endpoint;
mod group;
pub mod process;
mod text;

pub use catalog::{Description, write_json, write_markdown};
pub use endpoint::{MetricsError, listen, serve};
pub use group::{Encode, Encoder, Group, Histogram, Metric, Unit};

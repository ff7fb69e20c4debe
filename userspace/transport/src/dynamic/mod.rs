//! The dynamic mode (ATP): jobs share all slots of an aggregator by hashing, and a parameter host behind it completes what
//! the slots cannot.

mod params;

pub use params::DynamicParams;
pub(crate) use params::{DYNAMIC_ELEMENTS, MAX_WINDOW, MIN_WINDOW};

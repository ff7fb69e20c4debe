//! Figures: simulations of the papers' evaluations, and comparisons with other libraries in a lab.
#![forbid(unsafe_code)]

pub mod bounded;
pub mod compare;
pub mod flood;
pub mod latency;
pub mod simulated;

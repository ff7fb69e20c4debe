//! Figures: simulations of the papers' evaluations, comparisons with other libraries in a lab, times of the
//! XDP programs.
#![forbid(unsafe_code)]

pub mod bounded;
pub mod compare;
pub mod flood;
pub mod latency;
pub mod programs;
pub mod scale;
pub mod simulated;

//! Figures: simulations of the papers' evaluations, and comparisons with other libraries in a lab.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "an internal crate; names carry the meaning")]

pub mod compare;
pub mod simulated;

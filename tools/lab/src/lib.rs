//! Labs of network namespaces: hosts, cables and an aggregator on one machine, what runs in them, and what it
//! took.
//!
//! A lab is made by [`Lab::up`] from a [`LabSpec`] and removed when the value is dropped. What it made is
//! written to `/run/sumac-lab/<name>.json` before it is made, so that [`record::Record::remove`] finds all of
//! it after a crash too.
#![forbid(unsafe_code)]

pub mod cable;
pub mod capture;
pub mod chaos;
pub mod checkout;
pub mod clock;
pub mod command;
pub mod cpu;
pub mod demo;
pub mod deployment;
mod fabric;
pub mod interrupt;
pub mod lab;
pub mod marking;
pub mod namespace;
pub mod options;
pub mod parallel;
pub mod process;
pub mod programs;
pub mod record;
pub mod run;
pub mod shaper;
pub mod spec;
pub mod trace;
pub mod traces;
pub mod units;
mod wiring;

pub use lab::Lab;
pub use spec::{Faults, LabSpec, NearLeaf, Topology};

//! The control plane of an aggregator that is a P4 program on a switch.
//!
//! | module | content |
//! | --- | --- |
//! | [`target`] | the interface to a switch, which P4Runtime and BFRuntime implement |
//! | [`tables`] | the entries of a job, by the control blocks of the program |
//! | `contents`, [`counters`] | all that is in the tables, and what the program has counted |
//! | [`sizes`] | the sizes that the program was compiled with |
//! | [`wiring`] | the file of the switch's ports and the hosts behind them |
//! | [`plane`] | a switch as a data plane of the control plane |
//! | [`p4runtime`] | a switch behind a P4Runtime server: session, program, entries, counters |
//! | [`bfrt`] | a Tofino switch, through BFRuntime |
//! | `blocking` | a runtime for a switch's client |
//! | `number` | numbers that a switch sends |
//! | `proto` | the protocols' messages and clients, generated from their published definitions |
#![forbid(unsafe_code)]

pub mod bfrt;
mod blocking;
mod contents;
pub mod counters;
mod number;
pub mod p4runtime;
pub mod plane;
mod proto;
pub mod sizes;
pub mod tables;
pub mod target;
pub mod wiring;

pub use plane::SwitchPlane;

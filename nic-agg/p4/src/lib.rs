//! The control plane of an aggregator that is a P4 program on a switch.
//!
//! | module | content |
//! | --- | --- |
//! | [`target`] | the interface to a switch, which P4Runtime and BFRuntime implement |
//! | [`p4runtime`] | a switch behind a P4Runtime server: session, program, entries, counters |
//! | [`bfrt`] | a Tofino switch, through BFRuntime |
//! | `blocking` | a runtime for a switch's client |
//! | `proto` | the protocols' messages and clients, generated from their published definitions |
#![forbid(unsafe_code)]

pub mod bfrt;
mod blocking;
pub mod p4runtime;
mod proto;
pub mod target;

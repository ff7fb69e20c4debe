//! Conformance vectors: the packets that an aggregator receives, one after another, with the slot before and
//! after each, and the answer. What implements the aggregator (the eBPF programs, the process over UDP, P4)
//! is run against the same files.
//!
//! | module | content |
//! | --- | --- |
//! | [`record`] | the file: one line of JSON for the jobs, one for each packet |
//! | [`reference`] | the shared decisions of `sumac_wire` around plain vectors of numbers, which write the expectations |
//! | [`packets`] | frames of workers and parents |
//! | [`cases`] | the tables of a slot's cases, by name |
//! | [`random`] | packets drawn from a seed: late, repeated, reordered, hostile and truncated ones among them |
#![forbid(unsafe_code)]

pub mod cases;
pub mod packets;
pub mod random;
pub mod record;
pub mod reference;

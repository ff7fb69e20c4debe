//! Whole jobs in a simulated network: the real engine ([`sumac_transport`]), the real aggregator ([`sumac_agg_host`]) and the real
//! parameter host ([`sumac_parameter`]); cables, time, trainers and everything that goes wrong come from a seed.
//!
//! ```text
//!   trainer ─ engines ─ ring ══ cable ══╗                         a cable, each direction: rate, delay, a queue that
//!   trainer ─ engines ─ ring ══ cable ══╬═ aggregator ══ cable ═══╗   marks and then drops, loss, duplication, reordering
//!   TCP-like flow ══════════════ cable ══╝                        ╠═ aggregator ══ cable ══ parameter host
//!   trainer ─ engines ─ ring ════════════════════════════ cable ══╝
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`events`] | simulated time |
//! | [`packet`], [`link`], [`network`] | packets, cables, and the way from one node to another |
//! | [`world`] | nodes, what arrives at them, and the loop |
//! | [`aggregator`], [`parameter`], [`worker`] | the real parts, at their nodes |
//! | [`job`] | what a control plane would tell them |
//! | [`trainer`] | who gives them work |
//! | [`tcp`] | a flow beside them |
//! | [`figures`] | ATP's figures |
//!
//! `tests/scenarios` drives thousands of jobs through whatever may go wrong and holds every worker's memory against sums
//! computed beside the engine.
#![forbid(unsafe_code)]

pub mod aggregator;
pub mod events;
pub mod figures;
pub mod job;
pub mod link;
pub mod network;
pub mod packet;
pub mod parameter;
pub mod tcp;
pub mod trainer;
pub mod worker;
pub mod world;

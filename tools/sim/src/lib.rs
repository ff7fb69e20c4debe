//! Simulated networks of whole jobs: the engine ([`sumac_transport`]), the host aggregator
//! ([`sumac_agg_host`]) and the parameter host ([`sumac_parameter`]) as they are; cables, time, trainers and
//! faults are simulated from a seed.
//!
//! ```text
//!   trainer - engines - ring == cable ==+                         a cable, each direction: rate, delay, a queue that
//!   trainer - engines - ring == cable ==+= aggregator == cable ==+   marks and then drops, loss, duplication, reordering
//!   TCP-like flow ============== cable ==+                        +== aggregator == cable == parameter host
//!   trainer - engines - ring ============================ cable ==+
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | [`events`] | simulated time |
//! | [`address`], [`packet`], [`link`], [`class_queues`], [`network`] | nodes, packets, cables, ports, routes |
//! | [`conservation`] | the count of packets by fate, which every run checks |
//! | [`world`] | the event loop |
//! | [`aggregator`], [`parameter`], [`worker`] | the system under test, at its nodes |
//! | [`fabric`] | a leaf-spine network |
//! | [`job`] | set-up of a job at all of them |
//! | [`trainer`] | the source of operations |
//! | [`hosts`] | whole hosts: core, engines, coordinator, aggregator, trainers |
//! | [`observer`] | hooks for checks at every packet |
//! | [`tcp`] | a competing flow: NewReno or DCTCP |
#![forbid(unsafe_code)]

pub mod address;
pub mod aggregator;
pub mod class_queues;
pub mod conservation;
pub mod events;
pub mod fabric;
pub mod hosts;
pub mod job;
pub mod link;
pub mod network;
pub mod observer;
pub mod packet;
pub mod parameter;
pub mod tcp;
pub mod trainer;
pub mod worker;
pub mod world;

//! The packet of Sumac and the decisions about it, shared by the eBPF programs, the daemons, the
//! host aggregator, the simulator and the tests.
//!
//! `no_std`, no allocation, no `unsafe`: everything here is a pure function over bytes and small
//! structs, so that it compiles for `bpfel-unknown-none` and passes the verifier.
//!
//! | module | what it decides |
//! | --- | --- |
//! | [`bytes`] | how a packet's bytes are read, in eBPF and in user space |
//! | [`frame`] | Ethernet, 802.1Q, IPv4, UDP: is the frame ours, and where is its payload |
//! | [`header`] | the 64 bytes in front of the elements |
//! | [`checksum`] | the Internet checksum over header and payload |
//! | [`tables`] | what the loaders tell the programs about jobs and workers |
//! | [`admit`] | may this packet of this job go on |
//! | [`budget`] | how many chunks may complete without a worker (bounded loss) |
//! | [`lane_budget`] | the same on a switch, which has few registers |
//! | [`slot`] | what a contribution does to its slot (SwitchML's Algorithm 3) |
//! | [`stream`] | which slot and pool version a chunk takes (SwitchML's Algorithm 4) |
//! | [`dynamic`] | what packets do to a shared slot and at the parameter host (ATP) |
//! | [`time`] | the time that callers pass to engines |
//! | [`tos`] | how packets are tagged for queues and drops |
//! | [`reason`] | the one list of counters |
#![no_std]
#![forbid(unsafe_code)]

pub mod admit;
pub mod budget;
pub mod bytes;
pub mod checksum;
pub mod dynamic;
pub mod frame;
pub mod header;
pub mod lane_budget;
pub mod reason;
pub mod result_paths;
pub mod slot;
pub mod stream;
pub mod tables;
pub mod time;
pub mod tos;
pub mod workers;

pub use header::{Header, Kind};
pub use reason::Reason;
pub use time::Time;

/// Most elements in one packet: a frame of 9,000 bytes.
pub const MAX_ELEMENTS: usize = 2224;
/// Most elements in a frame without frags: 3.4 KB, the largest that a veth takes; longer chunks are handled
/// in pages of this size.
pub const PAGE_ELEMENTS: usize = 832;
/// Elements that a P4 switch adds in one pass: the most in a chunk of a dynamic job there. Static jobs' have
/// several such blocks.
pub const BLOCK_ELEMENTS: usize = 64;
/// Most workers below one aggregator: the width of a bitmap.
pub const MAX_WORKERS: usize = 32;
/// Most lanes of a job: classes times shards.
pub const MAX_LANES: usize = 32;
/// Classes of priority, each with lanes of its own: 0 for priorities 0 to 3, 1 for 4 to 7.
pub const CLASSES: u16 = 2;
/// Most jobs at once on one aggregator; job numbers run from 1 to `MAX_JOBS - 1`. A switch has fewer, XDP
/// programs have as many as they are attached for.
pub const MAX_JOBS: usize = 1024;
/// Most parameter hosts of a job (dynamic mode).
pub const MAX_HOSTS: usize = 4;
/// Most paths (UDP source ports) of a lane.
pub const MAX_PATHS: u16 = 256;
/// Default number of paths: ECMP spreads as many ports almost as evenly as one for each packet.
pub const DEFAULT_PATHS: u16 = 64;
/// The UDP source port of path 0, where a path has a fixed one: the first of RFC 6335's dynamic range.
pub const FIRST_SOURCE_PORT: u16 = 49152;
/// Default UDP destination port of shard 0.
pub const DEFAULT_BASE_PORT: u16 = 48700;
/// Default TCP port of the control plane.
pub const DEFAULT_CONTROL_PORT: u16 = 48600;
/// Default number of elements in a chunk: 1,024 bytes of payload (SwitchML section 5).
pub const DEFAULT_ELEMENTS: u16 = 256;

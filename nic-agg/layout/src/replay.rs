//! The program that replays a whole job from one frame: for measurements, never attached.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const PROGRAM: &str = "sumac_agg_replay";
/// The map with the one [`Replay`].
pub const MAP: &str = "REPLAY";

/// The frames of the replay. The program writes `turn`, the loader the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Replay {
    /// Frames played; the next one is of rank `turn mod world` to chunk `turn / world`. A dynamic job has one
    /// rank more that takes its turn: the parameter host, which sends the chunk's result.
    pub turn: u32,
    pub world: u32,
    /// Slots of the job, a power of two.
    pub slots: u32,
    /// Rank 0's address; rank r has the r-th after it.
    pub first_ip: u32,
    pub aggregator_ip: u32,
    /// A dynamic job's parameter host; zero: the job is static.
    pub host_ip: u32,
    /// Not zero: stop before the pipeline, to measure what the replay itself costs.
    pub dry: u32,
}

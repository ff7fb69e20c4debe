//! The names of memberships, jobs' incarnations, and racks and parameter hosts.

use serde::{Deserialize, Serialize};

/// Names one worker's membership. Random, so that nobody guesses another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemberId(pub u64);

/// Names one incarnation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunId(pub u64);

/// Names a rack's aggregator, or a parameter host, for as long as any job knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RackId(pub u64);

/// A connection of a member. The coordinator counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionNumber(pub(super) u64);

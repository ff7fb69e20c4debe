//! How a job is opened, and how a second client comes into it.

use serde::{Deserialize, Serialize};

use crate::Mode;

/// A job's shared secret; it never shows in logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What floats are multiplied with before they are rounded to the wire's integers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Scale {
    /// The same number always.
    Fixed(f32),
    /// By the word.
    Chosen(Chosen),
}

/// A scale that is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Chosen {
    /// Block floating point: for each packet what its largest value allows.
    Block,
}

impl Scale {
    /// Block floating point.
    pub const BLOCK: Scale = Scale::Chosen(Chosen::Block);
}

/// How floats are written into packets; sums of floats only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// A 32-bit integer each.
    #[default]
    Int32,
    /// A 16-bit integer each: half the bytes, and a larger error.
    Int16,
}

/// What becomes of NaN and infinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NotFinite {
    /// The operation fails on all workers, which name the element.
    #[default]
    Error,
    /// All elements of the packet are NaN on all workers.
    Carry,
}

/// Which operations of the workers belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The first with the first, the second with the second.
    #[default]
    Submission,
    /// Those of one name, in whatever order each worker submits them.
    Name,
}

/// Opens a job as one of its ranks; answered when all ranks have joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// The job's name, the same on all workers.
    pub job: String,
    /// This worker's number, `0..world`.
    pub rank: u16,
    /// How many workers the job has.
    pub world: u16,
    /// The job's secret; without it the daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// The aggregator's control plane, `address:port`; without it the daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregator: Option<String>,
    /// 32-bit words per packet; without it what MTU and aggregator allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elements: Option<u16>,
    /// Slots of each lane of a static job, a power of two; without it as the measured path asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// How the job uses its aggregators; without it statically.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Packets that a lane of a dynamic job may be ahead of its oldest without result, a power of two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Shared slots of each shard that a dynamic job may take; without it all that its aggregators have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_slots: Option<u32>,
    /// Parameter hosts of a dynamic job; without it as many as there are, up to one for each shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter_hosts: Option<u16>,
    /// Whether a dynamic job yields to congestion; without it, it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<bool>,
    /// Whether packets of a dynamic job take slots in turn rather than by a hash; without it, by a hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linear: Option<bool>,
    /// What floats are multiplied with; without it the daemon's default: unless configured block floating point, and
    /// 1e8 in a dynamic job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
    /// How floats are written into packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// What becomes of NaN and infinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_finite: Option<NotFinite>,
    /// Which operations of the workers belong together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Shards that a tensor is spread over; without it as many as all hosts and the aggregator have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u16>,
    /// How long to wait for the others, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
}

impl Open {
    /// Worker `rank` of the `world` workers of `job`, with the daemon's defaults for all else.
    #[must_use]
    pub fn new(job: impl Into<String>, rank: u16, world: u16) -> Open {
        Open {
            job: job.into(),
            rank,
            world,
            secret: None,
            aggregator: None,
            elements: None,
            slots: None,
            mode: None,
            window: None,
            dynamic_slots: None,
            parameter_hosts: None,
            congestion_control: None,
            linear: None,
            scale: None,
            wire: None,
            not_finite: None,
            order: None,
            shards: None,
            timeout_s: None,
        }
    }
}

/// Comes into a job that another connection of this host has opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The job's name.
    pub job: String,
    /// The job's secret; without it only the user who opened the job comes in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_a_number_or_a_word() {
        for (scale, text) in [(Scale::Fixed(0.5), "0.5"), (Scale::BLOCK, "\"block\"")] {
            assert_eq!(serde_json::to_string(&scale).unwrap(), text);
            assert_eq!(serde_json::from_str::<Scale>(text).unwrap(), scale);
        }
        assert!(serde_json::from_str::<Scale>("\"blocks\"").is_err());
    }

    #[test]
    fn a_secret_does_not_show_in_debug_output() {
        assert_eq!(format!("{:?}", Secret("hunter2".into())), "Secret(..)");
    }
}

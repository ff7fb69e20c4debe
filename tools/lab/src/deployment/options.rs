//! Sumac's options in a lab.

use serde::{Deserialize, Serialize};

use crate::units::Probability;

/// The backend and the kind of aggregator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// AF_XDP on the workers, XDP programs on the aggregator
    #[default]
    Xdp,
    /// UDP sockets on the workers, a process on the aggregator
    Udp,
}

impl Backend {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Xdp => "xdp",
            Backend::Udp => "udp",
        }
    }
}

/// Sumac's options in a lab.
#[derive(Clone, Debug, PartialEq)]
pub struct SumacOptions {
    /// The backend and the kind of aggregator.
    pub backend: Backend,
    /// 32-bit words per packet; none: what the MTU allows.
    pub chunk: Option<u16>,
    /// Slots of each lane of a job; none: what the measured path needs.
    pub slots: Option<u32>,
    /// The factor for floats; none: block floating point.
    pub scale: Option<f32>,
    /// Whether packets carry checksums that the aggregator verifies.
    pub checksum: bool,
    /// Whether slots take chunks from each other.
    pub stealing: bool,
    /// Part of the frames that the aggregators drop on purpose.
    pub drop: Probability,
    /// The options of dynamic jobs; none: all jobs are static.
    pub dynamic: Option<DynamicOptions>,
}

/// The options of dynamic jobs in a lab, beside its parameter hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicOptions {
    /// Slots that they share, of each shard of each aggregator.
    pub slots: u32,
    /// Whether there is an aggregator; else a control plane only, and the parameter hosts do all.
    pub has_aggregator: bool,
    /// Workers, the first ones on the only aggregator or on the root itself, whose daemons are parameter hosts too. A
    /// rack's workers cannot be: the rack's aggregator would take the root's sums for its own workers'.
    pub co_located: u16,
    /// Packets that a lane of the lab's own job may be ahead of its oldest without result; none: what the daemon chooses.
    pub window: Option<u32>,
    /// Whether that job yields to congestion.
    pub congestion_control: bool,
    /// Seconds that a dead worker's place in its job stays open; 0: its job fails.
    pub rejoin_grace: u32,
}

impl Default for DynamicOptions {
    fn default() -> DynamicOptions {
        DynamicOptions {
            slots: 1024,
            has_aggregator: true,
            co_located: 0,
            window: None,
            congestion_control: true,
            rejoin_grace: 0,
        }
    }
}

impl SumacOptions {
    /// Whether programs add packets, or a process; not where there is a control plane only.
    pub fn has_aggregator(&self) -> bool {
        self.dynamic.is_none_or(|dynamic| dynamic.has_aggregator)
    }
}

impl Default for SumacOptions {
    fn default() -> SumacOptions {
        SumacOptions {
            backend: Backend::Xdp,
            chunk: None,
            slots: None,
            scale: None,
            checksum: true,
            stealing: true,
            drop: Probability::default(),
            dynamic: None,
        }
    }
}

//! Opening a job, and attaching to one.

use serde::{Deserialize, Serialize};
use sumac_job::JobSpec;
use zeroize::ZeroizeOnDrop;

/// A job's shared secret; never printed in logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ZeroizeOnDrop)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Opens a job as one of its ranks; answered when all ranks have joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// The requested parameters of the job.
    #[serde(flatten)]
    pub spec: JobSpec,
    /// The job's secret; without it the daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// The aggregator's control plane, `address:port`; without it the daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregator: Option<String>,
}

impl Open {
    /// Worker `rank` of the `world` workers of `job`, with the daemon's defaults for all else.
    #[must_use]
    pub fn new(job: impl Into<String>, rank: u16, world: u16) -> Open {
        JobSpec::new(job, rank, world).into()
    }
}

/// Uses the daemon's own secret and aggregator.
impl From<JobSpec> for Open {
    fn from(spec: JobSpec) -> Open {
        Open { spec, secret: None, aggregator: None }
    }
}

/// Withdraws an `open` of this connection, whether it waits or was answered: nobody uses its job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Withdraw {
    /// The id of the `open`.
    pub open: u64,
}

/// Attaches to a job that another connection of this host has opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The job's name.
    pub job: String,
    /// The rank as which to submit; required where this host has several of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u16>,
    /// The job's secret; not required from the user who opened the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_in_debug_output() {
        assert_eq!(format!("{:?}", Secret("hunter2".into())), "Secret(..)");
    }
}

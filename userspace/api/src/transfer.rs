//! Transfers between two workers of a direct job (MLT section 5).

use serde::{Deserialize, Serialize};
use sumac_job::{DType, Importance};

use crate::collective::finite;
use crate::{Failure, Loss};

/// Sends a tensor to another worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostSend {
    /// The job's handle, from `open` or `attach`.
    pub job: u64,
    /// The tensor's region.
    pub region: u64,
    /// The elements' type.
    pub dtype: DType,
    /// The offset of the tensor in its region, in bytes.
    pub offset: u64,
    /// Elements of the tensor.
    pub count: u64,
    /// The rank that receives it.
    pub destination: u16,
    /// The priority, 0 (lowest) to 7.
    #[serde(default)]
    pub priority: u8,
    /// The way in which its packets are told apart by importance.
    #[serde(default, skip_serializing_if = "Importance::is_none")]
    pub importance: Importance,
}

/// Receives a tensor from another worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostRecv {
    /// The job's handle, from `open` or `attach`.
    pub job: u64,
    /// The tensor's region.
    pub region: u64,
    /// The elements' type.
    pub dtype: DType,
    /// The offset of the tensor in its region, in bytes.
    pub offset: u64,
    /// Elements of the tensor.
    pub count: u64,
    /// The rank that sends it.
    pub source: u16,
    /// The fraction of its elements that may be missing.
    #[serde(default, deserialize_with = "finite")]
    pub loss_bound: f32,
    /// The values of elements that are missing.
    #[serde(default)]
    pub missing: MissingValues,
}

/// The values that the missing elements of a received tensor have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingValues {
    /// Zero, for gradients.
    #[default]
    Zero,
    /// The values that the memory had before, for parameters.
    Keep,
}

/// Takes transfers that have ended from the completion queue of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PollCq {
    /// The job's handle.
    pub job: u64,
}

/// A transfer that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferCompletion {
    /// The transfer's handle, from the reply to `post_send` or `post_recv`.
    pub op: u64,
    /// The time from submission to the end, in nanoseconds.
    pub duration_ns: u64,
    /// The elements that are missing, of a `post_recv` with a loss bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// The answer to `poll_cq`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PollCqReply {
    /// Transfers in the order in which they ended.
    pub completions: Vec<TransferCompletion>,
}

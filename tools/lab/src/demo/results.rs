//! The results that trainers write.

use serde::Deserialize;
use serde_json::Value;

/// The result of `tools/demo/train.py`.
#[derive(Clone, Debug, Deserialize)]
pub struct Trained {
    pub epochs: Vec<Epoch>,
    /// Part of the test images that the last network reads right.
    pub accuracy: f64,
    /// A hash of all weights.
    pub weights_sha256: String,
    /// The worker's counters; none where it trained alone.
    #[serde(default)]
    pub job: Value,
    /// The terms of its job; none if it trained alone.
    #[serde(default)]
    pub opened: Value,
}

/// One pass over the training images.
#[derive(Clone, Debug, Deserialize)]
pub struct Epoch {
    /// The number, from 1.
    pub epoch: u32,
    /// Part of the test images that are read right after it.
    pub accuracy: f64,
    pub allreduce_s: Option<Spent>,
    /// The mean part of the values that was missing, of operations with a loss bound.
    #[serde(default)]
    pub lost: Option<f64>,
}

/// Seconds that the operations of an epoch took.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Spent {
    pub count: u64,
    pub median: f64,
    pub max: f64,
}

/// The result of `tools/demo/ddp.py`.
#[derive(Clone, Debug, Deserialize)]
pub struct TorchTrained {
    pub backend: String,
    /// The version of PyTorch.
    pub torch: String,
    /// Elements of the model.
    pub parameters: u64,
    /// Part of the test images that the last model reads right.
    pub accuracy: f64,
    /// The number of steps that were timed.
    pub steps: u64,
    pub step_s: StepTimes,
    /// Sumac's counters of copies, by `sumac.torch.stats`; none with Gloo.
    #[serde(default)]
    pub copies: Option<Copies>,
}

/// Bytes of tensors that were copied into and out of the memory that the daemon shares, and those that lay
/// there.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Copies {
    pub copied_in_bytes: u64,
    pub copied_out_bytes: u64,
    pub in_place_in_bytes: u64,
    pub in_place_out_bytes: u64,
}

impl Copies {
    /// The copies of each tensor.
    pub(super) fn name(self) -> &'static str {
        match (self.copied_in_bytes + self.copied_out_bytes, self.in_place_in_bytes + self.in_place_out_bytes)
        {
            (0, _) => "no copy of a tensor",
            (_, 0) => "one copy of each tensor into shared memory and one out of it",
            _ => "some tensors in shared memory, one copy each way of the others",
        }
    }
}

/// Seconds that a step took, from its images to the updated model.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct StepTimes {
    pub median: f64,
    pub max: f64,
}

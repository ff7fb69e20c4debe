//! The options of a run, and the operation that it repeats.

use std::time::Duration;

use sumac_client::{DType, Reduction, WireFormat};

use crate::capture::CaptureOptions;
use crate::deployment::SumacOptions;
use crate::spec::LabSpec;

#[derive(Clone, Debug)]
pub struct RunOptions {
    pub lab: LabSpec,
    pub sumac: SumacOptions,
    pub operation: Operation,
    /// Jobs that do so at the same time, each with all workers.
    pub jobs: u16,
    pub iterations: u32,
    /// Operations before them, verified and not measured: the first one touches fresh memory everywhere.
    pub warmup: u32,
    /// The seed of the tensors' values.
    pub seed: u64,
    pub limit: Duration,
    /// Whether to count what worker 0 sends in each 10 ms.
    pub trace: bool,
    /// The captures of its frames.
    pub captures: CaptureOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Operation {
    /// Ranks of each worker, each with a trainer and a tensor.
    pub ranks_per_host: u16,
    /// Elements of each rank's tensor.
    pub elements: usize,
    /// Their type.
    pub dtype: DType,
    /// The reduction of the workers' values.
    pub reduction: Reduction,
    /// The wire format of floats.
    pub wire: WireFormat,
    /// The fraction of its elements that each worker may be left out with.
    pub loss_bound: f32,
    /// Whether trainers poll for its end, before they wait for the message.
    pub polled: bool,
}

impl Operation {
    /// The sum of this many float32 elements, as 32-bit integers.
    pub fn sum(elements: usize) -> Operation {
        let (dtype, reduction, wire) = (DType::Float32, Reduction::Sum, WireFormat::Int32);
        Operation { ranks_per_host: 1, elements, dtype, reduction, wire, loss_bound: 0.0, polled: false }
    }
}

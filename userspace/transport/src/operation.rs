//! An operation: the sum of one tensor over all workers of the job.

use std::fmt;

use serde::Serialize;

use crate::{error::OpError, time::Time};

/// The type of a tensor's elements in memory, in the machine's own byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of a single-precision float.
    BF16,
    /// Two's complement, summed exactly.
    I32,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }
}

/// A tensor's memory. Input and output may be the same bytes: an output range is written only when
/// its input is never read again.
pub trait Buffer: Send {
    /// `len` bytes of the input from `byte_offset`. A shorter slice fails the operation.
    fn input(&self, byte_offset: usize, len: usize) -> &[u8];
    /// `len` bytes of the output from `byte_offset`. A shorter slice fails the operation.
    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8];
}

/// Bytes in ordinary memory, summed in place.
impl Buffer for Vec<u8> {
    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        self.get(byte_offset..).map_or(&[], |rest| &rest[..len.min(rest.len())])
    }

    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8] {
        self.get_mut(byte_offset..).map_or(&mut [], |rest| {
            let len = len.min(rest.len());
            &mut rest[..len]
        })
    }
}

/// What is to be summed. All workers submit the same operations in the same order (SwitchML
/// appendix B); only the values differ.
pub struct Operation {
    /// The tensor's number, for messages and for receivers that place by address.
    pub tensor: u32,
    /// The type of its elements.
    pub dtype: DType,
    /// How many elements; at most 2^32 - 1.
    pub count: usize,
    /// 0 (least) to 7 (most urgent): the IPv4 class selector of its packets.
    pub priority: u8,
    /// The fraction of contributions that may be missing; 0 in this mode.
    pub loss_bound: f32,
    /// Its memory.
    pub buffer: Box<dyn Buffer>,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("tensor", &self.tensor)
            .field("dtype", &self.dtype)
            .field("count", &self.count)
            .field("priority", &self.priority)
            .field("loss_bound", &self.loss_bound)
            .finish_non_exhaustive()
    }
}

/// An operation's number: the order of submission, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// The end of an operation. Completions come in the order of submission.
pub struct Completion {
    /// Which operation.
    pub id: OpId,
    /// Whether the output holds the sum.
    pub result: Result<(), OpError>,
    /// Its memory, handed back.
    pub buffer: Box<dyn Buffer>,
    /// When it was submitted.
    pub started: Time,
    /// When its last result arrived, or it failed.
    pub finished: Time,
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.id)
            .field("result", &self.result)
            .field("started", &self.started)
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

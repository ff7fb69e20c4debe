//! Operations of the workers of a job on one tensor, or on a part of it.

use std::{any::Any, collections::BTreeMap, fmt, ops::Range};

use serde::{Deserialize, Serialize};
use sumac_job::{DType, Importance};

use crate::{
    convert::Arithmetic,
    direct_mode::Exchange,
    error::{LocalFault, OpError, SubmitError},
    time::Time,
};

/// A tensor's memory. Input and output may be the same bytes: an output range is written only after the last
/// reading of its input.
pub trait Buffer: Send + Any {
    /// Is called before a range of the input is read, with the same range.
    fn prepare(&mut self, _byte_offset: usize, _len: usize) {}
    /// `len` bytes of the input from `byte_offset`. A shorter slice fails the operation.
    fn input(&self, byte_offset: usize, len: usize) -> &[u8];
    /// `len` bytes of the output from `byte_offset`. A shorter slice fails the operation.
    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8];
    /// Is called when a range of the output has its final values. Ranges may be parts of one that
    /// [`Buffer::output`] has returned.
    fn written(&mut self, _byte_offset: usize, _len: usize) {}
    /// Has the output reach the tensor's memory, where it is collected elsewhere first.
    fn write_back(&mut self) {}
    /// The reason for which a range of the input was too short, or not finite, where the buffer knows more
    /// than the engine.
    fn fault(&self) -> Option<LocalFault> {
        None
    }
}

impl fmt::Debug for dyn Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Buffer")
    }
}

/// A buffer without bytes.
fn no_buffer() -> Box<dyn Buffer> {
    Box::new(Vec::new())
}

/// Bytes in ordinary memory, in place.
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

/// One worker's part in a collective operation. All workers submit the same operations in the same order
/// (SwitchML appendix B); only the values, and the ranges `gives` and `takes`, differ.
#[derive(Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Identifies the operation in every packet: equal on two workers if and only if their operations are.
    pub signature: u32,
    pub dtype: DType,
    /// The function of all workers' values.
    pub arithmetic: Arithmetic,
    pub count: usize,
    /// The index of the first one in the tensor, for packets and messages.
    pub base: u32,
    /// The values that this worker contributes; the others are zeros. All of them for [`Arithmetic::Max`] and
    /// [`Arithmetic::Min`], or none on a server of a direct job.
    pub gives: Range<usize>,
    /// The values whose results it takes.
    pub takes: Range<usize>,
    /// Chunks at its front, counted from its exponent chunk where it has one, that were summed before this
    /// worker replaced another one: they are neither sent nor written. Only for the first operation of
    /// [`Engine::taking_over`](crate::Engine::taking_over), otherwise 0.
    pub skip: u64,
    /// 0 (least) to 7 (most urgent): the class of its packets.
    pub priority: u8,
    /// The way in which its packets are distinguished by importance; may differ between workers.
    pub importance: Importance,
    /// The fraction of its values that each worker may be left out with; for sums and means of floats in
    /// static mode, else 0. The same on all workers.
    pub loss_bound: f32,
    /// The transfers of which the operation consists in a direct job; else none.
    pub exchange: Option<Box<Exchange>>,
    /// No part of the state that one process hands over to another.
    #[serde(skip, default = "no_buffer")]
    pub buffer: Box<dyn Buffer>,
}

impl Operation {
    /// An operation of the least priority on a whole tensor, to which every worker contributes all values,
    /// and takes all results.
    pub fn allreduce(
        signature: u32,
        dtype: DType,
        arithmetic: Arithmetic,
        count: usize,
        buffer: Box<dyn Buffer>,
    ) -> Operation {
        let (gives, takes) = (0..count, 0..count);
        Operation {
            signature,
            dtype,
            arithmetic,
            count,
            base: 0,
            gives,
            takes,
            skip: 0,
            priority: 0,
            importance: Importance::None,
            loss_bound: 0.0,
            exchange: None,
            buffer,
        }
    }

    /// Has these values ready for [`Operation::input`].
    pub(crate) fn prepare(&mut self, values: &Range<usize>) {
        let size = self.dtype.size();
        self.buffer.prepare(values.start * size, values.len() * size);
    }

    /// The bytes of these values, which were prepared.
    pub(crate) fn input(&self, values: &Range<usize>) -> &[u8] {
        let size = self.dtype.size();
        self.buffer.input(values.start * size, values.len() * size)
    }

    pub(crate) fn check(&self) -> Result<(), SubmitError> {
        let Operation { signature, count, base, loss_bound, .. } = *self;
        if u32::try_from(count).is_err() || base.checked_add(count as u32).is_none() {
            return Err(SubmitError::TooLong { signature, count, base });
        }
        for range in [&self.gives, &self.takes] {
            if range.start > range.end || range.end > count {
                return Err(SubmitError::Range { signature, count, range: range.clone() });
            }
        }
        let is_order = matches!(self.arithmetic, Arithmetic::Max | Arithmetic::Min);
        // A server of a direct job gives nothing.
        let is_served = self.exchange.is_some() && self.gives.is_empty();
        if is_order && self.gives != (0..count) && !is_served {
            return Err(SubmitError::Gives { signature, gives: self.gives.clone(), count });
        }
        let is_scaled = !is_order && self.arithmetic != Arithmetic::Bits && self.dtype != DType::Int32;
        let problem = match () {
            () if !(0.0..=1.0).contains(&loss_bound) => "a fraction from 0 to 1 is needed",
            () if self.exchange.is_some() && loss_bound < 1.0 => return Ok(()),
            () if self.exchange.is_some() => "a fraction below 1 is needed",
            () if loss_bound > 0.0 && !is_scaled => "only sums and means of floats can do without a worker",
            () => return Ok(()),
        };
        Err(SubmitError::LossBound { signature, bound: loss_bound, problem })
    }
}

/// The number of an operation in its lane, in the order of submission, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpId(pub u64);

/// The end of an operation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Completion {
    pub id: OpId,
    /// Whether the output holds the sum.
    pub result: Result<(), OpError>,
    /// The first element whose result was written: above 0 after an [`Operation::skip`].
    pub from: usize,
    /// Chunks of its values that were not written: some worker's do not fit integers. A bit for each, from
    /// the lowest of the first byte on. They are the same on all workers, which are to sum their values as
    /// floats ([`sumac_job::NonFinitePolicy::Raw`], static jobs).
    pub left: Vec<u8>,
    /// Contributions that were left out, of an operation with a loss bound.
    pub loss: Option<Loss>,
    #[serde(skip, default = "no_buffer")]
    pub buffer: Box<dyn Buffer>,
    pub started: Time,
    pub finished: Time,
}

/// Contributions that were left out of an operation's results. Values are counted in the whole tensor
/// ([`base`](Operation::base) and index).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The values that each worker may be left out with, at most.
    pub budget: u64,
    /// By rank, the values that the worker was left out with.
    pub by_worker: Vec<u64>,
    /// The ranges of this worker's values that were left out, ascending. In a direct job nothing reports it.
    pub own: Vec<Range<usize>>,
    /// Direct jobs, where `by_worker` counts what did not arrive here: the ranges of the tensor that this
    /// affects.
    pub missing: Vec<Range<usize>>,
}

/// Puts completions into the order of submission, for callers that promise it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct CompletionQueue {
    next: u64,
    ended: BTreeMap<u64, Completion>,
}

impl CompletionQueue {
    pub fn push(&mut self, completion: Completion) {
        self.ended.insert(completion.id.0, completion);
    }

    /// Takes the next completion, once all operations before it have ended.
    pub fn pop(&mut self) -> Option<Completion> {
        let completion = self.ended.remove(&self.next)?;
        self.next += 1;
        Some(completion)
    }
}

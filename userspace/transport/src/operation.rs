//! An operation: what the workers of a job do together with one tensor, or with a part of it.

use std::{fmt, ops::Range};

pub use sumac_job::DType;

use crate::{
    convert::Arithmetic,
    error::{OpError, SubmitError},
    time::Time,
};

/// A tensor's memory. Input and output may be the same bytes: an output range is written only when
/// its input is never read again.
pub trait Buffer: Send {
    /// `len` bytes of the input from `byte_offset`. A shorter slice fails the operation.
    fn input(&self, byte_offset: usize, len: usize) -> &[u8];
    /// `len` bytes of the output from `byte_offset`. A shorter slice fails the operation.
    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8];
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

/// A collective operation, as one worker's part in it. All workers submit the same operations in the same order
/// (SwitchML appendix B); only the values, and who gives and takes which of them, differ.
pub struct Operation {
    /// The same on two workers if and only if they mean the same operation; travels in every packet.
    pub signature: u32,
    /// The type of its values.
    pub dtype: DType,
    /// What is done with the values of all workers.
    pub arithmetic: Arithmetic,
    /// How many values.
    pub count: usize,
    /// Index in the tensor of the first one, for packets and messages.
    pub base: u32,
    /// Those that this worker contributes; where it gives none it contributes zeros. All of them for
    /// [`Arithmetic::Max`] and [`Arithmetic::Min`].
    pub gives: Range<usize>,
    /// Those whose result it wants.
    pub takes: Range<usize>,
    /// Chunks at its front that were summed before this worker took another one's place: they are neither sent nor
    /// written. Of meaning for the first operation of [`Engine::taking_over`](crate::Engine::taking_over) only, else 0.
    pub skip: u64,
    /// 0 (least) to 7 (most urgent): the IPv4 class selector of its packets.
    pub priority: u8,
    /// The fraction of contributions that may be missing; 0 in this mode.
    pub loss_bound: f32,
    /// The memory of its values.
    pub buffer: Box<dyn Buffer>,
}

impl Operation {
    /// An operation on a whole tensor to which every worker gives and from which every worker takes everything, of
    /// the least priority.
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
            loss_bound: 0.0,
            buffer,
        }
    }

    /// Whether this mode can carry it.
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
        if is_order && self.gives != (0..count) {
            return Err(SubmitError::Gives { signature, gives: self.gives.clone(), count });
        }
        if loss_bound != 0.0 {
            return Err(SubmitError::LossBound { signature, bound: loss_bound });
        }
        Ok(())
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("signature", &self.signature)
            .field("dtype", &self.dtype)
            .field("arithmetic", &self.arithmetic)
            .field("count", &self.count)
            .field("base", &self.base)
            .field("gives", &self.gives)
            .field("takes", &self.takes)
            .field("skip", &self.skip)
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
    /// The first element whose result was written, beyond 0 where [`Operation::skip`] was.
    pub from: usize,
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
            .field("from", &self.from)
            .field("started", &self.started)
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

//! Tensors of a host's ranks as the buffer of one worker: its input are the ranks' sums, and its output
//! reaches each of them.

use std::ops::Range;

use sumac_job::NonFinitePolicy;

use super::{LocalSum, Scratch, blocks};
use crate::{
    convert::Arithmetic,
    error::{LocalFault, OpError},
    operation::Buffer,
};

/// The sums that are kept, of a chunk each: more than are between a chunk's first reading, for its exponent,
/// and its last, for its packet.
pub const KEPT_SUMS: usize = 512;

/// The buffer of a worker that has several ranks. Each value is read when the engine reads its chunk, and
/// written when the engine writes it. A sum is made anew where it is not kept.
///
/// Means of integers are not divided: [`JobParams::local_world`](crate::JobParams::local_world).
#[derive(Debug)]
pub struct WorkerBuffer {
    sum: LocalSum,
    /// Both from the first reading on.
    scratch: Option<Box<Scratch>>,
    kept: Vec<Kept>,
    /// The results of a chunk, which go from the cache to all ranks that take them.
    results: Vec<u8>,
    fault: Option<LocalFault>,
}

/// Sums of a range.
#[derive(Clone, Debug, Default)]
struct Kept {
    byte_offset: usize,
    /// 0: no range.
    len: usize,
    bytes: Vec<u8>,
}

impl WorkerBuffer {
    #[must_use]
    pub fn new(mut sum: LocalSum) -> WorkerBuffer {
        sum.arithmetic = contribution(&sum);
        WorkerBuffer { sum, scratch: None, kept: Vec::new(), results: Vec::new(), fault: None }
    }

    fn place(byte_offset: usize, len: usize) -> usize {
        byte_offset / len.max(1) % KEPT_SUMS
    }

    fn range(&self, byte_offset: usize, len: usize) -> Range<usize> {
        let size = self.sum.dtype.size();
        byte_offset / size..(byte_offset + len) / size
    }
}

impl Buffer for WorkerBuffer {
    fn prepare(&mut self, byte_offset: usize, len: usize) {
        let range = self.range(byte_offset, len);
        self.kept.resize_with(KEPT_SUMS, Kept::default);
        let kept = &mut self.kept[WorkerBuffer::place(byte_offset, len)];
        if (kept.byte_offset, kept.len) == (byte_offset, len) {
            return;
        }
        (kept.byte_offset, kept.len) = (byte_offset, len);
        kept.bytes.clear();
        let scratch = self.scratch.get_or_insert_default();
        let fault = append(&mut self.sum, scratch, &range, &mut kept.bytes);
        self.fault = self.fault.take().or(fault);
    }

    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        let kept = self.kept.get(WorkerBuffer::place(byte_offset, len));
        let is_it = |kept: &&Kept| (kept.byte_offset, kept.len) == (byte_offset, len);
        kept.filter(is_it).map_or(&[], |kept| &kept.bytes)
    }

    fn output(&mut self, _byte_offset: usize, len: usize) -> &mut [u8] {
        self.results.resize(len, 0);
        &mut self.results
    }

    fn written(&mut self, byte_offset: usize, len: usize) {
        let range = self.range(byte_offset, len);
        let written = self.sum.write(&self.results, &range);
        self.fault = self.fault.take().or(written.err());
    }

    fn write_back(&mut self) {
        self.sum.parts.iter_mut().for_each(|part| part.buffer.write_back());
    }

    fn fault(&self) -> Option<LocalFault> {
        self.fault.clone()
    }
}

/// The buffer of such a worker in a direct job, whose engine adds to its output and sends from it: in memory
/// of its own, as large as the tensor. The ranks' tensors are read at the first reading.
#[derive(Debug)]
pub struct DirectWorkerBuffer {
    sum: LocalSum,
    values: Vec<u8>,
    is_summed: bool,
    fault: Option<LocalFault>,
}

impl DirectWorkerBuffer {
    #[must_use]
    pub fn new(mut sum: LocalSum) -> DirectWorkerBuffer {
        sum.arithmetic = contribution(&sum);
        DirectWorkerBuffer { sum, values: Vec::new(), is_summed: false, fault: None }
    }
}

impl Buffer for DirectWorkerBuffer {
    fn prepare(&mut self, _byte_offset: usize, _len: usize) {
        if std::mem::replace(&mut self.is_summed, true) {
            return;
        }
        let (whole, bytes) = (0..self.sum.count, self.sum.count * self.sum.dtype.size());
        if self.values.try_reserve_exact(bytes).is_err() {
            let error = OpError::ShortBuffer { index: self.sum.base };
            self.fault = Some(LocalFault { part: None, error });
            return;
        }
        self.fault = append(&mut self.sum, &mut Scratch::default(), &whole, &mut self.values);
        // After a fault the rest counts as zeros, of which nobody has a result.
        self.values.resize(bytes, 0);
    }

    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        self.values.input(byte_offset, len)
    }

    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8] {
        self.values.output(byte_offset, len)
    }

    fn written(&mut self, byte_offset: usize, len: usize) {
        let size = self.sum.dtype.size();
        let range = byte_offset / size..(byte_offset + len) / size;
        let written = match self.values.get(byte_offset..byte_offset + len) {
            Some(results) => self.sum.write(results, &range),
            // The sum has failed.
            None => Ok(()),
        };
        self.fault = self.fault.take().or(written.err());
    }

    fn write_back(&mut self) {
        self.sum.parts.iter_mut().for_each(|part| part.buffer.write_back());
    }

    fn fault(&self) -> Option<LocalFault> {
        self.fault.clone()
    }
}

/// The arithmetic of a worker's contribution. The mean of integers is their sum until it is divided once.
fn contribution(sum: &LocalSum) -> Arithmetic {
    match sum.arithmetic {
        Arithmetic::Mean if sum.dtype == sumac_job::DType::Int32 => Arithmetic::Sum,
        arithmetic => arithmetic,
    }
}

/// Appends the sums of a range. Values that are not finite go to the engine, whose packets say so to the
/// other workers; after any other fault the sums end.
fn append(
    sum: &mut LocalSum,
    scratch: &mut Scratch,
    range: &Range<usize>,
    sums: &mut Vec<u8>,
) -> Option<LocalFault> {
    let mut fault = None;
    for block in blocks(range) {
        if let Err(found) = sum.reduce(scratch, &block) {
            if !matches!(found.error, OpError::NotFinite { .. }) {
                return fault.or(Some(found));
            }
            let policy = std::mem::replace(&mut sum.not_finite, NonFinitePolicy::Carry);
            let summed = sum.reduce(scratch, &block);
            sum.not_finite = policy;
            fault = fault.or(Some(found)).or(summed.err());
        }
        sums.extend_from_slice(&scratch.bytes[..block.len() * sum.dtype.size()]);
    }
    fault
}

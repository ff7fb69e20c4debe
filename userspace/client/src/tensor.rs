//! Tensors in memory shared by trainer and daemon.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::AsFd;
use std::sync::Arc;

use half::{bf16, f16};
use sumac_api::{Command, DType, Register, RegisterReply, ShareRegion};
use sumac_memory::{Lease, ReadRegion, SharedRegion, Word};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::ClientError;
use crate::connection::{Connection, body};
use crate::place::Place;

/// The alignment of tensors in a region, in bytes: no two share a cache line.
const ALIGNMENT: usize = 64;

/// An element type of tensors.
pub trait Element: FromBytes + IntoBytes + Immutable + Copy + sealed::Sealed + 'static {
    /// The type in the API.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($type:ty, $dtype:ident) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
    };
}

element!(f32, Float32);
element!(f16, Float16);
element!(bf16, Bfloat16);
element!(i32, Int32);

/// A registered region, unregistered when its last tensor is dropped.
#[derive(Debug)]
pub(crate) struct Region {
    connection: Arc<Connection>,
    pub(crate) handle: u64,
}

impl Drop for Region {
    fn drop(&mut self) {
        // A drop cannot report errors, and a lost connection releases everything.
        let _ = self.connection.unregister(self.handle);
    }
}

/// The results of a tensor's operations, in memory that all ranks of a host read and none can write: see
/// [`Job::shared`](crate::Job::shared) and [`Tensor::with_result`].
#[derive(Debug)]
pub struct SharedTensor<T> {
    memory: ReadRegion,
    region: Region,
    count: usize,
    element: PhantomData<T>,
}

impl<T: Element> SharedTensor<T> {
    /// Asks for the daemon's region, with the host's other ranks.
    pub(crate) fn new(connection: &Arc<Connection>, job: u64, count: usize) -> Result<Self, ClientError> {
        let size = count.checked_mul(size_of::<T>()).ok_or(ClientError::TooLarge)?;
        let (memory, region) = share(connection, job, size)?;
        Ok(SharedTensor { memory, region, count, element: PhantomData })
    }
}

impl<T: Element> Deref for SharedTensor<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let bytes = self.memory.bytes(0..self.count * size_of::<T>());
        // The mapping has this length, and begins at a page: neither step can fail.
        bytes.and_then(|bytes| <[T]>::ref_from_bytes(bytes).ok()).unwrap_or(&[])
    }
}

/// A slice of shared memory, owned by the trainer until it is submitted to an operation of a [`crate::Job`].
#[derive(Debug)]
pub struct Tensor<T> {
    lease: Lease,
    /// The completion word of its operations, and its offset in the region.
    pub(crate) word: Word,
    pub(crate) word_offset: usize,
    pub(crate) region: Arc<Region>,
    /// The offset in its region, in bytes.
    pub(crate) offset: usize,
    pub(crate) count: usize,
    /// The place of its operations' results, unless they are in place.
    result: Option<SharedTensor<T>>,
    element: PhantomData<T>,
}

impl<T: Element> Deref for Tensor<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let bytes = self.lease.input(0, self.count * size_of::<T>());
        // The lease has this length, and mappings are page-aligned: neither step can fail.
        bytes.and_then(|bytes| <[T]>::ref_from_bytes(bytes).ok()).unwrap_or(&[])
    }
}

impl<T: Element> DerefMut for Tensor<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes = self.lease.output(0, self.count * size_of::<T>());
        bytes.and_then(|bytes| <[T]>::mut_from_bytes(bytes).ok()).unwrap_or(&mut [])
    }
}

impl<T: Element> Tensor<T> {
    /// Has the results of its operations written to memory that all ranks of the host read: once for all of
    /// them. The tensor keeps its own values. All ranks of the host give the same one to an operation, which
    /// is an allreduce, a broadcast or an allgather. [`Pending::is_ended`](crate::Pending::is_ended) does not
    /// see its end.
    #[must_use]
    pub fn with_result(self, result: SharedTensor<T>) -> Tensor<T> {
        Tensor { result: Some(result), ..self }
    }

    /// The results of [`Tensor::with_result`].
    #[must_use]
    pub fn result(&self) -> Option<&SharedTensor<T>> {
        self.result.as_ref()
    }

    /// Returns the tensor with its operations in place again, and its results.
    #[must_use]
    pub fn without_result(mut self) -> (Tensor<T>, Option<SharedTensor<T>>) {
        let result = self.result.take();
        (self, result)
    }

    /// Some elements of the results, where no operation is under way.
    pub(crate) fn result_of(&self, elements: &Range<usize>) -> &[T] {
        let (start, len) = (elements.start * size_of::<T>(), elements.len() * size_of::<T>());
        let bytes = match &self.result {
            Some(result) => result.memory.bytes(start..start + len),
            None => self.lease.input(start, len),
        };
        bytes.and_then(|bytes| <[T]>::ref_from_bytes(bytes).ok()).unwrap_or(&[])
    }

    /// The tensor's place, with that of its results.
    pub(crate) fn place(&self) -> Place {
        let output = self.result.as_ref().map(|result| (result.region.handle, 0));
        Place {
            region: self.region.handle,
            dtype: T::DTYPE,
            offset: self.offset as u64,
            count: self.count as u64,
            // The daemon has a word in the region of the result.
            word: output.is_none().then_some(self.word_offset as u64),
            output,
        }
    }
}

/// Allocates one region with tensors of these lengths.
pub(crate) fn allocate<T: Element>(
    connection: &Arc<Connection>,
    counts: &[usize],
) -> Result<Vec<Tensor<T>>, ClientError> {
    let (starts, end) = layout::<T>(counts).ok_or(ClientError::TooLarge)?;
    // A cache line for each word: the daemon writes it while the trainer polls it.
    let size = counts.len().checked_mul(ALIGNMENT).and_then(|words| words.checked_add(end));
    let size = size.ok_or(ClientError::TooLarge)?;
    let (memory, region) = register(connection, size)?;
    let region = Arc::new(region);
    starts
        .into_iter()
        .zip(counts)
        .zip((end..).step_by(ALIGNMENT))
        .map(|((offset, &count), word_offset)| {
            let range = offset..offset + count * size_of::<T>();
            let lease = memory.lease(range.clone(), range)?;
            let word = memory.word(word_offset)?;
            let region = region.clone();
            Ok(Tensor { lease, word, word_offset, region, offset, count, result: None, element: PhantomData })
        })
        .collect()
}

/// Creates shared memory and registers it.
pub(crate) fn register(
    connection: &Arc<Connection>,
    size: usize,
) -> Result<(SharedRegion, Region), ClientError> {
    let (memory, file) = SharedRegion::create(size)?;
    let command = Command::Register(Register { size: size as u64 });
    let answer = connection.call(command, &[file.as_fd()])?;
    let RegisterReply { region } = body(answer.value)?;
    Ok((memory, Region { connection: connection.clone(), handle: region }))
}

/// Asks for a region of the daemon's that all ranks of the host read, and maps it.
pub(crate) fn share(
    connection: &Arc<Connection>,
    job: u64,
    size: usize,
) -> Result<(ReadRegion, Region), ClientError> {
    // An empty file cannot be mapped.
    let size = size.max(1);
    let answer = connection.call(Command::Share(ShareRegion { job, size: size as u64 }), &[])?;
    let RegisterReply { region } = body(answer.value)?;
    let region = Region { connection: connection.clone(), handle: region };
    let file = answer.fds.first();
    let file = file.ok_or_else(|| ClientError::Protocol("share returned no file descriptor".into()))?;
    Ok((ReadRegion::from_fd(file.as_fd(), size)?, region))
}

/// Returns each tensor's offset and the region's length, in bytes; `None` on overflow.
fn layout<T>(counts: &[usize]) -> Option<(Vec<usize>, usize)> {
    let mut starts = Vec::with_capacity(counts.len());
    let mut end = 0usize;
    for count in counts {
        starts.push(end);
        end = count
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(end))
            .and_then(|end| end.checked_next_multiple_of(ALIGNMENT))?;
    }
    // An empty file cannot be mapped.
    Some((starts, end.max(ALIGNMENT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_do_not_overlap_or_share_cache_lines() {
        let (starts, size) = layout::<f32>(&[1, 16, 17, 0, 3]).unwrap();
        assert_eq!(starts, [0, 64, 128, 256, 256]);
        assert_eq!(size, 320);
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        assert!(layout::<f32>(&[usize::MAX]).is_none());
        assert!(layout::<f32>(&[usize::MAX / 4, usize::MAX / 4]).is_none());
    }

    #[test]
    fn a_region_is_never_empty() {
        assert_eq!(layout::<f32>(&[]).unwrap().1, ALIGNMENT);
    }
}

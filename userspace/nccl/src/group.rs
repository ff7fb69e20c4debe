//! A communicator of NCCL's collective network: a job of all its ranks.
//!
//! Tensors are copied into a slot of the staging memory, and their results out of it. A gather or a
//! reduce-scatter concerns a *window* of the ranks' blocks, one after the other: it is one operation for each
//! block that the window touches.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sumac_client::{ClientError, CollectiveKind, DType, Job, OpOptions, Operand, Operation, Reduction};

use crate::endpoint::Endpoint;
use crate::error::PluginError;
use crate::memory::UserBytes;
use crate::opening::OpenedJob;
use crate::staging::Slot;

/// Pieces begin at cache lines of their own.
const ALIGNMENT: usize = 64;
/// Bytes of an element of operations that compute nothing.
const WORD: usize = 4;

/// A rank of a collective communicator.
#[derive(Debug)]
pub(crate) struct Group {
    rank: usize,
    world: usize,
    state: Mutex<GroupState>,
}

#[derive(Debug)]
struct GroupState {
    endpoint: Endpoint,
    requests: HashMap<u64, CollRequest>,
    next: u64,
}

/// A request on its way: it has ended when its operations have.
#[derive(Debug)]
struct CollRequest {
    slot: Slot,
    operations: Vec<Operation>,
    /// Results: offsets in the slot, and NCCL's memory for them.
    results: Vec<(usize, UserBytes)>,
    /// The request's size, for NCCL.
    bytes: usize,
}

/// A reduction of elements of a type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reducing {
    pub(crate) dtype: DType,
    pub(crate) reduction: Reduction,
}

/// A window of the ranks' blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) bytes_per_rank: usize,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Group {
    pub(crate) fn new(rank: usize, world: usize, opened: OpenedJob) -> Result<Group, PluginError> {
        let endpoint = Endpoint::new(format!("collective rank {rank} of {world}"), opened)?;
        let state = GroupState { endpoint, requests: HashMap::new(), next: 0 };
        Ok(Group { rank, world, state: Mutex::new(state) })
    }

    /// Begins a reduction over all ranks; `None` if too many requests are on their way.
    pub(crate) fn allreduce(
        &self,
        input: UserBytes,
        output: UserBytes,
        reducing: Reducing,
    ) -> Result<Option<u64>, PluginError> {
        let mut state = self.state();
        let Some(slot) = state.slot(input.length, 1)? else { return Ok(None) };
        slot.copy_in(0, input);
        state.endpoint.counters.copied_in(input.length);
        let piece = Piece { rank: 0, in_window: 0..input.length, staged: 0 };
        let submitted = piece.submit(state.endpoint.job()?, &slot, Submission::Allreduce(reducing));
        let operations = match submitted {
            Ok(operation) => vec![operation],
            Err(error) => return Err(state.endpoint.fail(error)),
        };
        Ok(Some(state.insert(CollRequest {
            slot,
            operations,
            results: vec![(0, output)],
            bytes: input.length,
        })))
    }

    /// Begins to gather a window. `own` is the begin of this rank's bytes of it, `parts` the memory for the
    /// window.
    pub(crate) fn allgather(
        &self,
        own: UserBytes,
        parts: &[UserBytes],
        window: Window,
    ) -> Result<Option<u64>, PluginError> {
        let (pieces, staged_bytes) = pieces(window, self.world)?;
        let mut state = self.state();
        let Some(slot) = state.slot(staged_bytes, pieces.len())? else { return Ok(None) };
        if let Some(piece) = pieces.iter().find(|piece| piece.rank == self.rank) {
            slot.copy_in(piece.staged, own.part(0, piece.in_window.len()));
            state.endpoint.counters.copied_in(piece.in_window.len());
        }
        let mut results = Vec::new();
        for piece in &pieces {
            places(parts, &piece.in_window, |offset, user| results.push((piece.staged + offset, user)))?;
        }
        state.begin(slot, &pieces, Submission::Broadcast, results, window.bytes).map(Some)
    }

    /// Begins to reduce a window. `parts` is the memory of the window, `own` the memory for this rank's bytes
    /// of it.
    pub(crate) fn reduce_scatter(
        &self,
        parts: &[UserBytes],
        own: UserBytes,
        window: Window,
        reducing: Reducing,
    ) -> Result<Option<u64>, PluginError> {
        let (pieces, staged_bytes) = pieces(window, self.world)?;
        let size = reducing.dtype.size();
        if let Some(piece) = pieces.iter().find(|piece| piece.in_window.len() % size != 0) {
            let bytes = piece.in_window.len();
            return Err(PluginError::argument(format!("{bytes} bytes are no whole elements of {size}")));
        }
        let mut state = self.state();
        let Some(slot) = state.slot(staged_bytes, pieces.len())? else { return Ok(None) };
        for piece in &pieces {
            places(parts, &piece.in_window, |offset, user| slot.copy_in(piece.staged + offset, user))?;
            state.endpoint.counters.copied_in(piece.in_window.len());
        }
        let own_piece = pieces.iter().find(|piece| piece.rank == self.rank);
        let results = own_piece.map(|piece| (piece.staged, own.part(0, piece.in_window.len())));
        let results = results.into_iter().collect();
        state.begin(slot, &pieces, Submission::Reduce(reducing), results, window.bytes).map(Some)
    }

    /// Returns the request's size once it has ended; its number is then no longer valid.
    pub(crate) fn test(&self, number: u64) -> Result<Option<usize>, PluginError> {
        self.state().test(number)
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        let requests = std::mem::take(&mut state.requests);
        state.endpoint.close(requests.into_values().flat_map(|request| request.operations).collect());
    }

    fn state(&self) -> MutexGuard<'_, GroupState> {
        // A panic leaves at most a request that never ends, in a communicator that the caller closes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GroupState {
    fn slot(&mut self, bytes: usize, operations: usize) -> Result<Option<Slot>, PluginError> {
        let in_flight = self.requests.values().map(|request| request.operations.len()).sum();
        self.endpoint.slot(bytes, operations, in_flight)
    }

    /// Submits an operation for each piece.
    fn begin(
        &mut self,
        slot: Slot,
        pieces: &[Piece],
        submission: Submission,
        results: Vec<(usize, UserBytes)>,
        bytes: usize,
    ) -> Result<u64, PluginError> {
        let job = self.endpoint.job()?;
        let operations: Result<Vec<_>, _> =
            pieces.iter().map(|piece| piece.submit(job, &slot, submission)).collect();
        match operations {
            Ok(operations) => Ok(self.insert(CollRequest { slot, operations, results, bytes })),
            Err(error) => Err(self.endpoint.fail(error)),
        }
    }

    fn insert(&mut self, request: CollRequest) -> u64 {
        self.endpoint.counters.requests += 1;
        self.next += 1;
        self.requests.insert(self.next, request);
        self.next
    }

    fn test(&mut self, number: u64) -> Result<Option<usize>, PluginError> {
        self.endpoint.job()?;
        let Some(request) = self.requests.get_mut(&number) else {
            return Err(PluginError::argument("the request has ended"));
        };
        while let Some(operation) = request.operations.last_mut() {
            match operation.wait(Some(Duration::ZERO)) {
                Ok(true) => drop(request.operations.pop()),
                Ok(false) => return Ok(None),
                Err(error) => return Err(self.endpoint.fail(error)),
            }
        }
        let Some(request) = self.requests.remove(&number) else { return Ok(None) };
        for (offset, user) in request.results {
            request.slot.copy_out(offset, user);
            self.endpoint.counters.copied_out(user.length);
        }
        Ok(Some(request.bytes))
    }
}

/// The part of a window that is of one rank's block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    rank: usize,
    /// Its bytes, counted from the window's begin.
    in_window: Range<usize>,
    /// Its offset in the slot.
    staged: usize,
}

/// The operation that a piece is submitted to.
#[derive(Clone, Copy)]
enum Submission {
    Allreduce(Reducing),
    Broadcast,
    Reduce(Reducing),
}

impl Piece {
    fn submit(&self, job: &Job, slot: &Slot, submission: Submission) -> Result<Operation, ClientError> {
        let root = u16::try_from(self.rank).ok();
        let (kind, root, reducing) = match submission {
            Submission::Allreduce(reducing) => (CollectiveKind::Allreduce, None, Some(reducing)),
            Submission::Broadcast => (CollectiveKind::Broadcast, root, None),
            Submission::Reduce(reducing) => (CollectiveKind::Reduce, root, Some(reducing)),
        };
        let (dtype, size) =
            reducing.map_or((DType::Int32, WORD), |reducing| (reducing.dtype, reducing.dtype.size()));
        let count = self.in_window.len().div_ceil(size) as u64;
        let reduction = reducing.map_or(Reduction::Sum, |reducing| reducing.reduction);
        let operand = Operand { dtype, count, input: slot.location(self.staged), output: None };
        job.submit_collective(kind, root, operand, OpOptions { reduction, ..OpOptions::default() })
    }
}

/// Divides a window by the ranks' blocks. Returns the pieces, and the bytes of the slot that they need.
fn pieces(window: Window, world: usize) -> Result<(Vec<Piece>, usize), PluginError> {
    let Window { bytes_per_rank, offset, bytes } = window;
    let all = bytes_per_rank.checked_mul(world);
    let end = offset.checked_add(bytes).filter(|end| all.is_some_and(|all| *end <= all));
    let Some(end) = end else {
        let message =
            format!("a window of {bytes} bytes at {offset} exceeds {world} blocks of {bytes_per_rank}");
        return Err(PluginError::argument(message));
    };
    let mut found = Vec::new();
    let (mut begin, mut staged) = (offset, 0);
    while begin < end {
        let rank = begin / bytes_per_rank;
        let piece_end = end.min((rank + 1) * bytes_per_rank);
        found.push(Piece { rank, in_window: begin - offset..piece_end - offset, staged });
        staged += (piece_end - begin).next_multiple_of(ALIGNMENT);
        begin = piece_end;
    }
    Ok((found, staged))
}

/// Calls `visit` for the memory of a range of a window that lies in parts: with the offset in the range.
fn places(
    parts: &[UserBytes],
    range: &Range<usize>,
    mut visit: impl FnMut(usize, UserBytes),
) -> Result<(), PluginError> {
    let mut part_begin = 0;
    let mut reached = range.start;
    for part in parts {
        let part_end = part_begin + part.length;
        if reached < range.end && reached < part_end {
            let end = range.end.min(part_end);
            visit(reached - range.start, part.part(reached - part_begin, end - reached));
            reached = end;
        }
        part_begin = part_end;
    }
    if reached < range.end {
        return Err(PluginError::argument("the window's parts are shorter than the window"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(bytes_per_rank: usize, offset: usize, bytes: usize) -> Vec<(usize, Range<usize>, usize)> {
        let (pieces, _) = pieces(Window { bytes_per_rank, offset, bytes }, 3).unwrap();
        pieces.into_iter().map(|piece| (piece.rank, piece.in_window, piece.staged)).collect()
    }

    #[test]
    fn a_window_is_divided_by_the_blocks() {
        assert_eq!(divided(100, 0, 300), [(0, 0..100, 0), (1, 100..200, 128), (2, 200..300, 256)]);
        assert_eq!(divided(100, 50, 60), [(0, 0..50, 0), (1, 50..60, 64)]);
        assert_eq!(divided(100, 200, 4), [(2, 0..4, 0)]);
        assert_eq!(divided(100, 100, 0), []);
        assert_eq!(divided(0, 0, 0), []);
        assert!(pieces(Window { bytes_per_rank: 100, offset: 200, bytes: 101 }, 3).is_err());
        assert!(pieces(Window { bytes_per_rank: usize::MAX, offset: 0, bytes: 1 }, 3).is_err());
        assert!(pieces(Window { bytes_per_rank: 0, offset: 0, bytes: 1 }, 3).is_err());
    }

    #[test]
    fn a_range_is_found_in_parts() {
        let mut bytes = [0u8; 30];
        let at = bytes.as_mut_ptr();
        let parts = [UserBytes::new(at.cast(), 10), UserBytes::new(at.wrapping_add(10).cast(), 20)];
        let mut found = Vec::new();
        places(&parts, &(5..25), |offset, user| found.push((offset, user.length))).unwrap();
        assert_eq!(found, [(0, 5), (5, 15)]);
        assert!(places(&parts, &(5..31), |_, _| ()).is_err());
    }
}

//! All operations of a job as one sequence of chunks, without a gap between them (SwitchML
//! appendix B: the virtual stream buffer).

use std::collections::VecDeque;

use crate::{
    error::{JobError, OpError},
    operation::{Completion, OpId, Operation},
    time::Time,
};

/// Where a chunk's elements are in their tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Index of the first element.
    pub first: usize,
    /// How many elements; fits the packet's 16 bits.
    pub elements: usize,
}

/// An operation that is under way or waits to be collected.
pub(crate) struct Pending {
    /// What was submitted.
    pub operation: Operation,
    first_seq: u64,
    chunks: u64,
    remaining: u64,
    fault: Option<OpError>,
    started: Time,
    finished: Time,
}

impl Pending {
    /// The elements of chunk `seq`, which must be one of this operation's.
    pub fn range(&self, seq: u64, chunk: usize) -> Range {
        let first = (seq - self.first_seq) as usize * chunk;
        Range { first, elements: chunk.min(self.operation.count - first) }
    }

    /// Whether chunk `seq` is one of this operation's.
    fn holds(&self, seq: u64) -> bool {
        seq.wrapping_sub(self.first_seq) < self.chunks
    }

    /// One of this worker's own values is at fault. The first in the tensor is kept.
    pub fn blame(&mut self, fault: OpError) {
        let keep = match (&self.fault, &fault) {
            (Some(kept), new) => own_index(kept).is_some_and(|kept| own_index(new) >= Some(kept)),
            (None, _) => false,
        };
        if !keep {
            self.fault = Some(fault);
        }
    }

    /// Another worker's value in this range is at fault, unless one of this worker's own is.
    pub fn blame_peer(&mut self, range: Range) {
        if self.fault.is_none() {
            let last = range.first + range.elements - 1;
            self.fault = Some(OpError::Peer { tensor: self.operation.tensor, first: range.first, last });
        }
    }

    /// One more result is in place.
    pub fn chunk_done(&mut self, now: Time) {
        self.remaining -= 1;
        self.finished = now;
    }
}

/// The element that an error of this worker names.
fn own_index(fault: &OpError) -> Option<usize> {
    match fault {
        OpError::Saturated { index, .. }
        | OpError::NotFinite { index, .. }
        | OpError::ShortBuffer { index, .. } => Some(*index),
        OpError::Peer { .. } | OpError::Job(_) => None,
    }
}

/// The operations in the order of submission.
pub(crate) struct Stream {
    pending: VecDeque<Pending>,
    /// The number of `pending`'s front.
    front: u64,
    /// The first chunk that no operation has taken.
    end: u64,
    chunk: usize,
}

impl Stream {
    /// An empty stream that begins with chunk `first`, of `chunk` elements each.
    pub fn new(first: u64, chunk: u16) -> Stream {
        Stream { pending: VecDeque::new(), front: 0, end: first, chunk: usize::from(chunk) }
    }

    /// Appends an operation; gives its number and its chunks.
    pub fn push(&mut self, operation: Operation, now: Time) -> (u64, std::ops::Range<u64>) {
        let number = self.front + self.pending.len() as u64;
        let chunks = operation.count.div_ceil(self.chunk) as u64;
        let first_seq = self.end;
        self.end += chunks;
        self.pending.push_back(Pending {
            operation,
            first_seq,
            chunks,
            remaining: chunks,
            fault: None,
            started: now,
            finished: now,
        });
        (number, first_seq..self.end)
    }

    /// The operation with this number, unless it was collected.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Pending> {
        let index = usize::try_from(number.checked_sub(self.front)?).ok()?;
        self.pending.get_mut(index)
    }

    /// The number of the operation that chunk `seq` belongs to, if it was submitted. `near` is
    /// the number of one before it, and most often the answer.
    pub fn find(&mut self, seq: u64, near: u64) -> Option<u64> {
        if seq >= self.end {
            return None;
        }
        if self.get_mut(near).is_some_and(|pending| pending.holds(seq)) {
            return Some(near);
        }
        let index = self.pending.partition_point(|pending| pending.first_seq + pending.chunks <= seq);
        Some(self.front + index as u64)
    }

    /// Whether no operation is under way or waits to be collected.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Fails everything that is not complete.
    pub fn fail(&mut self, why: &JobError, now: Time) {
        for pending in self.pending.iter_mut().filter(|pending| pending.remaining > 0) {
            pending.remaining = 0;
            pending.fault = Some(OpError::Job(why.clone()));
            pending.finished = now;
        }
    }

    /// Fails the operation that was submitted last, also when it has no element.
    pub fn fail_last(&mut self, why: &JobError) {
        if let Some(pending) = self.pending.back_mut() {
            pending.remaining = 0;
            pending.fault = Some(OpError::Job(why.clone()));
        }
    }

    /// Takes the first operation if it is complete.
    pub fn pop_complete(&mut self) -> Option<Completion> {
        if self.pending.front()?.remaining > 0 {
            return None;
        }
        let pending = self.pending.pop_front()?;
        let id = OpId(self.front);
        self.front += 1;
        Some(Completion {
            id,
            result: pending.fault.map_or(Ok(()), Err),
            buffer: pending.operation.buffer,
            started: pending.started,
            finished: pending.finished,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::DType;

    fn operation(count: usize) -> Operation {
        Operation {
            tensor: 9,
            dtype: DType::I32,
            count,
            priority: 0,
            loss_bound: 0.0,
            buffer: Box::new(vec![0u8; count * 4]),
        }
    }

    #[test]
    fn operations_follow_without_gap() {
        let mut stream = Stream::new(100, 10);
        let spans: Vec<_> =
            [25, 0, 10, 1].map(|count| stream.push(operation(count), Time(0))).into_iter().collect();
        assert_eq!(spans, [(0, 100..103), (1, 103..103), (2, 103..104), (3, 104..105)]);
        for (seq, expected) in [(100, Some(0)), (102, Some(0)), (103, Some(2)), (104, Some(3)), (105, None)] {
            for near in 0..4 {
                assert_eq!(stream.find(seq, near), expected, "chunk {seq} near {near}");
            }
        }
        let last = stream.get_mut(0).map(|pending| pending.range(102, 10));
        assert_eq!(last, Some(Range { first: 20, elements: 5 }));
    }

    #[test]
    fn completions_keep_the_order() {
        let mut stream = Stream::new(0, 10);
        stream.push(operation(10), Time(0));
        stream.push(operation(0), Time(1));
        assert!(stream.pop_complete().is_none(), "the empty one waits for its turn");
        stream.get_mut(0).into_iter().for_each(|pending| pending.chunk_done(Time(7)));
        let ids: Vec<_> = std::iter::from_fn(|| stream.pop_complete()).map(|c| (c.id, c.finished)).collect();
        assert_eq!(ids, [(OpId(0), Time(7)), (OpId(1), Time(1))]);
        assert!(stream.is_empty() && stream.get_mut(0).is_none());
        stream.push(operation(5), Time(2));
        assert_eq!(stream.find(1, 0), Some(2));
    }

    #[test]
    fn own_faults_go_before_others_and_the_first_is_kept() {
        let mut stream = Stream::new(0, 10);
        stream.push(operation(100), Time(0));
        let Some(pending) = stream.get_mut(0) else { panic!("just pushed") };
        let own = |index| OpError::NotFinite { tensor: 9, index, value: f32::INFINITY };
        pending.blame_peer(Range { first: 10, elements: 10 });
        assert_eq!(pending.fault, Some(OpError::Peer { tensor: 9, first: 10, last: 19 }));
        pending.blame(own(50));
        pending.blame(own(70));
        pending.blame_peer(Range { first: 0, elements: 10 });
        assert_eq!(pending.fault, Some(own(50)));
        pending.blame(own(20));
        assert_eq!(pending.fault, Some(own(20)));
    }
}

//! All operations of a job as one sequence of chunks, without a gap between them (SwitchML
//! appendix B: the virtual stream buffer).

use std::collections::VecDeque;

use crate::{
    chunk::Span,
    error::{JobError, OpError},
    operation::{Completion, OpId, Operation},
    received::Received,
    time::Time,
};

/// An operation that is under way or waits to be collected.
pub(crate) struct Pending {
    /// What was submitted.
    pub operation: Operation,
    /// Values in a whole chunk.
    chunk: usize,
    first_seq: u64,
    chunks: u64,
    remaining: u64,
    fault: Option<OpError>,
    started: Time,
    finished: Time,
}

impl Pending {
    /// The index of the first value of chunk `seq`, which must be one of this operation's.
    pub fn first(&self, seq: u64) -> usize {
        (seq - self.first_seq) as usize * self.chunk
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

    /// Another worker's value in this span is at fault, unless one of this worker's own is.
    pub fn blame_peer(&mut self, span: Span) {
        let (first, last) = self.elements(span);
        self.fault.get_or_insert(OpError::Peer { first, last });
    }

    /// A sum in this span does not fit, unless one of this worker's own values does not.
    pub fn blame_sum(&mut self, span: Span) {
        let (first, last) = self.elements(span);
        self.fault.get_or_insert(OpError::SumTooLarge { first, last });
    }

    /// The first and the last element of a span in the tensor.
    fn elements(&self, span: Span) -> (usize, usize) {
        let first = self.operation.base as usize + span.first;
        (first, first + span.values - 1)
    }
}

/// The element that an error of this worker names.
fn own_index(fault: &OpError) -> Option<usize> {
    match fault {
        OpError::Saturated { index, .. }
        | OpError::NotFinite { index, .. }
        | OpError::ShortBuffer { index, .. } => Some(*index),
        OpError::Peer { .. } | OpError::SumTooLarge { .. } | OpError::Job(_) => None,
    }
}

/// The operations in the order of submission.
pub(crate) struct Stream {
    pending: VecDeque<Pending>,
    /// The number of `pending`'s front.
    front: u64,
    /// The first chunk that no operation has taken.
    end: u64,
    received: Received,
}

impl Stream {
    /// An empty stream that begins with chunk `first`.
    pub fn new(first: u64) -> Stream {
        Stream { pending: VecDeque::new(), front: 0, end: first, received: Received::new(first) }
    }

    /// Whether an operation may begin with so many of its chunks, of `chunk` values, before the stream's next one.
    pub fn may_skip(&self, operation: &Operation, chunk: usize) -> bool {
        let Operation { skip, count, .. } = *operation;
        let is_first = self.front == 0 && self.pending.is_empty();
        skip == 0 || is_first && skip <= count.div_ceil(chunk) as u64 && skip <= self.end
    }

    /// Appends an operation, in chunks of `chunk` values; gives its number.
    pub fn push(&mut self, operation: Operation, chunk: usize, now: Time) -> u64 {
        let number = self.front + self.pending.len() as u64;
        let chunks = operation.count.div_ceil(chunk) as u64;
        // What is skipped lies before.
        let first_seq = self.end - operation.skip.min(chunks).min(self.end);
        let remaining = first_seq + chunks - self.end;
        self.end = first_seq + chunks;
        self.received.extend(self.end);
        self.pending.push_back(Pending {
            operation,
            chunk,
            first_seq,
            chunks,
            remaining,
            fault: None,
            started: now,
            finished: now,
        });
        number
    }

    /// The operation with this number, unless it was collected.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Pending> {
        let index = usize::try_from(number.checked_sub(self.front)?).ok()?;
        self.pending.get_mut(index)
    }

    /// The operation with this number if it waits for the result of chunk `seq`, one of its own.
    pub fn waiting(&mut self, number: u64, seq: u64) -> Option<&mut Pending> {
        if self.received.contains(seq) {
            return None;
        }
        self.get_mut(number)
    }

    /// The result of chunk `seq` of this operation is in place.
    pub fn chunk_done(&mut self, number: u64, seq: u64, now: Time) {
        self.received.insert(seq);
        if let Some(pending) = self.get_mut(number) {
            pending.remaining = pending.remaining.saturating_sub(1);
            pending.finished = now;
        }
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
        self.received.forget(pending.first_seq + pending.chunks);
        Some(Completion {
            id,
            from: pending.chunk.saturating_mul(pending.operation.skip as usize).min(pending.operation.count),
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
    use crate::{convert::Arithmetic, operation::DType};

    fn operation(count: usize) -> Operation {
        Operation::allreduce(9, DType::Int32, Arithmetic::Sum, count, Box::new(vec![0u8; count * 4]))
    }

    #[test]
    fn operations_follow_without_gap() {
        let mut stream = Stream::new(100);
        let numbers = [25, 0, 10, 1].map(|count| stream.push(operation(count), 10, Time(0)));
        assert_eq!(numbers, [0, 1, 2, 3]);
        for (seq, expected) in [(100, Some(0)), (102, Some(0)), (103, Some(2)), (104, Some(3)), (105, None)] {
            for near in 0..4 {
                assert_eq!(stream.find(seq, near), expected, "chunk {seq} near {near}");
            }
        }
        assert_eq!(stream.get_mut(0).map(|pending| pending.first(102)), Some(20));
        // Other operations have other chunks: two values a word, say.
        stream.push(operation(25), 20, Time(0));
        assert_eq!((stream.find(106, 0), stream.find(107, 0)), (Some(4), None));
        assert_eq!(stream.get_mut(4).map(|pending| pending.first(106)), Some(20));
    }

    #[test]
    fn the_first_operation_may_have_begun_before() {
        let mut stream = Stream::new(100);
        let skipping = |skip| Operation { skip, ..operation(25) };
        assert!(stream.may_skip(&skipping(3), 10) && !stream.may_skip(&skipping(4), 10));
        assert!(!Stream::new(2).may_skip(&skipping(3), 10), "the stream is not that old");
        stream.push(skipping(2), 10, Time(0));
        assert_eq!((stream.find(100, 0), stream.find(101, 0)), (Some(0), None));
        assert_eq!(stream.get_mut(0).map(|pending| pending.first(100)), Some(20));
        assert!(!stream.may_skip(&skipping(1), 10) && stream.may_skip(&skipping(0), 10));
        stream.chunk_done(0, 100, Time(1));
        assert_eq!(stream.pop_complete().map(|completion| completion.from), Some(20));
        let mut stream = Stream::new(100);
        stream.push(skipping(3), 10, Time(0));
        assert_eq!(stream.pop_complete().map(|completion| completion.from), Some(25), "nothing is left");
    }

    #[test]
    fn completions_keep_the_order() {
        let mut stream = Stream::new(0);
        stream.push(operation(10), 10, Time(0));
        stream.push(operation(0), 10, Time(1));
        assert!(stream.pop_complete().is_none(), "the empty one waits for its turn");
        assert!(stream.waiting(0, 0).is_some());
        stream.chunk_done(0, 0, Time(7));
        assert!(stream.waiting(0, 0).is_none());
        let ids: Vec<_> = std::iter::from_fn(|| stream.pop_complete()).map(|c| (c.id, c.finished)).collect();
        assert_eq!(ids, [(OpId(0), Time(7)), (OpId(1), Time(1))]);
        assert!(stream.is_empty() && stream.get_mut(0).is_none());
        stream.push(operation(5), 10, Time(2));
        assert_eq!(stream.find(1, 0), Some(2));
    }

    #[test]
    fn own_faults_go_before_others_and_the_first_is_kept() {
        let mut stream = Stream::new(0);
        stream.push(operation(100), 10, Time(0));
        let Some(pending) = stream.get_mut(0) else { panic!("just pushed") };
        let own = |index| OpError::NotFinite { index, value: f32::INFINITY };
        pending.blame_peer(Span { first: 10, values: 10, words: 10 });
        assert_eq!(pending.fault, Some(OpError::Peer { first: 10, last: 19 }));
        pending.blame(own(50));
        pending.blame(own(70));
        pending.blame_peer(Span { first: 0, values: 10, words: 10 });
        assert_eq!(pending.fault, Some(own(50)));
        pending.blame(own(20));
        assert_eq!(pending.fault, Some(own(20)));
    }
}

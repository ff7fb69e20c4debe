//! All operations of a lane as one sequence of chunks, without a gap between them (SwitchML appendix B: the
//! virtual stream buffer).

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::{
    error::JobError,
    exponents::{AgreedExponents, has_exponent_chunk},
    importance::ImportanceRule,
    operation::{Buffer, Completion, Loss, Operation},
    pending::Pending,
    received::ReceivedChunks,
    time::Time,
};

#[derive(Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "operations cost no allocation, and few have been collected")]
enum Entry {
    Pending(Pending),
    /// It was collected; its chunks end before this one.
    Collected(u64),
}

impl Entry {
    fn end(&self) -> u64 {
        match self {
            Entry::Pending(pending) => pending.end(),
            Entry::Collected(end) => *end,
        }
    }
}

/// The entries from which on operations of direct jobs that others have overtaken are kept apart.
const MOST_ENTRIES: usize = 1024;

/// The operations of a lane, in the order of submission.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stream {
    /// The first is not collected.
    entries: VecDeque<Entry>,
    front: u64,
    /// Operations of a direct job before the front, which last longer than many after them: a transfer that
    /// the other worker has not posted, say.
    overtaken: BTreeMap<u64, Pending>,
    /// The numbers of operations that have ended and are not collected, in the order in which they ended.
    ended: VecDeque<u64>,
    /// The first chunk that no operation has.
    end: u64,
    received: ReceivedChunks,
    pub exponents: AgreedExponents,
}

/// The place of an operation in the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Values in a chunk.
    chunk: usize,
    /// Chunks of values.
    chunks: u64,
    first_seq: u64,
    has_exponents: bool,
}

impl Stream {
    pub fn new(first: u64) -> Stream {
        Stream {
            entries: VecDeque::new(),
            front: 0,
            overtaken: BTreeMap::new(),
            ended: VecDeque::new(),
            end: first,
            received: ReceivedChunks::new(first),
            exponents: AgreedExponents::default(),
        }
    }

    /// The place of an operation that is appended; `None` if the stream cannot skip its first chunks: they
    /// precede the stream.
    pub fn place(&self, operation: &Operation, chunk: usize, is_block_scaled: bool) -> Option<Place> {
        let Operation { skip, count, .. } = *operation;
        let start = self.end.checked_sub(skip)?;
        let chunks = count.div_ceil(chunk) as u64;
        let has_exponents = is_block_scaled && has_exponent_chunk(start as u32, chunks);
        let first_seq = start + u64::from(has_exponents);
        let is_first = self.front == 0 && self.entries.is_empty();
        let may_skip = skip == 0 || is_first && self.end <= first_seq + chunks;
        may_skip.then_some(Place { chunk, chunks, first_seq, has_exponents })
    }

    /// Appends an operation. Returns its number.
    pub fn push(&mut self, mut operation: Operation, place: Place, now: Time) -> u64 {
        let number = self.front + self.entries.len() as u64;
        let Place { chunk, chunks, first_seq, has_exponents } = place;
        // Skipped chunks precede the stream's end.
        let remaining = first_seq + chunks - self.end;
        if has_exponents && first_seq > self.end {
            self.exponents.push(self.end, self.first());
        }
        self.end = first_seq + chunks;
        if remaining == 0 {
            self.ended.push_back(number);
        }
        self.entries.push_back(Entry::Pending(Pending {
            importance: ImportanceRule::of(&mut operation),
            operation,
            ledger: None,
            chunk,
            first_seq,
            has_exponents,
            chunks,
            remaining,
            fault: None,
            left: Vec::new(),
            lost: None,
            started: now,
            finished: now,
        }));
        number
    }

    /// The first chunk of the operations in progress; where there are none, of the next one.
    fn first(&self) -> u64 {
        match self.entries.front() {
            Some(Entry::Pending(pending)) => pending.start(),
            Some(Entry::Collected(end)) => *end,
            None => self.end,
        }
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.front)?).ok()
    }

    pub fn get(&self, number: u64) -> Option<&Pending> {
        let Some(index) = self.index(number) else { return self.overtaken.get(&number) };
        match self.entries.get(index)? {
            Entry::Pending(pending) => Some(pending),
            Entry::Collected(_) => None,
        }
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Pending> {
        let Some(index) = self.index(number) else { return self.overtaken.get_mut(&number) };
        match self.entries.get_mut(index)? {
            Entry::Pending(pending) => Some(pending),
            Entry::Collected(_) => None,
        }
    }

    /// The operation with this number if it waits for the result of chunk `seq`, one of its own.
    pub fn waiting(&self, number: u64, seq: u64) -> Option<&Pending> {
        self.get(number).filter(|_| !self.received.contains(seq))
    }

    /// Records that the result of chunk `seq` of this operation is in the tensor.
    pub fn chunk_done(&mut self, number: u64, seq: u64, now: Time) {
        self.received.insert(seq);
        if let Some(pending) = self.get_mut(number).filter(|pending| pending.remaining > 0) {
            pending.remaining -= 1;
            pending.finished = now;
            if pending.remaining == 0 {
                self.ended.push_back(number);
            }
        }
    }

    /// Records that an operation of a direct job has ended, and what it lost within its bound.
    pub fn finish(&mut self, number: u64, now: Time, loss: Option<Loss>) {
        let Some(pending) = self.get_mut(number) else { return };
        pending.lost = loss;
        pending.finished = now;
        // An operation without chunks has ended when it was pushed.
        if std::mem::take(&mut pending.remaining) > 0 {
            self.ended.push_back(number);
        }
    }

    /// The number of the operation that chunk `seq` belongs to, if it was submitted. `near` is the number of
    /// one before it, and most often the answer.
    pub fn find(&self, seq: u64, near: u64) -> Option<u64> {
        if seq >= self.end {
            return None;
        }
        if self.get(near).is_some_and(|pending| pending.holds(seq)) {
            return Some(near);
        }
        let index = self.entries.partition_point(|entry| entry.end() <= seq);
        Some(self.front + index as u64)
    }

    /// The operations that are not collected.
    pub fn pending(&self) -> impl Iterator<Item = (u64, &Pending)> {
        let entries = (self.front..).zip(&self.entries).filter_map(|(number, entry)| match entry {
            Entry::Pending(pending) => Some((number, pending)),
            Entry::Collected(_) => None,
        });
        self.overtaken.iter().map(|(number, pending)| (*number, pending)).chain(entries)
    }

    /// The memory of those operations.
    pub fn into_buffers(self) -> impl Iterator<Item = (u64, Box<dyn Buffer>)> {
        let entries = (self.front..).zip(self.entries).filter_map(|(number, entry)| match entry {
            Entry::Pending(pending) => Some((number, pending)),
            Entry::Collected(_) => None,
        });
        self.overtaken.into_iter().chain(entries).map(|(number, pending)| (number, pending.operation.buffer))
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.overtaken.is_empty()
    }

    fn pending_mut(&mut self) -> impl Iterator<Item = (u64, &mut Pending)> {
        let entries = (self.front..).zip(&mut self.entries).filter_map(|(number, entry)| match entry {
            Entry::Pending(pending) => Some((number, pending)),
            Entry::Collected(_) => None,
        });
        self.overtaken.iter_mut().map(|(number, pending)| (*number, pending)).chain(entries)
    }

    /// Has their output reach the tensors' memory.
    pub fn write_back(&mut self) {
        self.pending_mut().for_each(|(_, pending)| pending.operation.buffer.write_back());
    }

    pub fn fail(&mut self, why: &JobError, now: Time) {
        let mut ended = std::mem::take(&mut self.ended);
        for (number, pending) in self.pending_mut() {
            if pending.remaining > 0 {
                pending.fail(why);
                pending.finished = now;
                ended.push_back(number);
            }
        }
        self.ended = ended;
    }

    /// Fails the operation that was submitted last, also when it has no element.
    pub fn fail_last(&mut self, why: &JobError) {
        let last = self.front + self.entries.len().saturating_sub(1) as u64;
        let Some(pending) = self.get_mut(last) else { return };
        let has_ended = pending.remaining == 0;
        pending.fail(why);
        if !has_ended {
            self.ended.push_back(last);
        }
    }

    /// Takes the operation that ended first.
    pub fn pop_complete(&mut self) -> Option<Completion> {
        let number = self.ended.pop_front()?;
        let Some(index) = self.index(number) else {
            return Some(self.overtaken.remove(&number)?.complete(number));
        };
        let entry = self.entries.get_mut(index)?;
        let end = entry.end();
        let Entry::Pending(pending) = std::mem::replace(entry, Entry::Collected(end)) else { return None };
        self.trim();
        Some(pending.complete(number))
    }

    /// Drops collected entries from the front. Those of direct jobs have no chunks that are looked for by
    /// number, so an operation that many others have overtaken does not keep their entries.
    fn trim(&mut self) {
        loop {
            let is_long = self.entries.len() > MOST_ENTRIES;
            match self.entries.pop_front() {
                Some(Entry::Collected(end)) => self.received.forget(end),
                Some(Entry::Pending(pending)) if is_long && pending.operation.exchange.is_some() => {
                    self.overtaken.insert(self.front, pending);
                }
                Some(entry) => return self.entries.push_front(entry),
                None => return,
            }
            self.front += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use sumac_job::DType;

    use super::*;
    use crate::{
        chunk::Span,
        convert::Arithmetic,
        direct_mode::{Exchange, Pattern},
        error::OpError,
        operation::OpId,
    };

    fn operation(count: usize) -> Operation {
        Operation::allreduce(9, DType::Int32, Arithmetic::Sum, count, Box::new(vec![0u8; count * 4]))
    }

    fn push(stream: &mut Stream, operation: Operation, chunk: usize, now: Time) -> u64 {
        let Some(place) = stream.place(&operation, chunk, false) else { panic!("no place") };
        stream.push(operation, place, now)
    }

    #[test]
    fn operations_follow_without_gap() {
        let mut stream = Stream::new(100);
        let numbers = [25, 0, 10, 1].map(|count| push(&mut stream, operation(count), 10, Time(0)));
        assert_eq!(numbers, [0, 1, 2, 3]);
        for (seq, expected) in [(100, Some(0)), (102, Some(0)), (103, Some(2)), (104, Some(3)), (105, None)] {
            for near in 0..4 {
                assert_eq!(stream.find(seq, near), expected, "chunk {seq} near {near}");
            }
        }
        assert_eq!(stream.get(0).map(|pending| pending.first(102)), Some(20));
        // Other operations have other chunks, such as those with two values a word.
        push(&mut stream, operation(25), 20, Time(0));
        assert_eq!((stream.find(106, 0), stream.find(107, 0)), (Some(4), None));
        assert_eq!(stream.get(4).map(|pending| pending.first(106)), Some(20));
    }

    #[test]
    fn the_first_operation_may_have_begun_before() {
        let mut stream = Stream::new(100);
        let skipping = |skip| Operation { skip, ..operation(25) };
        let may_skip = |stream: &Stream, skip| stream.place(&skipping(skip), 10, false).is_some();
        assert!(may_skip(&stream, 3) && !may_skip(&stream, 4));
        assert!(!may_skip(&Stream::new(2), 3), "the stream is not that old");
        push(&mut stream, skipping(2), 10, Time(0));
        assert_eq!((stream.find(100, 0), stream.find(101, 0)), (Some(0), None));
        assert_eq!(stream.get(0).map(|pending| pending.first(100)), Some(20));
        assert!(!may_skip(&stream, 1) && may_skip(&stream, 0));
        stream.chunk_done(0, 100, Time(1));
        assert_eq!(stream.pop_complete().map(|completion| completion.from), Some(20));
        let mut stream = Stream::new(100);
        push(&mut stream, skipping(3), 10, Time(0));
        assert_eq!(stream.pop_complete().map(|completion| completion.from), Some(25), "nothing is left");
    }

    #[test]
    fn an_exponent_chunk_comes_before_the_values() {
        let scaled = |stream: &mut Stream, skip, count| {
            let operation = Operation { skip, ..operation(count) };
            let place = stream.place(&operation, 10, true).expect("a place");
            stream.push(operation, place, Time(0))
        };
        let mut stream = Stream::new(0);
        [70, 10, 80].into_iter().for_each(|count| {
            scaled(&mut stream, 0, count);
        });
        let found: Vec<_> = [6, 7, 8, 9, 10, 17].map(|seq| stream.find(seq, 0)).into();
        assert_eq!(
            found,
            [0, 1, 1, 2, 2, 2].map(Some),
            "seven chunks of values, 1 after exponents, 8 after exponents"
        );
        assert_eq!(stream.find(18, 0), None);
        let pending = stream.get(2).expect("operation 2");
        assert!(pending.is_exponents(9) && !pending.is_exponents(10));
        assert_eq!([9, 10, 11].map(|seq| pending.first(seq)), [0, 0, 10]);
        (10..18).for_each(|seq| stream.chunk_done(2, seq, Time(1)));
        assert!(stream.pop_complete().is_none(), "other workers may lack the exponents");
        stream.chunk_done(2, 9, Time(2));
        assert_eq!(stream.pop_complete().map(|end| (end.id, end.from)), Some((OpId(2), 0)));

        // The exponents of the first operation, and two chunks, were summed before.
        for (skip, from, left) in [(0, 0, 9), (1, 0, 8), (3, 20, 6)] {
            let mut stream = Stream::new(100);
            scaled(&mut stream, skip, 80);
            (100..100 + left).for_each(|seq| stream.chunk_done(0, seq, Time(1)));
            assert_eq!(stream.pop_complete().map(|end| end.from), Some(from), "skip {skip}");
        }
    }

    #[test]
    fn operations_complete_when_they_end() {
        let mut stream = Stream::new(0);
        [10, 0, 20].into_iter().for_each(|count| {
            push(&mut stream, operation(count), 10, Time(1));
        });
        let pop = |stream: &mut Stream| stream.pop_complete().map(|end| (end.id.0, end.finished.0));
        assert_eq!((pop(&mut stream), pop(&mut stream)), (Some((1, 1)), None), "the empty one at once");
        stream.chunk_done(2, 1, Time(4));
        stream.chunk_done(2, 2, Time(5));
        assert_eq!((pop(&mut stream), pop(&mut stream)), (Some((2, 5)), None), "before operation 0");
        assert!(!stream.is_empty() && stream.get(2).is_none() && stream.waiting(0, 0).is_some());
        assert_eq!((stream.find(0, 0), stream.find(1, 0)), (Some(0), Some(2)));
        stream.chunk_done(0, 0, Time(7));
        assert!(stream.waiting(0, 0).is_none());
        assert_eq!((pop(&mut stream), stream.is_empty()), (Some((0, 7)), true));
        push(&mut stream, operation(5), 10, Time(8));
        assert_eq!(stream.find(3, 0), Some(3));
    }

    #[test]
    fn an_operation_that_others_overtake_does_not_keep_their_entries() {
        let mut stream = Stream::new(0);
        let pattern = Pattern::Receive { from: 1, keeps: false };
        let direct = || {
            let exchange = Some(Box::new(Exchange { number: 0, pattern: pattern.clone() }));
            Operation { exchange, ..operation(10) }
        };
        let waiting = [push(&mut stream, direct(), 10, Time(0)), push(&mut stream, direct(), 10, Time(0))];
        for _ in 0..5 * MOST_ENTRIES {
            let number = push(&mut stream, direct(), 10, Time(1));
            stream.finish(number, Time(2), None);
            assert_eq!(stream.pop_complete().map(|end| end.id), Some(OpId(number)));
            assert!(stream.entries.len() <= MOST_ENTRIES + 1);
        }
        assert!(waiting.iter().all(|number| stream.get(*number).is_some()) && !stream.is_empty());
        stream.finish(waiting[1], Time(3), None);
        let pop = |stream: &mut Stream| stream.pop_complete().map(|end| (end.id.0, end.result.is_ok()));
        assert_eq!((pop(&mut stream), pop(&mut stream)), (Some((1, true)), None));
        stream.fail(&JobError::Ended { reason: "the test".into() }, Time(4));
        assert_eq!((pop(&mut stream), stream.is_empty()), (Some((0, false)), true));
    }

    #[test]
    fn a_failed_job_ends_all_operations_once() {
        let mut stream = Stream::new(0);
        (0..3).for_each(|_| {
            push(&mut stream, operation(10), 10, Time(0));
        });
        stream.chunk_done(1, 1, Time(1));
        let why = JobError::Ended { reason: "the test".into() };
        stream.fail(&why, Time(2));
        push(&mut stream, operation(0), 10, Time(3));
        stream.fail_last(&why);
        push(&mut stream, operation(5), 10, Time(3));
        stream.fail_last(&why);
        let ends: Vec<_> =
            std::iter::from_fn(|| stream.pop_complete()).map(|end| (end.id.0, end.result.is_ok())).collect();
        assert_eq!(ends, [(1, true), (0, false), (2, false), (3, false), (4, false)]);
        assert!(stream.is_empty());
    }

    #[test]
    fn own_faults_go_before_others_and_the_first_is_kept() {
        let mut stream = Stream::new(0);
        push(&mut stream, operation(100), 10, Time(0));
        let Some(pending) = stream.get_mut(0) else { panic!("just pushed") };
        let own = |index| OpError::NotFinite { index, value: f32::INFINITY };
        pending.peer_fault(Span { first: 10, values: 10, words: 10 });
        assert_eq!(pending.fault, Some(OpError::Peer { first: 10, last: 19 }));
        pending.own_fault(own(50));
        pending.own_fault(own(70));
        pending.peer_fault(Span { first: 0, values: 10, words: 10 });
        assert_eq!(pending.fault, Some(own(50)));
        pending.own_fault(own(20));
        assert_eq!(pending.fault, Some(own(20)));
    }
}

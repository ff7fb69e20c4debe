//! One end of a ring: cursors, and entries in memory that the other end sees too.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{abi::Plain, mapping::Mapping};

/// Where a ring's fields lie in its mapping, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub producer: usize,
    pub consumer: usize,
    pub flags: usize,
    pub entries: usize,
}

/// Which cursor this end moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Producer,
    Consumer,
}

/// One end of a ring. The other is the kernel's, or in tests another `End`.
///
/// Cursors count for ever and wrap at 2^32; an entry's index is its cursor modulo the size, so
/// no value of the other end's cursor can lead outside of the entries.
#[derive(Debug)]
pub(crate) struct End<T> {
    /// Keeps the pointers below valid.
    _memory: Arc<Mapping>,
    mine: NonNull<AtomicU32>,
    theirs: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    side: Side,
    /// The next entry to write or read; ahead of `mine` by what is staged.
    next: u32,
    /// The cursor up to which `next` may go, as of the last look at `theirs`.
    limit: u32,
}

// SAFETY: the pointers lead into `_memory`, which may be used from any thread, and one `End` is the only one of its side.
unsafe impl<T: Plain> Send for End<T> {}

impl<T: Plain> End<T> {
    /// Takes one side of a ring of `size` entries, or `None` when it does not lie inside the mapping, is not
    /// aligned or `size` is no power of two.
    ///
    /// # Safety
    ///
    /// The memory must hold a ring of `T` with this layout, and no other `End` may take the same side of it.
    pub(crate) unsafe fn new(memory: &Arc<Mapping>, at: Layout, size: u32, side: Side) -> Option<End<T>> {
        let cursor = |offset| aligned::<AtomicU32>(memory, offset, 1);
        let (producer, consumer) = (cursor(at.producer)?, cursor(at.consumer)?);
        let (mine, theirs) = match side {
            Side::Producer => (producer, consumer),
            Side::Consumer => (consumer, producer),
        };
        let flags = cursor(at.flags)?;
        let entries = aligned::<T>(memory, at.entries, size as usize)?;
        if !size.is_power_of_two() {
            return None;
        }
        let mut end =
            End { _memory: memory.clone(), mine, theirs, flags, entries, size, side, next: 0, limit: 0 };
        end.next = end.mine().load(Ordering::Relaxed);
        end.refresh();
        Some(end)
    }

    fn mine(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside the mapping, as `new` has seen.
        unsafe { self.mine.as_ref() }
    }

    fn theirs(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside the mapping, as `new` has seen.
        unsafe { self.theirs.as_ref() }
    }

    /// The ring's flags.
    pub(crate) fn flags(&self) -> u32 {
        // SAFETY: aligned and inside the mapping, as `new` has seen.
        unsafe { self.flags.as_ref() }.load(Ordering::Relaxed)
    }

    /// Looks at the other end's cursor: this pairs with the release in the other end's `publish`.
    fn refresh(&mut self) {
        let theirs = self.theirs().load(Ordering::Acquire);
        self.limit = match self.side {
            Side::Producer => theirs.wrapping_add(self.size),
            Side::Consumer => theirs,
        };
    }

    /// Whether there is an entry at `next`. Shared memory is read only when what was known is used up.
    pub(crate) fn has_next(&mut self) -> bool {
        if self.limit == self.next {
            self.refresh();
        }
        self.limit != self.next
    }

    /// Stages an entry of a ring whose producer this is; `false` when there is no room.
    pub(crate) fn push(&mut self, value: T) -> bool {
        debug_assert_eq!(self.side, Side::Producer);
        if !self.has_next() {
            return false;
        }
        // SAFETY: the masked index lies inside the entries, and up to `limit` they are this end's.
        unsafe { self.entries.add(self.index()).write(value) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Takes the next entry of a ring whose consumer this is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        debug_assert_eq!(self.side, Side::Consumer);
        if !self.has_next() {
            return None;
        }
        // SAFETY: the masked index lies inside the entries, every bit pattern is a `T`, and the acquire
        // in `refresh` has made the producer's writes up to `limit` visible.
        let value = unsafe { self.entries.add(self.index()).read() };
        self.next = self.next.wrapping_add(1);
        Some(value)
    }

    fn index(&self) -> usize {
        (self.next & (self.size - 1)) as usize
    }

    /// Moves this end's cursor to `next`: what was pushed or popped so far is the other end's.
    pub(crate) fn publish(&mut self) {
        self.mine().store(self.next, Ordering::Release);
    }

    /// Published entries that the other end has not taken.
    pub(crate) fn pending(&self) -> u32 {
        let published = self.mine().load(Ordering::Relaxed);
        published.wrapping_sub(self.theirs().load(Ordering::Acquire)).min(self.size)
    }
}

/// A pointer to `count` values at `offset`, when they lie inside the mapping and are aligned.
fn aligned<T>(memory: &Mapping, offset: usize, count: usize) -> Option<NonNull<T>> {
    let pointer = memory.at(offset, size_of::<T>().checked_mul(count)?)?.cast::<T>();
    pointer.is_aligned().then_some(pointer)
}

/// Both ends of a ring on plain memory, with cursors that start at `start`.
#[cfg(test)]
pub(crate) fn pair<T: Plain>(size: u32, start: u32) -> (End<T>, End<T>) {
    let at = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };
    let memory = Arc::new(Mapping::anonymous(192 + size as usize * size_of::<T>()).unwrap());
    for offset in [at.producer, at.consumer] {
        let cursor = aligned::<AtomicU32>(&memory, offset, 1).unwrap();
        // SAFETY: aligned and inside; nobody else has the memory yet.
        unsafe { cursor.as_ref() }.store(start, Ordering::Relaxed);
    }
    // SAFETY: fresh memory of this layout, and each side is taken once.
    unsafe {
        let producer = End::new(&memory, at, size, Side::Producer).unwrap();
        (producer, End::new(&memory, at, size, Side::Consumer).unwrap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u8),
        Publish,
        Pop(u8),
        Release,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..20u8).prop_map(Step::Push),
            Just(Step::Publish),
            (0..20u8).prop_map(Step::Pop),
            Just(Step::Release),
        ]
    }

    /// What a ring should do: entries staged, entries on their way, entries read but not released.
    #[derive(Default)]
    struct Oracle {
        staged: VecDeque<u64>,
        sent: VecDeque<u64>,
        read: usize,
        counter: u64,
    }

    proptest! {
        #[test]
        fn behaves_as_a_queue(
            bits in 0..6u32,
            start in prop_oneof![Just(0u32), Just(u32::MAX - 5), any::<u32>()],
            steps in proptest::collection::vec(step(), 0..200),
        ) {
            let size = 1u32 << bits;
            let (mut producer, mut consumer) = pair::<u64>(size, start);
            let mut oracle = Oracle::default();
            for step in steps {
                match step {
                    Step::Push(n) => for _ in 0..n {
                        let used = oracle.staged.len() + oracle.sent.len() + oracle.read;
                        prop_assert_eq!(producer.push(oracle.counter), used < size as usize);
                        if used < size as usize {
                            oracle.staged.push_back(oracle.counter);
                            oracle.counter += 1;
                        }
                    },
                    Step::Publish => {
                        producer.publish();
                        oracle.sent.append(&mut oracle.staged);
                    }
                    Step::Pop(n) => for _ in 0..n {
                        let expected = oracle.sent.pop_front();
                        prop_assert_eq!(consumer.pop(), expected);
                        oracle.read += usize::from(expected.is_some());
                    },
                    Step::Release => {
                        consumer.publish();
                        oracle.read = 0;
                    }
                }
                let unreleased = oracle.sent.len() + oracle.read;
                prop_assert_eq!(producer.pending() as usize, unreleased);
            }
        }
    }

    #[test]
    fn two_threads_keep_the_order() {
        let (mut producer, mut consumer) = pair::<u64>(64, u32::MAX - 1000);
        let writer = std::thread::spawn(move || {
            for value in 0..100_000u64 {
                while !producer.push(value) {
                    std::thread::yield_now();
                }
                producer.publish();
            }
        });
        for expected in 0..100_000u64 {
            let value = loop {
                match consumer.pop() {
                    Some(value) => break value,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
            consumer.publish();
        }
        writer.join().unwrap();
    }

    #[test]
    fn a_ring_outside_its_mapping_is_refused() {
        let memory = Arc::new(Mapping::anonymous(4096).unwrap());
        let good = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };
        let cases = [
            ("fits", good, 256, true),
            ("too many entries", good, 512, false),
            ("not a power of two", good, 255, false),
            ("nothing", good, 0, false),
            ("misaligned", Layout { consumer: 65, ..good }, 256, false),
            ("a cursor outside", Layout { flags: 4096, ..good }, 256, false),
        ];
        for (what, at, size, fits) in cases {
            // SAFETY: plain memory that nobody else uses.
            let end = unsafe { End::<u64>::new(&memory, at, size, Side::Producer) };
            assert_eq!(end.is_some(), fits, "{what}");
        }
    }
}

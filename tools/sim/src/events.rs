//! The event queue: by simulated time, and at one instant in the order of scheduling.

use std::{cmp::Ordering, collections::BinaryHeap};

/// Nanoseconds of simulated time.
pub type Nanos = u64;

pub const MICRO: Nanos = 1_000;
pub const MILLI: Nanos = 1_000_000;
pub const SECOND: Nanos = 1_000_000_000;

/// Pending events.
pub struct Events<E> {
    heap: BinaryHeap<Entry<E>>,
    scheduled: u64,
}

struct Entry<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> Events<E> {
    pub fn new() -> Events<E> {
        Events { heap: BinaryHeap::new(), scheduled: 0 }
    }

    /// Schedules `event` at time `at`.
    pub fn schedule(&mut self, at: Nanos, event: E) {
        self.scheduled += 1;
        self.heap.push(Entry { at, number: self.scheduled, event });
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|entry| entry.at)
    }
}

impl<E> Default for Events<E> {
    fn default() -> Events<E> {
        Events::new()
    }
}

impl<E> Entry<E> {
    fn key(&self) -> (Nanos, u64) {
        (self.at, self.number)
    }
}

// The heap pops its largest entry: the earliest.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Entry<E>) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Entry<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Entry<E>) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_pop_by_time_then_by_order_of_scheduling() {
        let mut events = Events::new();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            events.schedule(at, event);
        }
        assert_eq!(events.next_at(), Some(3));
        let order: Vec<char> = std::iter::from_fn(|| events.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, ['a', 'b', 'c', 'd']);
    }
}

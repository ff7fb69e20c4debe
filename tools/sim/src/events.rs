//! The event queue: by simulated time, and at one instant in the order of scheduling.

use std::collections::BTreeMap;

/// Nanoseconds of simulated time.
pub type Nanos = u64;

pub const MICRO: Nanos = 1_000;
pub const MILLI: Nanos = 1_000_000;
pub const SECOND: Nanos = 1_000_000_000;

/// Pending events, by their time and number.
pub struct Events<E> {
    pending: BTreeMap<(Nanos, u64), E>,
    scheduled: u64,
}

impl<E> Events<E> {
    /// Schedules `event` at time `at`.
    pub fn schedule(&mut self, at: Nanos, event: E) {
        self.scheduled += 1;
        self.pending.insert((at, self.scheduled), event);
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        self.pending.pop_first().map(|((at, _), event)| (at, event))
    }

    /// All pending events, by time.
    pub fn pending(&self) -> impl Iterator<Item = &E> {
        self.pending.values()
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<Nanos> {
        self.pending.first_key_value().map(|((at, _), _)| *at)
    }
}

impl<E> Default for Events<E> {
    fn default() -> Events<E> {
        Events { pending: BTreeMap::new(), scheduled: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_pop_by_time_then_by_order_of_scheduling() {
        let mut events = Events::default();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            events.schedule(at, event);
        }
        assert_eq!(events.next_at(), Some(3));
        let order: Vec<char> = std::iter::from_fn(|| events.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, ['a', 'b', 'c', 'd']);
    }
}

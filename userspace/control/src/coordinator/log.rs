//! The events of a job: one list for all members, of which each has received a first part.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::events::Event;

/// Bytes of events that are kept for members that have not received them.
const MAX_BYTES: usize = 4 << 20;
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct EventLog {
    /// The number of events before the first that is kept.
    first: u64,
    events: VecDeque<Event>,
    bytes: usize,
}

impl EventLog {
    /// Adds an event. `false`: a member does not receive, and there is no room.
    pub fn push(&mut self, event: Event) -> bool {
        let bytes = event.bytes();
        if self.bytes + bytes > MAX_BYTES {
            return false;
        }
        self.bytes += bytes;
        self.events.push_back(event);
        true
    }

    pub fn forget(&mut self, received: u64) {
        while self.first < received
            && let Some(event) = self.events.pop_front()
        {
            self.first += 1;
            self.bytes -= event.bytes();
        }
    }

    pub fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// Returns the first event from number `from` on that is kept, with its number.
    pub fn get(&self, from: u64) -> Option<(u64, &Event)> {
        let number = from.max(self.first);
        let at = usize::try_from(number - self.first).ok()?;
        self.events.get(at).map(|event| (number, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(name: &str) -> Event {
        Event::Released(name.into())
    }

    #[test]
    fn members_receive_from_where_they_are() {
        let mut log = EventLog::default();
        for name in ["a", "b", "c"] {
            assert!(log.push(released(name)));
        }
        assert_eq!(log.get(1), Some((1, &released("b"))));
        log.forget(2);
        assert_eq!(log.get(0), Some((2, &released("c"))));
        assert_eq!(log.get(99), None);
        log.forget(99);
        assert_eq!((log.end(), log.bytes), (3, 0));
    }

    #[test]
    fn events_without_receivers_are_bounded() {
        let mut log = EventLog::default();
        let long = "x".repeat(1000);
        let kept = (0..100_000).take_while(|_| log.push(released(&long))).count();
        assert_eq!(kept, MAX_BYTES / released(&long).bytes());
        log.forget(1);
        assert!(log.push(released(&long)));
    }
}

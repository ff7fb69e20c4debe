//! What the members of a job hear: one list for all, of which each knows a first part.

use std::collections::VecDeque;

use crate::post::Notice;

/// Bytes of texts that are kept for members who have not heard them.
const MOST_BYTES: usize = 4 << 20;
/// Bytes that one event takes beside its text.
const EVENT_BYTES: usize = 64;

/// What all members of a job hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member's notice.
    Notice {
        /// Whose.
        rank: u16,
        /// What.
        notice: Notice,
    },
    /// The operation of this name is the next.
    Released(String),
}

impl Event {
    /// Its size in memory and, not much less, on the wire.
    fn bytes(&self) -> usize {
        EVENT_BYTES
            + match self {
                Event::Notice { notice, .. } => notice.text.len(),
                Event::Released(name) => name.len(),
            }
    }
}

/// The events that some member has not heard.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// How many events came before the first that is kept.
    first: u64,
    events: VecDeque<Event>,
    bytes: usize,
}

impl Log {
    /// Adds an event. `false`: a member does not listen, and there is no room.
    pub fn push(&mut self, event: Event) -> bool {
        let bytes = event.bytes();
        if self.bytes + bytes > MOST_BYTES {
            return false;
        }
        self.bytes += bytes;
        self.events.push_back(event);
        true
    }

    /// All members have heard so many.
    pub fn forget(&mut self, heard: u64) {
        while self.first < heard
            && let Some(event) = self.events.pop_front()
        {
            self.first += 1;
            self.bytes -= event.bytes();
        }
    }

    /// How many events there were.
    pub fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// The events from number `from` on that fit `budget` bytes, and which the first is.
    pub fn since(&self, from: u64, budget: usize) -> (u64, Vec<Event>) {
        let from = from.clamp(self.first, self.end());
        let skipped = usize::try_from(from - self.first).unwrap_or(usize::MAX);
        let mut left = budget;
        let events = self.events.iter().skip(skipped).take_while(|event| {
            let fits = event.bytes() <= left;
            left = left.saturating_sub(event.bytes());
            fits
        });
        (from, events.cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(name: &str) -> Event {
        Event::Released(name.into())
    }

    #[test]
    fn members_hear_from_where_they_are() {
        let mut log = Log::default();
        for name in ["a", "b", "c"] {
            assert!(log.push(released(name)));
        }
        assert_eq!(log.since(1, 1000), (1, vec![released("b"), released("c")]));
        assert_eq!(log.since(0, 2 * (EVENT_BYTES + 1)), (0, vec![released("a"), released("b")]), "a budget");
        log.forget(2);
        assert_eq!(log.since(0, 1000), (2, vec![released("c")]));
        assert_eq!(log.since(99, 1000), (3, vec![]));
        log.forget(99);
        assert_eq!((log.end(), log.bytes), (3, 0));
    }

    #[test]
    fn what_nobody_hears_is_bounded() {
        let mut log = Log::default();
        let long = "x".repeat(1000);
        let kept = (0..100_000).take_while(|_| log.push(released(&long))).count();
        assert_eq!(kept, MOST_BYTES / (EVENT_BYTES + 1000));
        log.forget(1);
        assert!(log.push(released(&long)));
    }
}

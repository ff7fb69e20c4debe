//! The silence of members, racks and parameter hosts.

use super::time::Time;

/// The time of the last message of anybody, and the connections.
#[derive(Debug, Default)]
pub(super) struct SilenceClock {
    pub last_message: Time,
    pub is_isolated: bool,
    pub next_connection: u64,
}

impl SilenceClock {
    pub(super) fn on_message(&mut self, now: Time) {
        self.last_message = now;
    }
}

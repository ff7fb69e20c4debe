//! The silence of members, racks and parameter hosts.

use super::time::{SILENCE_TIMEOUT, Time};

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

/// Returns the silence after which a member, rack or parameter host is dead. One whose connection is open may
/// have lost its network.
pub(super) fn patience(is_open: bool, longest_outage: Time) -> Time {
    if is_open { longest_outage } else { SILENCE_TIMEOUT }
}

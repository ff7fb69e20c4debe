//! The limits of joins, which the administrator of a control plane sets.

use std::time::Duration;

/// The limits of joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinLimits {
    /// The longest that a worker may wait for the other ranks, whatever it asks for.
    pub longest_wait: Duration,
    /// The part of job numbers and slots that one host, user or secret may hold, in percent.
    pub share_percent: u64,
}

impl JoinLimits {
    /// No limits but those of messages.
    pub const NONE: JoinLimits = JoinLimits { longest_wait: Duration::MAX, share_percent: 100 };
}

impl Default for JoinLimits {
    fn default() -> JoinLimits {
        JoinLimits { longest_wait: Duration::from_secs(3600), share_percent: 50 }
    }
}

//! The limits of joins, which the administrator of a control plane sets.

use std::time::Duration;

/// The limits of joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinLimits {
    /// The longest that a worker may wait for the other ranks, whatever it asks for.
    pub longest_wait: Duration,
}

impl JoinLimits {
    /// No limits but those of messages.
    pub const NONE: JoinLimits = JoinLimits { longest_wait: Duration::MAX };
}

impl Default for JoinLimits {
    fn default() -> JoinLimits {
        JoinLimits { longest_wait: Duration::from_secs(3600) }
    }
}

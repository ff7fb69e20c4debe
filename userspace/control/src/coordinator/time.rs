//! The coordinator's time, and its timeouts.

use std::time::Duration;

/// Time since some fixed moment.
pub type Time = Duration;

/// A worker, rack or parameter host without a message for this long is dead.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);
/// A data plane may be away for this long before its jobs fail.
pub const PLANE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that members, racks and parameter hosts have to reconnect after a restart, beside
/// [`SILENCE_TIMEOUT`]: one attempt may end by that timeout, and the next begins at once. Who died meanwhile
/// is named within 5 s.
pub(super) const RECONNECT_GRACE: Duration = Duration::from_millis(2500);
/// Without a message of a member for this long it may be dead: each sends two a second. Without one of
/// anybody the control plane itself may be cut off. It is below [`SILENCE_TIMEOUT`], so that nobody has been
/// blamed by then.
pub(super) const QUIET_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that the workers of a job may measure their paths; each has its answer, or gives up, within seconds.
pub(super) const MEASURE_TIMEOUT: Duration = Duration::from_secs(30);
/// When [`Coordinator::tick`] comes later than this, the server itself was held up, and the workers'
/// silence means nothing.
pub(super) const HELD_UP: Duration = Duration::from_millis(700);

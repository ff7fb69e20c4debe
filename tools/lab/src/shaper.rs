//! Sizes of a shaped port.

/// The burst of an idle shaped port. With less, the timers of this kernel lose a third of 1 Gbit/s.
pub const BURST_BYTES: u64 = 256 * 1024;

/// The queue of a shaped port before frames are dropped, as in the buffers of a small switch.
pub const QUEUE_BYTES: u64 = 1024 * 1024;

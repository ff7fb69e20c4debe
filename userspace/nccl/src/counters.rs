//! Counts of a communicator, logged when it is closed.

use std::fmt;

/// Requests, and the bytes that were copied for them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: u64,
    /// Requests that found no free slot of the staging memory; NCCL repeats them.
    pub(crate) deferred: u64,
    pub(crate) copies_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) copies_out: u64,
    pub(crate) bytes_out: u64,
}

impl Counters {
    pub(crate) fn copied_in(&mut self, bytes: usize) {
        self.copies_in += 1;
        self.bytes_in += bytes as u64;
    }

    pub(crate) fn copied_out(&mut self, bytes: usize) {
        self.copies_out += 1;
        self.bytes_out += bytes as u64;
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests, {} deferred, {} copies in of {} bytes, {} copies out of {} bytes",
            self.requests, self.deferred, self.copies_in, self.bytes_in, self.copies_out, self.bytes_out
        )
    }
}

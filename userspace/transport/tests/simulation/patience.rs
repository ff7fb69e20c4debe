//! How often a worker may ask while it hears nothing, counted from outside: from its silences alone.

/// The timeouts of `Tuning::default()` that no timeout is shorter than, and the longest, in nanoseconds.
const SHORTEST: u64 = 500_000;
const LONGEST: u64 = 200_000_000;

/// Chunks that may be sent again each time.
const PROBES: u64 = 2;

/// One worker's silences.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    heard: u64,
    probes: u64,
}

impl Patience {
    /// Something is in flight from now on.
    pub fn begin(&mut self, now: u64) {
        self.heard = now;
    }

    /// A frame arrived: what the silence before it allowed counts.
    pub fn heard(&mut self, now: u64) {
        let mut silence = now - self.heard;
        let mut timeout = SHORTEST;
        while silence >= timeout {
            silence -= timeout;
            timeout = (2 * timeout).min(LONGEST);
            self.probes += PROBES;
        }
        self.heard = now;
    }

    /// How many chunks it may have sent again.
    pub fn probes(&self) -> u64 {
        self.probes
    }
}

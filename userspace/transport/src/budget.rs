//! The sending budget: whether the next packet may be sent.
//!
//! A fixed window (static mode: the slots), a congestion window (ATP) and a paced rate are implementations of
//! one trait. A paced rate answers [`MaySend::At`]: the engine then reports that time as its next deadline.

use serde::{Deserialize, Serialize};

use crate::{rtt::RttSample, time::Time};

/// The answer to the question whether the next packet may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaySend {
    Now,
    At(Time),
    /// It may be sent after an answer.
    Blocked,
}

/// A chunk that was lost or marked, which indicates congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CongestionEvent {
    pub seq: u64,
    /// The first chunk without a result.
    pub base: u64,
    /// The first chunk that was never sent.
    pub next: u64,
    /// Chunks considered lost; 0: the network marked one.
    pub lost: u32,
}

/// Limits how much is sent, and learns from results.
pub(crate) trait SendingBudget: Send {
    /// The most chunks in flight.
    fn window(&self) -> u32;

    /// Whether a packet may be sent after so many chunks: those in the network, or those before its own
    /// without a result.
    fn may_send(&self, now: Time, before: usize) -> MaySend;

    /// Whether marks of congestion reduce it: only then may packets say that they can be marked.
    fn reacts_to_marks(&self) -> bool {
        false
    }

    fn on_sent(&mut self, _now: Time, _bytes: usize) {}

    /// Whether congestion of chunk `seq` would reduce it: what was sent before the last reduction does not
    /// show its effect.
    fn is_new_sign(&self, _seq: u64) -> bool {
        false
    }

    /// Records a sample of the round trip: one for each acknowledgement that is unambiguous.
    fn on_sample(&mut self, _sample: RttSample) {}

    /// Records the result of chunk `seq`, without a sign of congestion.
    fn on_result(&mut self, _seq: u64) {}

    /// Records congestion. Returns whether the budget was reduced.
    fn on_congestion(&mut self, _event: CongestionEvent) -> bool {
        false
    }

    /// Records that a chunk considered lost was only late. Returns whether a reduction was taken back.
    fn on_spurious_loss(&mut self) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct FixedWindow(pub u32);

impl SendingBudget for FixedWindow {
    fn window(&self) -> u32 {
        self.0
    }

    fn may_send(&self, _: Time, before: usize) -> MaySend {
        within(self.0, before)
    }
}

pub(crate) fn within(window: u32, before: usize) -> MaySend {
    if (before as u64) < u64::from(window) { MaySend::Now } else { MaySend::Blocked }
}

//! The congestion window (ATP section 3.7): slow start, then additive increase by one chunk per window;
//! halved on marks (ECN) and losses.
//!
//! Marks come with results, which all workers get. So all windows stay alike as long as each worker takes the
//! same marks for the same congestion. That follows from the chunk, not from the time at which the worker
//! sent it: a slot keeps the mark of the first contribution until the last one comes. A worker that is behind
//! must not halve its window once more for each chunk that the others had sent before.

use serde::{Deserialize, Serialize};

use crate::{
    budget::{CongestionEvent, MaySend, SendingBudget, within},
    time::Time,
};

/// The initial window of a job, in bytes: 200 packets of 300 bytes, about the bandwidth-delay product within
/// a data centre.
const INITIAL_BYTES: usize = 60_000;

/// The initial window of each of a job's shards, in chunks of so many bytes.
pub(crate) fn initial_window(chunk: usize, shards: u16, limit: u32) -> u32 {
    let chunks = INITIAL_BYTES / chunk.max(1) / usize::from(shards.max(1));
    (chunks as u32).clamp(1, limit)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CongestionWindow {
    window: u32,
    limit: u32,
    /// The job's shards: each has a window of its own and grows by its part of one chunk.
    shards: u32,
    /// The slow-start threshold: below it the window grows by one with every result, from it on all shards
    /// together by one per window of results.
    threshold: u32,
    /// Results since the window last grew.
    results: u32,
    /// Chunks before this one may have been sent by some worker before the last halving, and are no new sign.
    recovery_end: u64,
    /// The state before the last halving, if only losses caused it.
    before: Option<Before>,
}

/// The state to which a halving is taken back (RFC 4015).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Before {
    window: u32,
    threshold: u32,
    recovery_end: u64,
    /// Chunks considered lost and not known to have been late.
    lost: u32,
}

impl CongestionWindow {
    pub fn new(initial: u32, limit: u32, shards: u16) -> CongestionWindow {
        let shards = shards.into();
        CongestionWindow {
            window: initial,
            limit,
            shards,
            threshold: limit,
            results: 0,
            recovery_end: 0,
            before: None,
        }
    }
}

impl SendingBudget for CongestionWindow {
    fn window(&self) -> u32 {
        self.window
    }

    fn may_send(&self, _: Time, before: usize) -> MaySend {
        within(self.window, before)
    }

    //= atp#3.5 congestion marks merged through slots
    fn reacts_to_marks(&self) -> bool {
        true
    }

    fn is_new_sign(&self, seq: u64) -> bool {
        seq >= self.recovery_end
    }

    /// As in TCP (RFC 5681, RFC 3168), the window does not grow before results of chunks come that were sent
    /// after the last halving: beside TCP it would take more than its share.
    fn on_result(&mut self, seq: u64) {
        if self.window >= self.limit || !self.is_new_sign(seq) {
            return;
        }
        self.results += 1;
        if self.window < self.threshold || self.results >= self.window * self.shards {
            self.window += 1;
            self.results = 0;
        }
    }

    //= atp#3.7 window with additive increase and halving
    /// Halves the window, once per window of chunks and so once per round trip.
    fn on_congestion(&mut self, CongestionEvent { seq, base, next, lost }: CongestionEvent) -> bool {
        if !self.is_new_sign(seq) {
            self.before = self.before.filter(|_| lost > 0);
            self.before.iter_mut().for_each(|before| before.lost += lost);
            return false;
        }
        let CongestionWindow { window, threshold, recovery_end, .. } = *self;
        self.before = (lost > 0).then_some(Before { window, threshold, recovery_end, lost });
        // Workers with the same window that are further than this one are no further than that.
        self.recovery_end = next.max(base + u64::from(self.window));
        self.window = (self.window / 2).max(1);
        self.threshold = self.window;
        self.results = 0;
        true
    }

    fn on_spurious_loss(&mut self) -> bool {
        let Some(before) = &mut self.before else { return false };
        before.lost = before.lost.saturating_sub(1);
        if before.lost > 0 {
            return false;
        }
        (self.window, self.threshold) = (before.window, before.threshold);
        self.recovery_end = before.recovery_end;
        self.before = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn congested(window: &mut CongestionWindow, seq: u64, base: u64, next: u64) -> bool {
        window.on_congestion(CongestionEvent { seq, base, next, lost: 0 })
    }

    #[test]
    fn slow_start_ends_at_the_limit() {
        let mut window = CongestionWindow::new(2, 8, 1);
        let grown: Vec<u32> = (0..8)
            .map(|seq| {
                window.on_result(seq);
                window.window()
            })
            .collect();
        assert_eq!(grown, [3, 4, 5, 6, 7, 8, 8, 8]);
    }

    //= atp#3.7 window with additive increase and halving
    #[test]
    fn it_is_halved_once_per_window_and_then_grows_by_one_per_window() {
        let mut window = CongestionWindow::new(8, 64, 1);
        assert!(congested(&mut window, 3, 2, 9));
        assert_eq!(window.window(), 4);
        assert!(!congested(&mut window, 9, 3, 10), "another worker may have sent it before");
        (4..10).for_each(|seq| window.on_result(seq));
        assert_eq!(window.window(), 4, "sent with the window of before");
        (10..13).for_each(|seq| window.on_result(seq));
        assert_eq!(window.window(), 4);
        window.on_result(13);
        assert_eq!(window.window(), 5);
        assert!(congested(&mut window, 14, 12, 20));
        assert_eq!(window.window(), 2);
        assert!(!congested(&mut window, 19, 16, 20), "sent before it was halved");
        for round in 1..6 {
            assert!(congested(&mut window, 20 * round, 20 * round, 20 * (round + 1)));
        }
        assert_eq!(window.window(), 1, "one chunk is always allowed");
        window.on_result(120);
        assert_eq!(window.window(), 2);
    }

    #[test]
    fn workers_that_are_not_as_far_halve_as_often() {
        // One of them has sent its window of 8 chunks when the first mark comes, the other only half of it.
        let windows = [8, 4].map(|next| {
            let mut window = CongestionWindow::new(8, 64, 1);
            let halvings: Vec<u64> = (0..12).filter(|seq| congested(&mut window, *seq, *seq, next)).collect();
            (halvings, window.window())
        });
        assert_eq!(windows[0], (vec![0, 8], 2));
        assert_eq!(windows[0], windows[1]);
    }

    #[test]
    fn shards_share_the_initial_window_and_its_growth() {
        assert_eq!(initial_window(300, 1, 256), 200, "the paper's packets");
        assert_eq!((initial_window(1464, 1, 256), initial_window(1464, 4, 256)), (40, 10));
        assert_eq!((initial_window(9000, 16, 256), initial_window(1, 1, 256)), (1, 256));
        let mut window = CongestionWindow::new(8, 64, 4);
        assert!(congested(&mut window, 3, 2, 9));
        let mut results = 0;
        while window.window() == 4 {
            window.on_result(10 + results);
            results += 1;
        }
        assert_eq!((results, window.window()), (16, 5), "a window of each shard");
    }

    #[test]
    fn a_halving_for_late_packets_is_taken_back() {
        let lost = |lost| CongestionEvent { seq: 3, base: 2, next: 9, lost };
        // (further signs, chunks that were late) of two that were considered lost.
        let table: [(&str, &[u32], u32, u32); 5] = [
            ("both were late", &[], 2, 8),
            ("one was lost", &[], 1, 4),
            ("three were considered lost", &[1], 2, 4),
            ("and all were late", &[1], 3, 8),
            ("a mark", &[0], 2, 4),
        ];
        for (case, signs, late, expected) in table {
            let mut window = CongestionWindow::new(8, 64, 1);
            assert!(window.on_congestion(lost(2)));
            signs.iter().for_each(|count| assert!(!window.on_congestion(lost(*count))));
            let undone = (0..late).filter(|_| window.on_spurious_loss()).count();
            assert_eq!((window.window(), undone), (expected, usize::from(expected == 8)), "{case}");
        }
    }

    #[test]
    fn a_full_window_blocks() {
        let window = CongestionWindow::new(2, 8, 1);
        assert_eq!(
            (window.may_send(Time(0), 1), window.may_send(Time(0), 2)),
            (MaySend::Now, MaySend::Blocked)
        );
    }
}

//! How many chunks may be in flight (ATP section 3.7): slow start, then one more per window; half as many when the network
//! is full, as marks (ECN) and losses tell.
//!
//! Marks come with results, which all workers get, so all windows stay alike as long as each worker takes the same marks for
//! the same congestion. That is told by the chunk, not by when the worker itself sent it: a slot keeps the mark of the first
//! contribution until the last one comes, and a worker that has fallen behind must not halve its window once more for
//! each chunk that the others had sent before.

/// The congestion window, in chunks: a chunk is about as long as a packet may be.
#[derive(Debug)]
pub(crate) struct Congestion {
    /// Whether it follows congestion at all.
    is_on: bool,
    window: u32,
    /// It never exceeds this.
    limit: u32,
    /// Below it, the window grows by one with every result; from it on, by one per window of results.
    threshold: u32,
    /// Results since it last grew.
    results: u32,
    /// Chunks before this one may have been sent by some worker before it was last halved, and say nothing new.
    fresh_from: u64,
}

impl Congestion {
    /// A window of `initial` chunks that grows up to `limit`, or stays as it is when not `is_on`.
    pub fn new(initial: u32, limit: u32, is_on: bool) -> Congestion {
        Congestion { is_on, window: initial, limit, threshold: limit, results: 0, fresh_from: 0 }
    }

    /// How many chunks may be in flight.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// The result of chunk `seq` came and tells of no congestion. As in TCP (RFC 5681, RFC 3168), the window does not grow again
    /// before what was sent after it was halved comes back: beside TCP it would take more than its share.
    pub fn on_result(&mut self, seq: u64) {
        if !self.is_on || self.window >= self.limit || seq < self.fresh_from {
            return;
        }
        self.results += 1;
        if self.window < self.threshold || self.results >= self.window {
            self.window += 1;
            self.results = 0;
        }
    }

    /// Chunk `seq` was lost, or it or its result was marked. This worker waits for the result of chunk `base`, and `next` is the
    /// first that it never sent. Says whether the window was halved: once per window of chunks, so once per round trip.
    pub fn on_congestion(&mut self, seq: u64, base: u64, next: u64) -> bool {
        if !self.is_on || seq < self.fresh_from {
            return false;
        }
        // Workers with the same window that are further than this one are no further than that.
        self.fresh_from = next.max(base + u64::from(self.window));
        self.window = (self.window / 2).max(1);
        self.threshold = self.window;
        self.results = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_goes_up_to_the_limit() {
        let mut congestion = Congestion::new(2, 8, true);
        let grown: Vec<u32> = (0..8)
            .map(|seq| {
                congestion.on_result(seq);
                congestion.window()
            })
            .collect();
        assert_eq!(grown, [3, 4, 5, 6, 7, 8, 8, 8]);
    }

    #[test]
    fn it_is_halved_once_per_window_and_then_grows_by_one_per_window() {
        let mut congestion = Congestion::new(8, 64, true);
        assert!(congestion.on_congestion(3, 2, 9));
        assert_eq!(congestion.window(), 4);
        assert!(!congestion.on_congestion(9, 3, 10), "another worker may have sent it before");
        (4..10).for_each(|seq| congestion.on_result(seq));
        assert_eq!(congestion.window(), 4, "sent with the window of before");
        (10..13).for_each(|seq| congestion.on_result(seq));
        assert_eq!(congestion.window(), 4);
        congestion.on_result(13);
        assert_eq!(congestion.window(), 5);
        assert!(congestion.on_congestion(14, 12, 20));
        assert_eq!(congestion.window(), 2);
        assert!(!congestion.on_congestion(19, 16, 20), "sent before it was halved");
        (1..6).for_each(|round| {
            assert!(congestion.on_congestion(20 * round, 20 * round, 20 * (round + 1)));
        });
        assert_eq!(congestion.window(), 1, "one chunk is always allowed");
        congestion.on_result(120);
        assert_eq!(congestion.window(), 2);
    }

    #[test]
    fn workers_that_are_not_as_far_halve_as_often() {
        // One of them has sent its window of 8 chunks when the first mark comes, the other only half of it.
        let windows = [8, 4].map(|next| {
            let mut congestion = Congestion::new(8, 64, true);
            let halvings: Vec<u64> =
                (0..12).filter(|seq| congestion.on_congestion(*seq, *seq, next)).collect();
            (halvings, congestion.window())
        });
        assert_eq!(windows[0], (vec![0, 8], 2));
        assert_eq!(windows[0], windows[1]);
    }

    #[test]
    fn switched_off_it_stays() {
        let mut congestion = Congestion::new(8, 64, false);
        congestion.on_result(0);
        assert!(!congestion.on_congestion(1, 0, 2));
        assert_eq!(congestion.window(), 8);
    }
}

//! How many chunks may be in flight (ATP section 3.7): slow start, then one more per window; half as many when the network
//! is full, as marks (ECN) and losses tell.

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
    /// Packets with a lower send index than this were sent before it was last halved, and say nothing new.
    halved_at: u64,
}

impl Congestion {
    /// A window of `initial` chunks that grows up to `limit`, or stays as it is when not `is_on`.
    pub fn new(initial: u32, limit: u32, is_on: bool) -> Congestion {
        Congestion { is_on, window: initial, limit, threshold: limit, results: 0, halved_at: 0 }
    }

    /// How many chunks may be in flight.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// A result came that tells of no congestion.
    pub fn on_result(&mut self) {
        if !self.is_on || self.window >= self.limit {
            return;
        }
        self.results += 1;
        if self.window < self.threshold || self.results >= self.window {
            self.window += 1;
            self.results = 0;
        }
    }

    /// The packet with this send index was lost, or it or its result was marked; `next` is the send index of the next one.
    /// Says whether the window was halved: once per round trip.
    pub fn on_congestion(&mut self, index: u64, next: u64) -> bool {
        if !self.is_on || index < self.halved_at {
            return false;
        }
        self.window = (self.window / 2).max(1);
        self.threshold = self.window;
        self.results = 0;
        self.halved_at = next;
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
            .map(|_| {
                congestion.on_result();
                congestion.window()
            })
            .collect();
        assert_eq!(grown, [3, 4, 5, 6, 7, 8, 8, 8]);
    }

    #[test]
    fn it_is_halved_once_per_round_trip_and_then_grows_by_one_per_window() {
        let mut congestion = Congestion::new(8, 64, true);
        assert!(congestion.on_congestion(3, 9));
        assert_eq!(congestion.window(), 4);
        assert!(!congestion.on_congestion(8, 12), "sent before it was halved");
        (0..3).for_each(|_| congestion.on_result());
        assert_eq!(congestion.window(), 4);
        congestion.on_result();
        assert_eq!(congestion.window(), 5);
        assert!(congestion.on_congestion(9, 20));
        assert_eq!(congestion.window(), 2);
        (0..5).for_each(|round| {
            congestion.on_congestion(20 * (round + 1), 20 * (round + 2));
        });
        assert_eq!(congestion.window(), 1, "one chunk is always allowed");
        congestion.on_result();
        assert_eq!(congestion.window(), 2);
    }

    #[test]
    fn switched_off_it_stays() {
        let mut congestion = Congestion::new(8, 64, false);
        congestion.on_result();
        assert!(!congestion.on_congestion(1, 2));
        assert_eq!(congestion.window(), 8);
    }
}

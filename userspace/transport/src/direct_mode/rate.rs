//! The sending rate towards one peer (MLT section 4.2.3): it starts at line rate and follows the round trip,
//! as TIMELY does.
//!
//! The paper's thresholds fit a path of 12.5 us. On a longer one they grow with its shortest round trip:
//! otherwise a path that is merely long would count as congested for ever. The paper's NICs measure the path;
//! the round trips here have the scheduling delays of both hosts in them. So `T_high` has a margin for them,
//! and a rate that was reduced returns to halfway in each round trip below `T_high`, as in DCQCN: a process
//! that was not scheduled for some milliseconds would cost some seconds by `alpha` alone.
//!
//! Ports that are full after less than `T_high` drop before any round trip is long enough. So losses lower
//! the rate as well, to what arrived.

use serde::{Deserialize, Serialize};

use crate::{
    budget::{MaySend, SendingBudget},
    rtt::RttSample,
    time::Time,
};

/// `T_low`: below it the rate grows.
const T_LOW_NS: u64 = 12_500;
/// `T_high` over `T_low`.
const HIGH_OVER_LOW: u64 = 10;
/// `alpha`: the additive increase, in bits per second.
const ALPHA: u64 = 40_000_000;
/// `beta`: the most that is taken away at once.
const BETA: f64 = 0.8;
/// Below this the rate does not fall: a packet of 1,500 bytes in 1.2 ms.
const LEAST: u64 = 10_000_000;
/// Losses lower the rate to no less than this in a round trip: four packets of 1,500 bytes.
const LEAST_BYTES: u64 = 6_000;
/// Packets may be this much ahead of the rate, since no thread wakes for each of them.
const BURST_NS: u64 = 100_000;

/// The rate of one flow, as a budget of the packets that go to its peer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct DelayRate {
    /// Bits per second.
    rate: u64,
    line_rate: u64,
    /// Nanoseconds that the two hosts may take for an answer, beside the path.
    hosts: u64,
    /// The time at which the packets sent so far are through at this rate.
    through: Time,
    shortest: u64,
    previous: u64,
    /// The rate before the last reduction, to which it returns.
    before: u64,
    /// Packets sent before this time say nothing of the present rate.
    changed: Time,
}

impl DelayRate {
    pub fn new(line_rate: u64, hosts: u64) -> DelayRate {
        let line_rate = line_rate.max(LEAST);
        DelayRate {
            rate: line_rate,
            line_rate,
            hosts,
            through: Time(0),
            shortest: u64::MAX,
            previous: 0,
            before: line_rate,
            changed: Time(0),
        }
    }

    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Lowers the rate to what arrived, `bytes` in `time` nanoseconds, but not below some packets in a round
    /// trip of `rtt`. It returns to what it was before the first of such passes.
    pub fn on_losses(&mut self, now: Time, bytes: u64, time: u64, rtt: u64) {
        if rtt == 0 {
            return;
        }
        let per_second = |bytes: u64, time: u64| {
            (u128::from(bytes) * 8_000_000_000 / u128::from(time.max(1))).try_into().unwrap_or(u64::MAX)
        };
        let least = LEAST.max(per_second(LEAST_BYTES, rtt));
        let arrived = per_second(bytes, time).max(least);
        if arrived < self.rate {
            self.before = self.before.max(self.rate);
            self.rate = arrived;
            self.changed = now;
        }
    }

    /// `T_low` of this path.
    fn low(&self) -> u64 {
        if self.shortest == u64::MAX { T_LOW_NS } else { T_LOW_NS.max(self.shortest) }
    }
}

impl SendingBudget for DelayRate {
    fn window(&self) -> u32 {
        u32::MAX
    }

    fn may_send(&self, now: Time, _: usize) -> MaySend {
        let ahead = self.through.since(now);
        if ahead <= BURST_NS { MaySend::Now } else { MaySend::At(now.plus(ahead - BURST_NS)) }
    }

    fn on_sent(&mut self, now: Time, bytes: usize) {
        let takes = (bytes as u64 * 8).saturating_mul(1_000_000_000) / self.rate;
        self.through = self.through.max(now).plus(takes);
    }

    /// The paper's rule, but that the rate falls once per round trip, and returns: an answer to a packet that
    /// was sent before the last change does not show its effect.
    //= mlt#4.2.3 rate by delay
    fn on_sample(&mut self, sample: RttSample) {
        let rtt = sample.acknowledged.since(sample.sent);
        self.shortest = self.shortest.min(rtt.max(1));
        let (low, is_falling) = (self.low(), rtt < self.previous);
        self.previous = rtt;
        let high = low * HIGH_OVER_LOW + self.hosts;
        if rtt < low || is_falling {
            self.rate = (self.rate + ALPHA).min(self.line_rate);
        }
        if sample.sent < self.changed {
            return;
        }
        if rtt > high && !is_falling {
            let kept = 1.0 - BETA * (1.0 - high as f64 / rtt as f64);
            self.before = self.rate;
            self.rate = ((self.rate as f64 * kept) as u64).max(LEAST);
            self.changed = sample.acknowledged;
        } else if rtt <= high && self.rate < self.before {
            self.rate += (self.before - self.rate).div_ceil(2);
            self.changed = sample.acknowledged;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GBIT: u64 = 1_000_000_000;
    const US: u64 = 1_000;

    fn sample(rate: &mut DelayRate, sent: u64, rtt: u64) {
        rate.on_sample(RttSample { sent: Time(sent), acknowledged: Time(sent + rtt), is_marked: false });
    }

    //= mlt#4.2.3 rate by delay
    #[test]
    fn it_follows_the_papers_rule() {
        let mut rate = DelayRate::new(10 * GBIT, 0);
        sample(&mut rate, 0, 10 * US);
        assert_eq!(rate.rate(), 10 * GBIT, "line rate at first");
        sample(&mut rate, 100 * US, 250 * US);
        assert_eq!(rate.rate(), 6 * GBIT, "1 - 0.8 (1 - 125 / 250)");
        sample(&mut rate, 200 * US, 250 * US);
        assert_eq!(rate.rate(), 6 * GBIT, "that packet was sent before");
        sample(&mut rate, 400 * US, 200 * US);
        assert_eq!(rate.rate(), 6 * GBIT + ALPHA, "the round trip falls");
        sample(&mut rate, 800 * US, 200 * US);
        assert!(rate.rate().abs_diff((6 * GBIT + ALPHA) / 10 * 7) < 10, "1 - 0.8 (1 - 125 / 200)");
        (0..10).for_each(|round| sample(&mut rate, (1000 + 100 * round) * US, 12 * US));
        let before = rate.rate();
        assert!(before > 6 * GBIT + ALPHA, "it has returned to what it was: {before}");
        sample(&mut rate, 2000 * US, 12 * US);
        sample(&mut rate, 2100 * US, 12 * US);
        assert_eq!(rate.rate(), before + 2 * ALPHA, "below T_low");
        sample(&mut rate, 2200 * US, 100 * US);
        assert_eq!(rate.rate(), before + 2 * ALPHA, "between the thresholds");
        (0..100).for_each(|step| sample(&mut rate, (3000 + 20_000 * step) * US, 10_000 * US));
        assert_eq!(rate.rate(), LEAST);
    }

    #[test]
    fn a_host_that_was_not_scheduled_costs_some_round_trips() {
        let mut rate = DelayRate::new(10 * GBIT, 500 * US);
        sample(&mut rate, 0, 20 * US);
        sample(&mut rate, 100 * US, 650 * US);
        assert_eq!(rate.rate(), 10 * GBIT, "hosts take their time");
        sample(&mut rate, 1000 * US, 8000 * US);
        assert!(rate.rate() < 3 * GBIT, "{}", rate.rate());
        let rates = (0..6).map(|round| {
            sample(&mut rate, (10_000 + 1000 * round) * US, 300 * US);
            rate.rate()
        });
        let rates: Vec<u64> = rates.collect();
        assert!(rates.is_sorted() && rates[5] > 98 * GBIT / 10, "{rates:?}");
        sample(&mut rate, 20_000 * US, 8000 * US);
        let reduced = rate.rate();
        sample(&mut rate, 20_000 * US, 300 * US);
        assert!(rate.rate() <= reduced + ALPHA, "that packet was sent before");
    }

    #[test]
    fn a_long_path_is_not_a_congested_one() {
        let mut rate = DelayRate::new(10 * GBIT, 0);
        (0..9).for_each(|step| sample(&mut rate, step * 5000 * US, 1000 * US + step));
        assert_eq!(rate.rate(), 10 * GBIT);
        sample(&mut rate, 100_000 * US, 20_000 * US);
        assert!(rate.rate() < 7 * GBIT, "{}", rate.rate());
    }

    #[test]
    fn losses_set_the_rate_to_what_arrived() {
        let mut rate = DelayRate::new(100 * GBIT, 0);
        rate.on_losses(Time(0), 100_000, 80 * US, 0);
        assert_eq!(rate.rate(), 100 * GBIT, "no round trip is known");
        rate.on_losses(Time(0), 100_000, 80 * US, 40 * US);
        assert_eq!(rate.rate(), 10 * GBIT);
        rate.on_losses(Time(0), 400_000, 80 * US, 40 * US);
        assert_eq!(rate.rate(), 10 * GBIT, "it does not grow by losses");
        rate.on_losses(Time(0), 100, 80 * US, 40 * US);
        assert_eq!(rate.rate(), 12 * GBIT / 10, "four packets in a round trip");
        sample(&mut rate, 0, 12 * US);
        assert!(rate.rate() > 5 * GBIT, "halfway back to what it was: {}", rate.rate());
    }

    #[test]
    fn packets_are_paced() {
        let mut rate = DelayRate::new(GBIT, 0);
        let mut sent = 0;
        while rate.may_send(Time(0), 0) == MaySend::Now {
            rate.on_sent(Time(0), 1250);
            sent += 1;
        }
        assert_eq!(sent, 11, "100 us ahead, 10 us each");
        assert_eq!(rate.may_send(Time(0), 0), MaySend::At(Time(10 * US)));
        assert_eq!(rate.may_send(Time(10 * US), 0), MaySend::Now);
    }
}

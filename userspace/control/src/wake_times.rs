//! Times at which tasks of one process wake together: one wake-up for a thousand idle jobs costs a fraction
//! of a thousand wake-ups, here and at the peer that they write to.

use std::{sync::LazyLock, time::Duration};

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Returns the next multiple of `period` since a moment that the process has chosen.
pub fn next(period: Duration) -> Instant {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let periods = BEGIN.elapsed().as_nanos() / period.as_nanos().max(1) + 1;
    *BEGIN + period * u32::try_from(periods).unwrap_or(u32::MAX)
}

/// Ticks at multiples of `period`. Ticks that were missed are left out.
#[must_use]
pub fn ticks(period: Duration) -> Interval {
    let mut ticks = interval_at(next(period), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tasks_wake_together_whenever_they_began() {
        let period = Duration::from_millis(100);
        let first = next(period);
        advance(Duration::from_millis(37)).await;
        let mut second = ticks(period);
        assert_eq!(second.tick().await, first);
        assert_eq!(next(period), first + period);
        // Longer periods meet shorter ones.
        let both = next(period * 5);
        assert_eq!((both - first).as_nanos() % period.as_nanos(), 0);
        advance(period * 3 + period / 2).await;
        second.tick().await;
        assert_eq!(second.tick().await, first + period * 4, "the missed ones are left out");
    }
}

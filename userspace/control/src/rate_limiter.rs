//! Limits log messages that strangers or trainers can cause, so that nobody fills the disk.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const WINDOW: Duration = Duration::from_secs(1);
const PER_WINDOW: u32 = 5;

/// Limits one kind of message to five a second, and counts the others.
#[derive(Debug)]
pub struct RateLimiter(Mutex<Window>);

#[derive(Debug)]
struct Window {
    began: Instant,
    allowed: u32,
    suppressed: u64,
}

impl RateLimiter {
    pub fn new(now: Instant) -> RateLimiter {
        RateLimiter(Mutex::new(Window { began: now, allowed: 0, suppressed: 0 }))
    }

    /// Returns how many messages were suppressed since the last one that was not; `None`: suppress this one
    /// too.
    pub fn allow(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(window.began) >= WINDOW {
            (window.began, window.allowed) = (now, 0);
        }
        if window.allowed >= PER_WINDOW {
            window.suppressed += 1;
            return None;
        }
        window.allowed += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_a_second_and_the_rest_is_counted() {
        let start = Instant::now();
        let limiter = RateLimiter::new(start);
        let allowed = (0..100).filter(|_| limiter.allow(start).is_some()).count();
        assert_eq!(allowed, 5);
        assert_eq!(limiter.allow(start + WINDOW), Some(95));
        assert_eq!(limiter.allow(start + WINDOW), Some(0));
    }
}

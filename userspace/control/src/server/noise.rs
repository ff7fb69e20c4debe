//! Lets so many messages about strangers into the log, and counts the rest: whoever can reach the
//! port must not be able to fill the disk.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const WINDOW: Duration = Duration::from_secs(1);
const PER_WINDOW: u32 = 5;

/// Limits one kind of message.
pub struct Noise(Mutex<Window>);

struct Window {
    began: Instant,
    told: u32,
    untold: u64,
}

impl Noise {
    pub fn new(now: Instant) -> Noise {
        Noise(Mutex::new(Window { began: now, told: 0, untold: 0 }))
    }

    /// Whether to tell of one more; and how many were not told of since the last that was.
    pub fn tell(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(window.began) >= WINDOW {
            (window.began, window.told) = (now, 0);
        }
        if window.told >= PER_WINDOW {
            window.untold += 1;
            return None;
        }
        window.told += 1;
        Some(std::mem::take(&mut window.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_a_second_and_the_rest_is_counted() {
        let start = Instant::now();
        let noise = Noise::new(start);
        let told = (0..100).filter(|_| noise.tell(start).is_some()).count();
        assert_eq!(told, 5);
        assert_eq!(noise.tell(start + WINDOW), Some(95));
        assert_eq!(noise.tell(start + WINDOW), Some(0));
    }
}

//! Whether a thread runs its rounds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The time without a round after which a thread counts as hung.
const HUNG: Duration = Duration::from_secs(2);

/// The time of a thread's last round, in milliseconds from a start.
#[derive(Clone)]
pub struct LastRound {
    start: Instant,
    at: Arc<AtomicU64>,
}

impl LastRound {
    pub fn start() -> LastRound {
        LastRound { start: Instant::now(), at: Arc::default() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn note(&self) {
        self.at.store(self.now(), Ordering::Relaxed);
    }

    pub fn is_recent(&self) -> bool {
        let age = self.now().saturating_sub(self.at.load(Ordering::Relaxed));
        u128::from(age) < HUNG.as_millis()
    }
}

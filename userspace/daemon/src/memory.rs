//! How much of this host's memory trainers have registered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A sum with a limit, shared by all sessions.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    taken: AtomicU64,
}

/// Bytes taken from a budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Budget {
        Budget { limit, taken: AtomicU64::new(0) }
    }

    /// What there is in all.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Takes bytes; `None` when that many are not left.
    pub(crate) fn take(self: &Arc<Budget>, bytes: u64) -> Option<Share> {
        let more = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= self.limit);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Share { budget: self.clone(), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_gone_until_it_is_given_back() {
        let budget = Arc::new(Budget::new(100));
        let share = budget.take(60).unwrap();
        assert!(budget.take(41).is_none());
        assert!(budget.take(u64::MAX).is_none());
        let rest = budget.take(40).unwrap();
        drop(share);
        assert!(budget.take(60).is_some());
        drop(rest);
    }
}

//! The limit of the memory that all trainers together may register.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A sum with a limit, shared by all sessions.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    pub(super) limit: u64,
    reserved: AtomicU64,
}

/// Bytes of a budget, returned to it when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl MemoryBudget {
    pub(crate) fn new(limit: u64) -> MemoryBudget {
        MemoryBudget { limit, reserved: AtomicU64::new(0) }
    }

    /// Reserves bytes; `None` when fewer are left.
    pub(crate) fn reserve(self: &Arc<MemoryBudget>, bytes: u64) -> Option<Reservation> {
        let add = |reserved: u64| reserved.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.reserved.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).ok()?;
        Some(Reservation { budget: self.clone(), bytes })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_return_when_dropped() {
        let budget = Arc::new(MemoryBudget::new(100));
        let first = budget.reserve(60).unwrap();
        assert!(budget.reserve(41).is_none());
        assert!(budget.reserve(u64::MAX).is_none());
        let rest = budget.reserve(40).unwrap();
        drop(first);
        assert!(budget.reserve(60).is_some());
        drop(rest);
    }
}

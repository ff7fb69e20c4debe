//! Counts of jobs that were opened, or could not be.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use sumac_api::{Code, Failure};

/// Counts jobs that were opened, or could not be.
#[derive(Debug)]
pub(crate) struct Opens {
    opened: AtomicU64,
    failed: HashMap<Code, AtomicU64>,
}

impl Default for Opens {
    fn default() -> Opens {
        let failed = Code::ALL.iter().map(|code| (*code, AtomicU64::new(0))).collect();
        Opens { opened: AtomicU64::new(0), failed }
    }
}

impl Opens {
    pub(crate) fn count<T>(&self, result: &Result<T, Failure>) {
        let counter = match result {
            Ok(_) => Some(&self.opened),
            Err(failure) => self.failed.get(&failure.code),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Returns the failures by the name of their code, those that never happened among them.
    pub(crate) fn failed(&self) -> Vec<(Vec<String>, u64)> {
        let count = |code| self.failed.get(code).map_or(0, |count| count.load(Ordering::Relaxed));
        Code::ALL.iter().map(|code| (vec![code.name()], count(code))).collect()
    }
}

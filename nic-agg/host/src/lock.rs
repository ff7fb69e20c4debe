//! Locks whose holders' panics end nothing else.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

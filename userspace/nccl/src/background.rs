//! Work on threads, for calls that do not block.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::error::PluginError;

/// A result that a thread works for. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct Background<T> {
    outcome: Arc<Mutex<Option<Result<T, PluginError>>>>,
    is_given_up: Arc<AtomicBool>,
}

impl<T: Send + 'static> Background<T> {
    /// Starts the work, which looks at its argument: whether it was given up.
    pub(crate) fn begin(
        work: impl FnOnce(&AtomicBool) -> Result<T, PluginError> + Send + 'static,
    ) -> Result<Background<T>, PluginError> {
        let background =
            Background { outcome: Arc::new(Mutex::new(None)), is_given_up: Arc::new(AtomicBool::new(false)) };
        let (outcome, is_given_up) = (background.outcome.clone(), background.is_given_up.clone());
        let thread = move || {
            let result = work(&is_given_up);
            *outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        };
        let started = thread::Builder::new().name("sumac-nccl-open".into()).spawn(thread);
        started.map_err(|error| PluginError::system(format!("cannot start a thread: {error}")))?;
        Ok(background)
    }

    /// Returns the result once, after the thread's end.
    pub(crate) fn take(&self) -> Option<Result<T, PluginError>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }
}

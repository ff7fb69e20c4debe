//! A queue between threads whose file descriptor is readable while it holds items.
//!
//! The queue is unbounded; its use bounds it. Each notification answers a request of the session (an
//! operation, an open, a close), the session limits its outstanding requests, and a job fails at most once.

use std::collections::VecDeque;
use std::io;
use std::sync::PoisonError;

use crate::sync::{Event, Mutex};

/// See the module. `None` inside: the receiver has closed it.
#[derive(Debug)]
pub(crate) struct WakeQueue<T> {
    items: Mutex<Option<VecDeque<T>>>,
    /// Readable while there are items.
    pub(crate) wake: Event,
}

impl<T> WakeQueue<T> {
    pub(crate) fn new() -> io::Result<WakeQueue<T>> {
        Ok(WakeQueue { items: Mutex::new(Some(VecDeque::new())), wake: Event::new()? })
    }

    /// Appends an item; returns it when the queue is closed.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        self.append(item)?;
        self.wake.signal();
        Ok(())
    }

    /// Appends an item for a receiver that looks of its own accord, or is woken later.
    pub(crate) fn append(&self, item: T) -> Result<(), T> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = items.as_mut() else {
            return Err(item);
        };
        queue.push_back(item);
        Ok(())
    }

    pub(crate) fn take(&self) -> VecDeque<T> {
        // Reset before the queue is emptied: an item that arrives in between costs a wake-up, and is not
        // lost.
        self.wake.reset();
        self.look()
    }

    /// Takes the items, as [`WakeQueue::take`], and leaves the wake-up as it is: for a receiver that is
    /// awake.
    pub(crate) fn look(&self) -> VecDeque<T> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        items.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Refuses further items and drops those in the queue.
    pub(crate) fn close(&self) {
        let items = self.items.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(items);
    }
}

//! A queue between threads whose file descriptor is readable while it holds items.
//!
//! The queue is unbounded; its use bounds it. Each notification answers a request of the session (an operation, an
//! open, a close), the session limits its outstanding requests, and a job fails at most once.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::event::EventfdFlags;

/// See the module. `None` inside: the receiver has closed it.
#[derive(Debug)]
pub(crate) struct WakeQueue<T> {
    items: Mutex<Option<VecDeque<T>>>,
    /// Readable while there are items.
    pub(crate) wake: OwnedFd,
}

impl<T> WakeQueue<T> {
    pub(crate) fn new() -> io::Result<WakeQueue<T>> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(WakeQueue { items: Mutex::new(Some(VecDeque::new())), wake })
    }

    /// Appends an item; returns it when the queue is closed.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = items.as_mut() else {
            return Err(item);
        };
        queue.push_back(item);
        drop(items);
        // The counter can only be full of wake-ups that are still unread.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    pub(crate) fn take(&self) -> VecDeque<T> {
        // Read before the queue is emptied: an item that arrives in between costs a wake-up, and is not lost.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        items.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Refuses further items and drops those in the queue.
    pub(crate) fn close(&self) {
        let items = self.items.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_arrive_in_order_and_none_after_the_close() {
        let queue = WakeQueue::new().unwrap();
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        assert_eq!(queue.take(), [1, 2]);
        assert!(queue.take().is_empty());
        queue.close();
        assert_eq!(queue.push(3), Err(3));
        assert!(queue.take().is_empty());
    }
}

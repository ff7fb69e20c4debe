//! The primitives that threads of the daemon share, apart from the code over them: a model takes their place
//! in `tests/fuzz/loom`, which runs every order of the threads' steps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
pub(crate) use std::sync::Mutex;

use rustix::event::EventfdFlags;

/// A wake-up that stays until it is reset: an eventfd, readable meanwhile.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> io::Result<Event> {
        Ok(Event(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn signal(&self) {
        // The counter can only be full of wake-ups that are still unread.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn reset(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use crate::wake_queue::WakeQueue;

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

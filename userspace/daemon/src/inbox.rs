//! What other threads have to say to a session: a queue, and a descriptor that its poll can wait for.
//!
//! Nothing bounds the queue itself; what goes in is bounded. Every note answers something that the session asked for
//! (an operation, an open, a close), and the session limits what it asks for; a job fails at most once.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::EventfdFlags;

/// A queue into a session. `None` inside means that the session is over.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    notes: Mutex<Option<VecDeque<T>>>,
    wake: OwnedFd,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> io::Result<Inbox<T>> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox { notes: Mutex::new(Some(VecDeque::new())), wake })
    }

    /// Hands a note over; it comes back when the session is over.
    pub(crate) fn push(&self, note: T) -> Result<(), T> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = notes.as_mut() else {
            return Err(note);
        };
        queue.push_back(note);
        drop(notes);
        // Nobody else has this eventfd, so it can only be full of wake-ups that are still unread.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    /// All notes so far, in order.
    pub(crate) fn take(&self) -> VecDeque<T> {
        // Read before the queue is emptied: a note that comes in between costs a wake-up, not a note.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes no more notes, and drops those that nobody will read.
    pub(crate) fn close(&self) {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(notes);
    }
}

impl<T> AsFd for Inbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_in_order_and_none_after_the_end() {
        let inbox = Inbox::new().unwrap();
        inbox.push(1).unwrap();
        inbox.push(2).unwrap();
        assert_eq!(inbox.take(), [1, 2]);
        assert!(inbox.take().is_empty());
        inbox.close();
        assert_eq!(inbox.push(3), Err(3));
        assert!(inbox.take().is_empty());
    }
}

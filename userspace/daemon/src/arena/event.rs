//! The eventfd by which a trainer learns that operations have completed.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// A counter that the daemon increments and the trainer reads.
///
/// Both share the open file, so a hostile trainer can fill the counter and clear `O_NONBLOCK`; a write would
/// then wait for a reader. Only the thread of that trainer's own session signals, so that no other one waits.
#[derive(Debug)]
pub(crate) struct CompletionEvent {
    pub(crate) eventfd: OwnedFd,
}

impl CompletionEvent {
    pub(crate) fn new() -> io::Result<CompletionEvent> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(CompletionEvent { eventfd })
    }

    /// Adds one, unless the counter is full.
    pub(crate) fn signal(&self) {
        if !self.has_room() {
            return;
        }
        match rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => log_limited!(warn, %errno, "cannot signal a trainer's eventfd"),
        }
    }

    /// Sets `O_NONBLOCK` again and returns whether the counter has room.
    fn has_room(&self) -> bool {
        if rustix::fs::fcntl_setfl(&self.eventfd, OFlags::NONBLOCK).is_err() {
            return false;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut poll = [PollFd::new(&self.eventfd, PollFlags::OUT)];
        matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(ready) if ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(event: &CompletionEvent) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(&event.eventfd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn signals_are_counted() {
        let event = CompletionEvent::new().unwrap();
        event.signal();
        event.signal();
        assert_eq!(count(&event), 2);
    }

    #[test]
    fn a_full_counter_in_blocking_mode_does_not_block() {
        let event = CompletionEvent::new().unwrap();
        rustix::io::write(&event.eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&event.eventfd, OFlags::empty()).unwrap();
        event.signal();
        assert_eq!(count(&event), u64::MAX - 1);
    }
}

//! The eventfd by which a trainer learns that operations have finished.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// A counter that the daemon increments and the trainer reads.
///
/// Both sides share the open file, so a hostile trainer can fill the counter and take away `O_NONBLOCK`; a write would
/// then wait for a reader. Only the thread of that trainer's own session may ring, so that nobody else waits with it.
#[derive(Debug)]
pub(crate) struct Bell {
    eventfd: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { eventfd })
    }

    /// Adds one. A full counter stays full: it says "look" as well as any other number.
    pub(crate) fn ring(&self) {
        if !self.ready() {
            return;
        }
        match rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => tracing::warn!(%errno, "cannot ring a trainer's eventfd"),
        }
    }

    /// Puts `O_NONBLOCK` back and sees whether there is room.
    fn ready(&self) -> bool {
        if rustix::fs::fcntl_setfl(&self.eventfd, OFlags::NONBLOCK).is_err() {
            return false;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut poll = [PollFd::new(&self.eventfd, PollFlags::OUT)];
        matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(ready) if ready > 0)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(bell: &Bell) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(bell, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn it_counts() {
        let bell = Bell::new().unwrap();
        bell.ring();
        bell.ring();
        assert_eq!(count(&bell), 2);
    }

    #[test]
    fn a_full_counter_that_blocks_holds_nobody() {
        let bell = Bell::new().unwrap();
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&bell, OFlags::empty()).unwrap();
        bell.ring();
        assert_eq!(count(&bell), u64::MAX - 1);
    }
}

//! Waits for file descriptors with a deadline.

use std::{
    io,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::time::TimeSpec,
};

/// The pause when a descriptor is in an error state, which ends every wait at once.
const BROKEN_PAUSE: Duration = Duration::from_millis(10);

/// Waits until one of `fds` is ready, a signal arrives, or `deadline`. Returns whether the last of them is readable.
pub(super) fn wait(fds: &[(BorrowedFd<'_>, PollFlags)], deadline: Option<Instant>) -> io::Result<bool> {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|(fd, flags)| PollFd::new(*fd, *flags)).collect();
    let timeout = deadline.map(|deadline| TimeSpec::from(deadline.saturating_duration_since(Instant::now())));
    match ppoll(&mut polled, timeout, None) {
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let broken = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
    let state = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::empty());
    if polled.iter().any(|fd| state(fd).intersects(broken)) {
        // The error shows when the descriptor is used.
        std::thread::sleep(BROKEN_PAUSE);
    }
    Ok(polled.last().is_some_and(|fd| state(fd).contains(PollFlags::POLLIN)))
}

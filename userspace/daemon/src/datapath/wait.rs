//! Sleeping until a descriptor is ready or a time has come.

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

/// How long to pause when a descriptor is in a state that would end every wait at once.
const BROKEN_PAUSE: Duration = Duration::from_millis(10);

/// Waits for any of `fds`, the last of which is the one that wakes. Says whether that one is readable.
///
/// Being interrupted by a signal counts as the end of the wait.
///
/// # Errors
/// What `ppoll(2)` says.
pub fn wait(fds: &[(BorrowedFd<'_>, PollFlags)], deadline: Option<Instant>) -> io::Result<bool> {
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
        // Never spin on it: the error shows when the descriptor is used.
        std::thread::sleep(BROKEN_PAUSE);
    }
    Ok(polled.last().is_some_and(|fd| state(fd).contains(PollFlags::POLLIN)))
}

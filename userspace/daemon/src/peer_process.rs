//! The process at the other end of a connection, followed by a pidfd. Its children may have inherited the
//! socket, so that its death does not end the connection.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerPidfd;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sumac_api::Channel;

/// The process that has connected.
#[derive(Debug)]
pub(crate) enum PeerProcess {
    Followed(OwnedFd),
    Ended,
    /// There is no pidfd: before Linux 6.5 of a process of another PID namespace, or for want of descriptors.
    Unknown,
}

impl PeerProcess {
    /// Returns the process at the other end. `pid`: of SO_PEERCRED.
    pub(crate) fn of(channel: &Channel, pid: i32) -> PeerProcess {
        use nix::errno::Errno;

        // It names the process itself, whose number may be in use again.
        let peer = match getsockopt(channel, PeerPidfd) {
            Ok(pidfd) => PeerProcess::Followed(pidfd),
            Err(Errno::EINVAL | Errno::ESRCH) => PeerProcess::Ended,
            // Before Linux 6.5.
            Err(Errno::ENOPROTOOPT) => PeerProcess::numbered(pid),
            Err(_) => PeerProcess::Unknown,
        };
        if matches!(peer, PeerProcess::Unknown) {
            tracing::debug!(pid, "a trainer has no pidfd: its end is that of its connection");
        }
        peer
    }

    /// Returns the process of this number, if it is the same before and after it was opened.
    fn numbered(pid: i32) -> PeerProcess {
        let Some(number) = Pid::from_raw(pid) else { return PeerProcess::Unknown };
        let started = start_time(pid);
        match pidfd_open(number, PidfdFlags::empty()) {
            Ok(_) if started.is_none() => PeerProcess::Unknown,
            Ok(pidfd) if start_time(pid) == started => PeerProcess::Followed(pidfd),
            Ok(_) | Err(Errno::SRCH) => PeerProcess::Ended,
            Err(_) => PeerProcess::Unknown,
        }
    }

    /// Returns the entry by which a poll notices the end; of another descriptor, which is not waited for, if
    /// the process is not followed.
    pub(crate) fn poll<'a>(&'a self, other: BorrowedFd<'a>) -> PollFd<'a> {
        match self {
            PeerProcess::Followed(pidfd) => PollFd::new(pidfd, PollFlags::IN),
            PeerProcess::Ended | PeerProcess::Unknown => PollFd::from_borrowed_fd(other, PollFlags::empty()),
        }
    }

    /// Returns whether the process has ended, by its entry after a poll.
    pub(crate) fn has_ended(&self, entry: &PollFd<'_>) -> bool {
        match self {
            PeerProcess::Followed(_) => !entry.revents().is_empty(),
            PeerProcess::Ended => true,
            PeerProcess::Unknown => false,
        }
    }
}

/// Returns the time at which a process began, in clock ticks since boot (proc_pid_stat(5), field 22); `None`
/// without such a process, or where /proc hides it.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may have any characters.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::process::Command;

    fn has_ended(peer: &PeerProcess) -> bool {
        let other = std::fs::File::open("/dev/null").unwrap();
        let mut entries = [peer.poll(other.as_fd())];
        rustix::event::poll(&mut entries, Some(&rustix::time::Timespec::default())).unwrap();
        peer.has_ended(&entries[0])
    }

    #[test]
    fn a_process_is_followed_to_its_end_by_number_too() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id().cast_signed();
        let peer = PeerProcess::numbered(pid);
        assert!(matches!(peer, PeerProcess::Followed(_)) && !has_ended(&peer), "{peer:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(&peer));
        assert!(
            matches!(PeerProcess::numbered(pid), PeerProcess::Ended | PeerProcess::Unknown),
            "its number is free"
        );
        assert!(
            matches!(PeerProcess::numbered(0), PeerProcess::Unknown),
            "a process of another PID namespace"
        );
    }

    #[test]
    fn a_connection_names_the_process_that_connected() {
        let (ours, _theirs) = Channel::pair().unwrap();
        let peer = PeerProcess::of(&ours, std::process::id().cast_signed());
        assert!(matches!(peer, PeerProcess::Followed(_)) && !has_ended(&peer), "{peer:?}");
        assert!(has_ended(&PeerProcess::Ended) && !has_ended(&PeerProcess::Unknown));
    }
}

//! Messages and file descriptors over a `SOCK_SEQPACKET` Unix socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::{MAX_FDS, MAX_MESSAGE};

/// An error of a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The path cannot be a socket's address.
    #[error("{path:?} cannot be a socket's address: {source}; it may have 107 bytes")]
    Path {
        /// The path.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// No daemon listens at the path.
    #[error("cannot connect to {path:?}: {source}; is the daemon running (`sumac daemon --config FILE`)?")]
    Connect {
        /// The path.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The socket's permissions do not let this user in.
    #[error(
        "user {uid} may not connect to {path:?} ({found}); join that group (`usermod -aG`, and log in \
        again), or set `socket_group` and `socket_mode` in the daemon's configuration"
    )]
    Forbidden {
        /// The path.
        path: String,
        /// The user of this process.
        uid: u32,
        /// The socket's permissions, as far as this user can see them.
        found: String,
    },
    /// A message exceeds the limit and was dropped.
    #[error("a message of {length} bytes exceeds the limit of {MAX_MESSAGE} bytes")]
    TooLarge {
        /// The message's length in bytes.
        length: usize,
    },
    /// A message carried more than [`MAX_FDS`] descriptors; all were closed.
    #[error("a message carried more than {MAX_FDS} file descriptor")]
    TooManyFds,
    /// The socket's buffer is full: the peer does not read.
    #[error("the peer does not read its messages")]
    Full,
    /// No message has arrived (non-blocking receive).
    #[error("no message has arrived")]
    Empty,
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
    /// A system call failed.
    #[error("cannot {doing} the local socket: {source}")]
    System {
        /// The failed action, a verb.
        doing: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The outcome of a receive.
#[derive(Debug)]
pub enum Inbound<'a> {
    /// A message.
    Message(Message<'a>),
    /// The peer has closed the connection, or sent an empty message.
    End,
}

/// A message with its file descriptors.
#[derive(Debug)]
pub struct Message<'a> {
    /// The JSON text.
    pub bytes: &'a [u8],
    /// At most [`MAX_FDS`] descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// Descriptors came with it that this process could not receive: it may have no more files open.
    pub has_lost_fds: bool,
}

/// One end of a connection. Sending and receiving take `&self` and may happen on different threads.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// When the path is too long or no daemon listens there.
    pub fn connect(path: &Path) -> Result<Channel, FrameError> {
        let text = || path.display().to_string();
        let address = SocketAddrUnix::new(path)
            .map_err(|errno| FrameError::Path { path: text(), source: errno.into() })?;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| FrameError::System { doing: "create", source: errno.into() })?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => Ok(Channel { socket }),
            Err(Errno::ACCESS) => Err(forbidden(path)),
            Err(errno) => Err(FrameError::Connect { path: text(), source: errno.into() }),
        }
    }

    /// Wraps a connected socket.
    #[must_use]
    pub fn from_socket(socket: OwnedFd) -> Channel {
        Channel { socket }
    }

    /// Creates two connected ends, for tests.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn pair() -> Result<(Channel, Channel), FrameError> {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map(|(a, b)| (Channel { socket: a }, Channel { socket: b }))
            .map_err(|errno| FrameError::System { doing: "create", source: errno.into() })
    }

    /// Sends one message; blocks while the peer's buffer is full.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`], [`FrameError::Closed`], or [`FrameError::System`].
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL)
    }

    /// Sends one message without blocking.
    ///
    /// # Errors
    /// As [`Channel::send`], and [`FrameError::Full`].
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> Result<(), FrameError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(FrameError::TooLarge { length: bytes.len() });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(FrameError::TooManyFds);
        }
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags)
        });
        match sent {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS) => Err(FrameError::Full),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(FrameError::Closed),
            Err(errno) => Err(FrameError::System { doing: "send on", source: errno.into() }),
        }
    }

    /// Receives one message into `buffer`, which must hold [`MAX_MESSAGE`] bytes; blocks until it arrives.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] and [`FrameError::TooManyFds`] concern one message only; the connection
    /// remains usable.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<Inbound<'a>, FrameError> {
        self.receive_with(buffer, RecvFlags::empty())
    }

    /// Receives one message without blocking.
    ///
    /// # Errors
    /// As [`Channel::receive`], and [`FrameError::Empty`].
    pub fn try_receive<'a>(&self, buffer: &'a mut [u8]) -> Result<Inbound<'a>, FrameError> {
        self.receive_with(buffer, RecvFlags::DONTWAIT)
    }

    fn receive_with<'a>(&self, buffer: &'a mut [u8], flags: RecvFlags) -> Result<Inbound<'a>, FrameError> {
        // Space for one more than allowed detects an excess; all received descriptors are owned, and so
        // closed.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS + 1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        // With TRUNC the kernel returns the message's real length even if the buffer is too small.
        let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
        let mut receive = || {
            rustix::io::retry_on_intr(|| {
                let mut parts = [IoSliceMut::new(&mut *buffer)];
                rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags)
            })
        };
        let received = match receive() {
            // The kernel reports a peer that closed with unread messages once, before its last message.
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Err(FrameError::Empty),
            Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(FrameError::Closed),
            Err(errno) => {
                return Err(FrameError::System { doing: "receive from", source: errno.into() });
            }
        };
        let mut fds = Vec::new();
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
                fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(FrameError::TooLarge { length: received.bytes });
        }
        if fds.len() > MAX_FDS {
            return Err(FrameError::TooManyFds);
        }
        // There was space for all of them: the kernel has stopped at this process's limit.
        let has_lost_fds = received.flags.contains(ReturnFlags::CTRUNC);
        if received.bytes == 0 {
            return Ok(Inbound::End);
        }
        match buffer.get(..received.bytes) {
            Some(bytes) => Ok(Inbound::Message(Message { bytes, fds, has_lost_fds })),
            None => Err(FrameError::TooLarge { length: received.bytes }),
        }
    }

    /// Closes the connection in both directions; a blocked [`Channel::receive`] returns.
    pub fn shutdown(&self) {
        // It fails only if the peer has closed already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// Returns the error for a socket, or a directory above it, that does not let this user in.
fn forbidden(path: &Path) -> FrameError {
    let found = match rustix::fs::stat(path) {
        Ok(stat) => {
            let mode = stat.st_mode & 0o777;
            format!("its mode is {mode:04o}, its owner user {}, its group {}", stat.st_uid, stat.st_gid)
        }
        Err(_) => "a directory above it is closed to this user".to_owned(),
    };
    let uid = rustix::process::geteuid().as_raw();
    FrameError::Forbidden { path: path.display().to_string(), uid, found }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer() -> Vec<u8> {
        vec![0; MAX_MESSAGE]
    }

    fn message(inbound: Inbound<'_>) -> Message<'_> {
        match inbound {
            Inbound::Message(message) => message,
            Inbound::End => panic!("the connection ended"),
        }
    }

    #[test]
    fn messages_keep_their_boundaries() {
        let (a, b) = Channel::pair().unwrap();
        a.send(b"one", &[]).unwrap();
        a.send(b"two", &[]).unwrap();
        let mut room = buffer();
        assert_eq!(message(b.receive(&mut room).unwrap()).bytes, b"one");
        assert_eq!(message(b.receive(&mut room).unwrap()).bytes, b"two");
    }

    #[test]
    fn a_descriptor_arrives_with_its_message() {
        let (a, b) = Channel::pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        a.send(b"pipe", &[write.as_fd()]).unwrap();
        drop(write);
        let mut room = buffer();
        let got = message(b.receive(&mut room).unwrap());
        assert_eq!(got.fds.len(), 1);
        rustix::io::write(&got.fds[0], b"x").unwrap();
        let mut byte = [0; 1];
        assert_eq!(rustix::io::read(&read, &mut byte).unwrap(), 1);
    }

    #[test]
    fn the_longest_message_passes_and_a_longer_one_is_an_error() {
        let (a, b) = Channel::pair().unwrap();
        let mut room = buffer();
        a.send(&vec![b'x'; MAX_MESSAGE], &[]).unwrap();
        assert_eq!(message(b.receive(&mut room).unwrap()).bytes.len(), MAX_MESSAGE);
        assert!(matches!(a.send(&vec![b'x'; MAX_MESSAGE + 1], &[]), Err(FrameError::TooLarge { .. })));
        // A hostile sender does not have this check.
        rustix::net::send(&a, &vec![b'x'; MAX_MESSAGE + 1], SendFlags::empty()).unwrap();
        assert!(matches!(
            b.receive(&mut room),
            Err(FrameError::TooLarge { length }) if length == MAX_MESSAGE + 1
        ));
        a.send(b"after", &[]).unwrap();
        assert_eq!(message(b.receive(&mut room).unwrap()).bytes, b"after");
    }

    #[test]
    fn too_many_descriptors_are_closed() {
        let (a, b) = Channel::pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let many = [write.as_fd(); 20];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let text = [IoSlice::new(b"many")];
        rustix::net::sendmsg(&a, &text, &mut control, SendFlags::empty()).unwrap();
        let mut room = buffer();
        assert!(matches!(b.receive(&mut room), Err(FrameError::TooManyFds)));
        drop(write);
        // With every copy closed the reader gets the end of the pipe; a leaked one would block here.
        let mut byte = [0; 1];
        assert_eq!(rustix::io::read(&read, &mut byte).unwrap(), 0);
    }

    #[test]
    fn a_peer_that_does_not_read_fills_the_buffer() {
        let (a, _b) = Channel::pair().unwrap();
        let message = vec![b'x'; 1024];
        let full = (0..100_000).find_map(|_| a.try_send(&message, &[]).err());
        assert!(matches!(full, Some(FrameError::Full)));
    }

    #[test]
    fn the_last_message_of_a_peer_that_did_not_read_arrives() {
        let (a, b) = Channel::pair().unwrap();
        b.send(b"unread", &[]).unwrap();
        a.send(b"last", &[]).unwrap();
        drop(a);
        let mut room = buffer();
        assert_eq!(message(b.receive(&mut room).unwrap()).bytes, b"last");
        assert!(matches!(b.receive(&mut room), Ok(Inbound::End)));
    }

    #[test]
    fn a_peer_that_closes_ends_the_connection() {
        let (a, b) = Channel::pair().unwrap();
        let mut room = buffer();
        assert!(matches!(b.try_receive(&mut room), Err(FrameError::Empty)));
        drop(a);
        assert!(matches!(b.receive(&mut room), Ok(Inbound::End)));
        assert!(matches!(b.send(b"x", &[]), Err(FrameError::Closed)));
    }
}

//! The socket between predecessor and successor: messages in CBOR, with file descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ciborium::de::from_reader;
use ciborium::ser::into_writer;
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message; the state is in a file of its own.
const MAX_MESSAGE: usize = 32 << 10;
/// The most descriptors of a message; the kernel's limit is 253.
pub(super) const MAX_DESCRIPTORS: usize = 64;

/// One end of the connection.
#[derive(Debug)]
pub(super) struct HandoverChannel {
    socket: OwnedFd,
}

impl HandoverChannel {
    pub(super) fn new(socket: OwnedFd) -> HandoverChannel {
        HandoverChannel { socket }
    }

    /// Sets the time after which [`HandoverChannel::receive`] fails.
    pub(super) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&self.socket, direction, Some(timeout))?;
        }
        Ok(())
    }

    pub(super) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.send_with(message, &[])
    }

    pub(super) fn send_with(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        into_writer(message, &mut bytes).map_err(io::Error::other)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("too many descriptors for a message"));
        }
        let parts = [IoSlice::new(&bytes)];
        retry_on_intr(|| rustix::net::sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Receives a message, and its descriptors, which are close-on-exec.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::other("a message was truncated; are there too many open files?"));
        }
        let message = from_reader(&bytes[..received.bytes]).map_err(io::Error::other)?;
        Ok((message, fds))
    }
}

impl AsFd for HandoverChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

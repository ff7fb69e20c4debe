//! Notification of changes in the network of the calling thread's namespace.

use std::io;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;

/// rtnetlink's multicast groups (RTMGRP_*): links, neighbours, IPv4 addresses and IPv4 routes.
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40;
/// Room for one message. It is not parsed, so that one cut short is as good.
const MESSAGE_BYTES: usize = 4096;

/// A netlink socket that the kernel notifies of changes.
#[derive(Debug)]
pub struct Changes(Socket);

impl Changes {
    /// # Errors
    /// The kernel's, such as no free descriptor.
    pub fn open() -> io::Result<Changes> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        socket.set_non_blocking(true)?;
        Ok(Changes(socket))
    }

    /// Returns whether a link, a neighbour, an IPv4 address or an IPv4 route has changed since the last call.
    ///
    /// # Errors
    /// The kernel's.
    pub fn any(&self) -> io::Result<bool> {
        let mut any = false;
        loop {
            let mut message = Vec::with_capacity(MESSAGE_BYTES);
            match self.0.recv(&mut message, 0) {
                Ok(_) => {}
                // The kernel has dropped messages beyond the socket's buffer.
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(error),
            }
            any = true;
        }
    }
}

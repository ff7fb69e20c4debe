//! Socket options and errors that xsk-rs does not expose.

use std::{
    io,
    os::{fd::BorrowedFd, unix::net::UnixDatagram},
};

use rustix::{
    io::{Errno, FdFlags},
    net::{self, SendFlags, netdevice, sockopt, xdp::XdpOptionsFlags},
};

/// Whether the driver reads and writes the frames in place.
pub(crate) fn is_zero_copy(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(sockopt::xdp_options(fd)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
}

/// Closes the socket on exec: libxdp opens it without `SOCK_CLOEXEC`, and a child process would keep the
/// queue busy.
pub(crate) fn close_on_exec(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?)
}

/// Raises the limit of bytes that a copy-mode socket may have in flight.
///
/// With CAP_NET_ADMIN the limit may exceed the system's maximum. Without it the maximum has to do.
pub(crate) fn raise_send_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    let bytes = bytes.min(i32::MAX as usize);
    if sockopt::set_socket_send_buffer_size_force(fd, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(fd, bytes);
    }
}

/// Returns the error of a wake-up that sent nothing, if it is one. xsk-rs's wake-up ignores ENETDOWN.
pub(crate) fn send_error(fd: BorrowedFd<'_>) -> io::Result<()> {
    match net::send(fd, &[], SendFlags::DONTWAIT) {
        Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Fails unless the calling thread's network namespace has the interface.
pub(crate) fn check_interface(name: &str) -> io::Result<()> {
    netdevice::name_to_index(UnixDatagram::unbound()?, name)?;
    Ok(())
}

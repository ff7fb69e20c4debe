//! The system calls of AF_XDP, without policy: numbers in, `io::Result` out.

use std::{
    ffi::c_int,
    io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::null_mut,
};

use crate::abi::Statistics;

/// The rings whose size can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingKind {
    Fill,
    Completion,
    Rx,
    Tx,
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Opens an AF_XDP socket.
pub(crate) fn open() -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set<T>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`, which the kernel only reads.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), len) })?;
    Ok(())
}

/// Reads an option into a structure of integers. A kernel that knows fewer fields leaves the rest zero.
///
/// # Safety
///
/// Every bit pattern must be valid for `T`.
unsafe fn get<T>(fd: BorrowedFd<'_>, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, value.as_mut_ptr().cast(), &raw mut len)
    })?;
    // SAFETY: zeroed, then partly written; the caller vouches for the bit patterns.
    Ok(unsafe { value.assume_init() })
}

/// Gives the UMEM to the kernel.
///
/// # Safety
///
/// The memory must stay mapped until the socket is closed, and its frames must be shared with the kernel
/// as [`crate::umem`] says.
pub(crate) unsafe fn register_umem(
    fd: BorrowedFd<'_>,
    address: *mut u8,
    len: usize,
    frame_size: u32,
) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: address as u64,
        len: len as u64,
        chunk_size: frame_size,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
}

/// Sets the number of entries of a ring, a power of two.
pub(crate) fn set_ring_size(fd: BorrowedFd<'_>, ring: RingKind, entries: u32) -> io::Result<()> {
    let name = match ring {
        RingKind::Fill => libc::XDP_UMEM_FILL_RING,
        RingKind::Completion => libc::XDP_UMEM_COMPLETION_RING,
        RingKind::Rx => libc::XDP_RX_RING,
        RingKind::Tx => libc::XDP_TX_RING,
    };
    set(fd, libc::SOL_XDP, name, &entries)
}

/// Raises the limit of bytes that may be on their way out of a copy-mode socket.
///
/// The privileged form goes above the system's maximum; without the privilege the maximum must do.
pub(crate) fn raise_send_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    if set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes).is_err() {
        let _ = set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes);
    }
}

/// Where each ring's fields lie in its mapping.
pub(crate) fn offsets(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: a structure of integers.
    unsafe { get(fd, libc::XDP_MMAP_OFFSETS) }
}

/// What the kernel counted for the socket.
pub(crate) fn statistics(fd: BorrowedFd<'_>) -> io::Result<Statistics> {
    // SAFETY: a structure of integers.
    unsafe { get::<libc::xdp_statistics>(fd, libc::XDP_STATISTICS) }.map(Statistics::from)
}

/// Whether the driver reads and writes frames in place.
pub(crate) fn is_zero_copy(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: a structure of integers.
    let options = unsafe { get::<libc::xdp_options>(fd, libc::XDP_OPTIONS) }?;
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Binds the socket to a queue.
pub(crate) fn bind(fd: BorrowedFd<'_>, ifindex: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `address`, which the kernel only reads.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(())
}

/// Asks the kernel to send what the transmit ring holds.
pub(crate) fn kick_tx(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no data and no address, so no pointer is followed.
    let sent = unsafe { libc::sendto(fd.as_raw_fd(), null_mut(), 0, libc::MSG_DONTWAIT, null_mut(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks the driver to look at the fill ring again.
pub(crate) fn kick_rx(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no buffer and no address, so no pointer is followed.
    let received =
        unsafe { libc::recvfrom(fd.as_raw_fd(), null_mut(), 0, libc::MSG_DONTWAIT, null_mut(), null_mut()) };
    if received < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The index of an interface in the caller's network namespace.
pub(crate) fn ifindex(name: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: a string that ends in zero.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

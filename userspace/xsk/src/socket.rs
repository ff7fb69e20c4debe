//! A [`Port`] bound to one queue of one interface.

mod open;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use serde::Serialize;

use crate::{abi::Statistics, error::OpenError, port::Port, syscall};

/// How frames should get from the driver to user space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Zero-copy where the driver can, else copy. [`Socket::bound`] says which it became and why.
    #[default]
    Auto,
    /// Zero-copy or an error.
    ZeroCopy,
    /// Copy, also where the driver could do without.
    Copy,
}

/// Ethernet's header and one tag, which an MTU does not count.
pub const LINK_HEADER: u32 = 18;

/// What kind of socket is wanted.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// The interface's name.
    pub interface: String,
    /// The queue of the interface, from 0.
    pub queue: u32,
    /// Packets that can be on their way out; as many can wait to be received. At least 1, at most 65,536.
    pub frames: u32,
    /// Most bytes of a packet, from its Ethernet header on. Above 3,840 it goes in several descriptors
    /// (`XDP_USE_SG`, Linux 6.6), and the program that steers to the socket must be one for frames in pieces.
    pub packet_size: u32,
    /// Zero-copy or copy.
    pub mode: Mode,
}

impl SocketConfig {
    /// The defaults for a queue: 1,024 packets each way, as an MTU of 1,500 has them.
    pub fn new(interface: &str, queue: u32) -> SocketConfig {
        SocketConfig {
            interface: interface.to_owned(),
            queue,
            frames: 1024,
            packet_size: 1500 + LINK_HEADER,
            mode: Mode::Auto,
        }
    }
}

/// What a socket got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// Whether the driver reads and writes the frames in place (`XDP_OPTIONS`).
    pub zero_copy: bool,
    /// Why zero-copy was wanted and not had.
    pub fallback: Option<String>,
}

/// An AF_XDP socket with its frames.
///
/// It receives nothing until a program redirects to it: put [`Socket::as_fd`] into the program's XSKMAP.
#[derive(Debug)]
pub struct Socket {
    // Dropped first: the kernel lets go of frames and rings before they are unmapped.
    fd: OwnedFd,
    port: Port,
    bound: Bound,
}

impl Socket {
    /// Opens a socket and binds it.
    ///
    /// With [`Mode::Auto`] a refused zero-copy bind is tried again in copy mode, with a new socket and new
    /// frames, because the kernel may have kept the old ones. A queue that is busy is tried again for half a
    /// second: the kernel releases the queue of a closed socket a moment later.
    pub fn open(config: &SocketConfig) -> Result<Socket, OpenError> {
        open::open(config)
    }

    /// What was bound, as the kernel says.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Shows up to `budget` received packets; see [`Port::receive`].
    pub fn receive(&mut self, budget: usize, each: impl FnMut(&[u8])) -> usize {
        let count = self.port.receive(budget, each);
        if self.port.fill_needs_wakeup() {
            // The driver will look at the fill ring by itself later; a failure costs time only.
            let _ = syscall::kick_rx(self.fd.as_fd());
        }
        count
    }

    /// The frames and rings, to write and submit packets. [`Socket::flush`] sends them.
    pub fn port(&mut self) -> &mut Port {
        &mut self.port
    }

    /// Frees the frames of sent packets, publishes what was submitted and wakes the kernel if it sleeps.
    ///
    /// That the kernel has no room or memory now (EAGAIN, EBUSY, ENOBUFS) is not an error: the packets stay in the
    /// ring, [`Port::pending`] counts them, and the next flush tries again.
    pub fn flush(&mut self) -> io::Result<()> {
        self.port.reap();
        self.port.publish();
        let mut pending = self.port.pending();
        // In copy mode one call sends some 32 packets and says EAGAIN when there are more.
        while pending > 0 && self.port.tx_needs_wakeup() {
            match syscall::kick_tx(self.fd.as_fd()) {
                Ok(()) if self.bound.zero_copy => break,
                Ok(()) => {}
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
            self.port.reap();
            let left = self.port.pending();
            if left >= pending {
                break;
            }
            pending = left;
        }
        Ok(())
    }

    /// What the kernel counted.
    pub fn statistics(&self) -> io::Result<Statistics> {
        syscall::statistics(self.fd.as_fd())
    }

    /// Where all frames are.
    pub fn conservation(&self) -> crate::Conservation {
        self.port.conservation()
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR))
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

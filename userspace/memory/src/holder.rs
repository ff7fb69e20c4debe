//! Writable mappings that outlive the daemon that made them.
//!
//! A registered file is sealed against further writable mappings, so a successor maps it for reading. Its
//! predecessor stays as the memory holder: a process that does nothing but keep its mappings. The successor
//! writes through the holder's `/proc/self/mem`, which the holder has opened itself: no right to trace a
//! process is involved, and no process number.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::retry_on_intr;
use rustix::net::SendFlags;

/// A memory holder, as the daemon has it that writes through it.
///
/// The holder ends once every mapping was released, or all of its descriptors were closed.
#[derive(Debug)]
pub struct Holder {
    memory: OwnedFd,
    link: OwnedFd,
    /// Another daemon uses the mappings from here on.
    is_left: AtomicBool,
}

impl Holder {
    /// Takes the descriptors of [`Holder::descriptors`] over.
    pub fn new([memory, link]: [OwnedFd; 2]) -> Holder {
        Holder { memory, link, is_left: AtomicBool::new(false) }
    }

    /// Returns the descriptors that another daemon needs.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.as_fd(), self.link.as_fd()]
    }

    /// Leaves the mappings to another daemon: none is released here.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// Writes to the holder's memory. Fails when it has ended.
    fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match retry_on_intr(|| rustix::io::pwrite(&self.memory, rest, address + written as u64))? {
                0 => return Err(io::Error::other("the memory holder has ended")),
                some => written += some,
            }
        }
        Ok(())
    }
}

/// A mapping that a holder keeps. Dropped, it is released there.
#[derive(Debug)]
pub(crate) struct HeldMapping {
    pub(crate) holder: Arc<Holder>,
    pub(crate) address: u64,
}

impl HeldMapping {
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.holder.write(self.address + offset as u64, bytes)
    }
}

impl Drop for HeldMapping {
    fn drop(&mut self) {
        if !self.holder.is_left.load(Ordering::Relaxed) {
            // Fails when the holder has ended, and its mappings with it.
            let message = self.address.to_ne_bytes();
            let _ = retry_on_intr(|| rustix::net::send(&self.holder.link, &message, SendFlags::NOSIGNAL));
        }
    }
}

//! Writable mappings that outlive the daemon that made them.
//!
//! A registered file is sealed against further writable mappings, so a successor maps it for reading. Its
//! predecessor stays as the memory holder: a process that does nothing but keep its mappings. The successor
//! writes through the holder's `/proc/self/mem`, which the holder has opened itself: no right to trace a
//! process is involved, and no process number.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::SharedRegion;

/// A memory holder, as the daemon has it that writes through it.
///
/// The holder ends once every mapping was released, and once all of its descriptors were closed.
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
    pub(crate) holder: std::sync::Arc<Holder>,
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

/// The holder's own part: the regions that it keeps for its successor.
#[derive(Debug)]
pub struct HeldRegions {
    link: OwnedFd,
    regions: HashMap<u64, SharedRegion>,
}

impl HeldRegions {
    /// Prepares this process for a holder. Returns its part, and the successor's descriptors.
    ///
    /// # Errors
    /// Without `/proc`, or where this process may not open its own memory.
    pub fn prepare() -> io::Result<(HeldRegions, Holder)> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let memory = rustix::fs::open("/proc/self/mem", flags, Mode::empty())?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (own, other) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok((HeldRegions { link: own, regions: HashMap::new() }, Holder::new([memory, other])))
    }

    /// Keeps a region that is mapped for writing here.
    pub fn insert(&mut self, region: SharedRegion) {
        self.regions.insert(region.address(), region);
    }

    /// Waits until the successor has released all regions, or has ended.
    pub fn keep(mut self) {
        let mut address = [0; size_of::<u64>()];
        while !self.regions.is_empty() {
            match retry_on_intr(|| rustix::net::recv(&self.link, &mut address, RecvFlags::empty())) {
                Ok((_, length)) if length == address.len() => {
                    self.regions.remove(&u64::from_ne_bytes(address));
                }
                Ok(_) | Err(_) => return,
            }
        }
    }
}

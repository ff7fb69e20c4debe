//! The part of a memory holder: the regions that it keeps for its successor.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::SharedRegion;
use crate::holder::Holder;

/// The regions of this process that its successor writes to. See [`Holder`].
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

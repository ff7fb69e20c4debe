//! A registered region, with what it counts in its user's shares.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sumac_api::{Code, Failure};
use sumac_memory::{FurtherMappings, RegionError, SharedRegion};

use crate::quotas::{Quotas, Reservation};

fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A mapping that counts until the last lease on it has ended: an operation may outlast the registration.
#[derive(Debug)]
pub(crate) struct Region {
    pub(super) shared: SharedRegion,
    /// Its number in this process, by which it is named in a handover.
    pub(crate) number: u64,
    pub(crate) uid: u32,
    /// The file, for another daemon; `None` where the kernel lets none map it.
    pub(crate) file: Option<OwnedFd>,
    /// One of the regions, and its bytes.
    _reserved: [Reservation; 2],
}

impl Region {
    pub(super) fn register(
        quotas: &Quotas,
        uid: u32,
        fd: OwnedFd,
        size: u64,
        further: FurtherMappings,
    ) -> Result<Arc<Region>, Failure> {
        let map = |size| SharedRegion::from_fd(fd.as_fd(), size, further);
        let (shared, reserved) = Region::map(quotas, uid, size, map)?;
        let file = (further == FurtherMappings::Allowed).then_some(fd);
        Ok(Arc::new(Region { shared, number: new_number(), uid, file, _reserved: reserved }))
    }

    /// Maps a region that another daemon hands over.
    pub(crate) fn take_over(
        quotas: &Quotas,
        uid: u32,
        fd: OwnedFd,
        size: u64,
    ) -> Result<Arc<Region>, Failure> {
        let map = |size| SharedRegion::taken_over(fd.as_fd(), size);
        let (shared, reserved) = Region::map(quotas, uid, size, map)?;
        Ok(Arc::new(Region { shared, number: new_number(), uid, file: Some(fd), _reserved: reserved }))
    }

    fn map(
        quotas: &Quotas,
        uid: u32,
        size: u64,
        map: impl FnOnce(usize) -> Result<SharedRegion, RegionError>,
    ) -> Result<(SharedRegion, [Reservation; 2]), Failure> {
        let reserved = [quotas.regions.reserve(uid, 1)?, quotas.mapped.reserve(uid, size)?];
        let shared = usize::try_from(size).map_err(|_| RegionError::Size { size }).and_then(map);
        let shared = shared.map_err(|error| Failure::new(Code::BadRegion, error.to_string()))?;
        Ok((shared, reserved))
    }

    pub(crate) fn size(&self) -> u64 {
        self.shared.len() as u64
    }

    /// Whether an operation still leases some of it.
    pub(super) fn is_leased(self: &Arc<Region>) -> bool {
        Arc::strong_count(self) > 1
    }
}

//! A registered region, with what it counts in its user's shares.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sumac_api::{Code, Failure};
use sumac_memory::{RegionError, SharedRegion};

use crate::quotas::{Quotas, Reservation};

/// A mapping that counts until the last lease on it has ended: an operation may outlast the registration.
#[derive(Debug)]
pub(crate) struct Region {
    pub(super) shared: SharedRegion,
    /// One of the regions, and its bytes.
    _reserved: [Reservation; 2],
}

impl Region {
    pub(super) fn register(
        quotas: &Quotas,
        uid: u32,
        fd: &OwnedFd,
        size: u64,
    ) -> Result<Arc<Region>, Failure> {
        let reserved = [quotas.regions.reserve(uid, 1)?, quotas.mapped.reserve(uid, size)?];
        let shared = match usize::try_from(size) {
            Ok(size) => SharedRegion::from_fd(fd.as_fd(), size),
            Err(_) => Err(RegionError::Size { size }),
        };
        let shared = shared.map_err(|error| Failure::new(Code::BadRegion, error.to_string()))?;
        Ok(Arc::new(Region { shared, _reserved: reserved }))
    }

    /// Whether an operation still leases some of it.
    pub(super) fn is_leased(self: &Arc<Region>) -> bool {
        Arc::strong_count(self) > 1
    }
}

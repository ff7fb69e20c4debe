//! A trainer's region as it is mapped here.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sumac_api::{Code, Failure};
use sumac_memory::{FurtherMappings, RegionError, SharedRegion};

/// A mapping that lasts until the last lease on it has ended.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(super) shared: SharedRegion,
    /// The file, for another daemon; `None` where the kernel lets none map it.
    pub(super) file: Option<OwnedFd>,
}

impl MappedRegion {
    /// Maps the first `size` bytes of a trainer's file.
    pub(crate) fn map(
        fd: OwnedFd,
        size: u64,
        further: FurtherMappings,
    ) -> Result<Arc<MappedRegion>, Failure> {
        let map = |size| SharedRegion::from_fd(fd.as_fd(), size, further);
        let shared = mapped(size, map)?;
        let file = (further == FurtherMappings::Allowed).then_some(fd);
        Ok(Arc::new(MappedRegion { shared, file }))
    }

    /// Maps a region that another daemon hands over.
    pub(crate) fn take_over(fd: OwnedFd, size: u64) -> Result<Arc<MappedRegion>, Failure> {
        let shared = mapped(size, |size| SharedRegion::taken_over(fd.as_fd(), size))?;
        Ok(Arc::new(MappedRegion { shared, file: Some(fd) }))
    }
}

fn mapped(
    size: u64,
    map: impl FnOnce(usize) -> Result<SharedRegion, RegionError>,
) -> Result<SharedRegion, Failure> {
    let shared = usize::try_from(size).map_err(|_| RegionError::Size { size }).and_then(map);
    shared.map_err(|error| Failure::new(Code::BadRegion, error.to_string()))
}

//! A trainer's region as it is mapped here.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sumac_api::{Channel, Code, Failure};
use sumac_memory::{Holder, RegionError, SharedRegion};

/// A mapping that lasts until the last lease on it has ended.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(super) shared: SharedRegion,
    /// The file, for another daemon.
    pub(super) file: OwnedFd,
    /// The connection of the trainer, if it is there, where another process holds the writable mapping.
    trainer: Option<Arc<Channel>>,
}

impl MappedRegion {
    /// Maps the first `size` bytes of a trainer's file.
    pub(crate) fn map(file: OwnedFd, size: u64) -> Result<Arc<MappedRegion>, Failure> {
        let shared = mapped(size, |size| SharedRegion::from_fd(file.as_fd(), size))?;
        Ok(Arc::new(MappedRegion { shared, file, trainer: None }))
    }

    /// Maps a region that another daemon hands over, whose writable mapping is at this address of its holder.
    pub(crate) fn take_over(
        file: OwnedFd,
        size: u64,
        (holder, address): (&Arc<Holder>, u64),
        trainer: Option<Arc<Channel>>,
    ) -> Result<Arc<MappedRegion>, Failure> {
        let map = |size| SharedRegion::taken_over(file.as_fd(), size, holder, address);
        let shared = mapped(size, map)?;
        Ok(Arc::new(MappedRegion { shared, file, trainer }))
    }

    /// Ends the trainer's connection, whose results can no longer be written: before it is notified of any.
    pub(super) fn lose(&self, error: &std::io::Error) {
        log_limited!(
            error,
            %error,
            "the process that holds trainers' memory since a live upgrade is gone; a trainer is cut off"
        );
        if let Some(trainer) = &self.trainer {
            trainer.shutdown();
        }
    }
}

fn mapped(
    size: u64,
    map: impl FnOnce(usize) -> Result<SharedRegion, RegionError>,
) -> Result<SharedRegion, Failure> {
    let shared = usize::try_from(size).map_err(|_| RegionError::Size { size }).and_then(map);
    shared.map_err(|error| Failure::new(Code::BadRegion, error.to_string()))
}

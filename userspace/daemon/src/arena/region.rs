//! A trainer's region as it is mapped here, or one of this daemon's that trainers read.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sumac_api::{Channel, Code, Failure};
use sumac_memory::{Holder, RegionError, SharedRegion};

/// A mapping that lasts until the last lease on it has ended.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(super) shared: SharedRegion,
    /// The file, for another daemon, and for trainers that read.
    pub(crate) file: OwnedFd,
    /// The connections of the trainers that have it, where another process holds the writable mapping.
    trainers: Vec<Arc<Channel>>,
    /// Whether all pages are known to be allocated.
    is_whole: AtomicBool,
}

impl MappedRegion {
    /// Maps the first `size` bytes of a trainer's file.
    pub(crate) fn map(file: OwnedFd, size: u64) -> Result<Arc<MappedRegion>, Failure> {
        let shared = mapped(size, |size| SharedRegion::from_fd(file.as_fd(), size))?;
        Ok(Arc::new(MappedRegion { shared, file, trainers: Vec::new(), is_whole: AtomicBool::new(true) }))
    }

    /// Creates a region that trainers read, without pages.
    pub(super) fn create(size: u64) -> Result<Arc<MappedRegion>, Failure> {
        let size = usize::try_from(size).map_err(|_| RegionError::Size { size });
        let (shared, file) = size.and_then(SharedRegion::for_readers).map_err(|error| bad(&error))?;
        Ok(Arc::new(MappedRegion { shared, file, trainers: Vec::new(), is_whole: AtomicBool::new(false) }))
    }

    /// Refuses a region whose pages an access of this daemon would allocate: those of its trainers are not
    /// mapped yet.
    pub(super) fn check_pages(&self) -> Result<(), Failure> {
        if !self.is_whole.load(Ordering::Relaxed) {
            self.shared.check_pages(self.file.as_fd()).map_err(|error| bad(&error))?;
            self.is_whole.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Maps a region that another daemon hands over, whose writable mapping is at this address of its holder.
    pub(crate) fn take_over(
        file: OwnedFd,
        size: u64,
        (holder, address): (&Arc<Holder>, u64),
        trainers: Vec<Arc<Channel>>,
    ) -> Result<Arc<MappedRegion>, Failure> {
        let map = |size| SharedRegion::taken_over(file.as_fd(), size, holder, address);
        let shared = mapped(size, map)?;
        Ok(Arc::new(MappedRegion { shared, file, trainers, is_whole: AtomicBool::new(false) }))
    }

    /// Ends the trainers' connections, whose results can no longer be written: before they are notified of
    /// any.
    pub(super) fn lose(&self, error: &std::io::Error) {
        log_limited!(
            error,
            %error,
            "the process that holds trainers' memory since a live upgrade is gone; its trainers are cut off"
        );
        self.trainers.iter().for_each(|trainer| trainer.shutdown());
    }
}

fn mapped(
    size: u64,
    map: impl FnOnce(usize) -> Result<SharedRegion, RegionError>,
) -> Result<SharedRegion, Failure> {
    let shared = usize::try_from(size).map_err(|_| RegionError::Size { size }).and_then(map);
    shared.map_err(|error| bad(&error))
}

fn bad(error: &RegionError) -> Failure {
    Failure::new(Code::BadRegion, error.to_string())
}

//! A trainer's region as it is mapped here, or one of this daemon's that trainers read.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sumac_api::{Channel, Code, Failure};
use sumac_memory::{Holder, RegionError, SharedRegion};

/// A mapping that lasts until the last lease on it has ended.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(super) shared: SharedRegion,
    /// The file, for another daemon, and for trainers that read.
    pub(crate) file: OwnedFd,
    /// The connections of the trainers that have it, where another process holds the writable mapping.
    trainers: Mutex<Vec<Arc<Channel>>>,
    /// Whether all pages are known to be allocated.
    is_whole: AtomicBool,
}

impl MappedRegion {
    /// Maps the first `size` bytes of a trainer's file.
    pub(crate) fn map(file: OwnedFd, size: u64) -> Result<Arc<MappedRegion>, Failure> {
        let shared = mapped(size, |size| SharedRegion::from_fd(file.as_fd(), size))?;
        Ok(Self::new(shared, file, Vec::new(), true))
    }

    fn new(
        shared: SharedRegion,
        file: OwnedFd,
        trainers: Vec<Arc<Channel>>,
        is_whole: bool,
    ) -> Arc<MappedRegion> {
        let (trainers, is_whole) = (Mutex::new(trainers), AtomicBool::new(is_whole));
        Arc::new(MappedRegion { shared, file, trainers, is_whole })
    }

    /// Creates a region that trainers read, without pages.
    pub(super) fn create(size: u64) -> Result<Arc<MappedRegion>, Failure> {
        let size = usize::try_from(size).map_err(|_| RegionError::Size { size });
        let (shared, file) = size.and_then(SharedRegion::for_readers).map_err(|error| bad(&error))?;
        Ok(Self::new(shared, file, Vec::new(), false))
    }

    /// Whether all pages are known to be allocated, so that no access of this daemon allocates one. None
    /// disappears any more.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }

    /// Finds out whether they are. It may wait for whoever allocates pages of the file, so it is not for a
    /// thread that others wait for.
    pub(crate) fn look_for_pages(&self) {
        if !self.is_whole() && self.shared.check_pages(self.file.as_fd()).is_ok() {
            self.is_whole.store(true, Ordering::Relaxed);
        }
    }

    /// Refuses a region whose pages its trainers have not allocated yet.
    pub(super) fn check_pages(&self) -> Result<(), Failure> {
        if self.is_whole() {
            return Ok(());
        }
        let problem = "the region of the ranks' shared results has pages that none of its readers has mapped";
        Err(Failure::new(Code::BadRegion, problem).hint("map it with MAP_POPULATE first"))
    }

    /// Notes one more trainer that has the region.
    pub(crate) fn add_trainer(&self, channel: &Arc<Channel>) {
        self.trainers.lock().unwrap_or_else(PoisonError::into_inner).push(channel.clone());
    }

    /// Maps a region that another daemon hands over, whose writable mapping is at this address of its holder.
    pub(crate) fn take_over(
        file: OwnedFd,
        size: u64,
        (holder, address): (&Arc<Holder>, u64),
        trainers: Vec<Arc<Channel>>,
        is_whole: bool,
    ) -> Result<Arc<MappedRegion>, Failure> {
        let map = |size| SharedRegion::taken_over(file.as_fd(), size, holder, address);
        let shared = mapped(size, map)?;
        Ok(Self::new(shared, file, trainers, is_whole))
    }

    /// Ends the trainers' connections, whose results can no longer be written: before they are notified of
    /// any.
    pub(super) fn lose(&self, error: &std::io::Error) {
        log_limited!(
            error,
            %error,
            "the process that holds trainers' memory since a live upgrade is gone; its trainers are cut off"
        );
        let trainers = self.trainers.lock().unwrap_or_else(PoisonError::into_inner);
        trainers.iter().for_each(|trainer| trainer.shutdown());
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

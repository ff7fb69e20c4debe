//! A memfd that two processes map.

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use memmap2::MmapOptions;
use rustix::{
    fs::{self, FallocateFlags, MemfdFlags, SealFlags},
    io::retry_on_intr,
};

use crate::lease::{Lease, LeaseError, Lender};

/// An error of creating or mapping a shared region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    #[error("cannot share {size} bytes: the size must be between 1 byte and {} bytes", isize::MAX)]
    Size { size: u64 },
    #[error(
        "the descriptor is not a memfd of ordinary pages; create it with memfd_create(2) without MFD_HUGETLB"
    )]
    NotMemfd,
    /// A file that can still be truncated: an access behind its end raises SIGBUS.
    #[error(
        "the memfd lacks F_SEAL_SHRINK; create it with MFD_ALLOW_SEALING and add the seal before registering it"
    )]
    NotSealed,
    #[error("the memfd has {actual} bytes, {announced} were announced; call ftruncate(2) before sealing it")]
    TooShort { announced: u64, actual: u64 },
    #[error("cannot {action} a shared region of {size} bytes: {source}")]
    System { action: &'static str, size: u64, source: io::Error },
}

/// A mapped, sealed memfd. Clones refer to the same mapping, which is removed with the last clone and lease.
///
/// The *other process* may write to it at any time. Every byte pattern is valid, and this crate never decides
/// anything by reading a byte twice: a trainer that writes during an operation corrupts its own numbers only.
/// Within this process [`Lease`]s keep writers apart.
#[derive(Clone, Debug)]
pub struct SharedRegion {
    lender: Arc<Lender>,
}

/// The memfd's name in `/proc/PID/maps`.
const NAME: &str = "sumac-tensor";

/// `HUGETLBFS_MAGIC` of `linux/magic.h`.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

impl SharedRegion {
    /// Creates and maps `size` zero bytes, sealed against shrinking and growing.
    ///
    /// The descriptor is for the other process; the mapping does not depend on it.
    pub fn create(size: usize) -> Result<(SharedRegion, OwnedFd), RegionError> {
        let announced = size as u64;
        let fail = |action| system_error(action, announced);
        check_size(announced)?;
        let fd = fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(fail("create"))?;
        fs::ftruncate(&fd, announced).map_err(fail("size"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fs::fcntl_add_seals(&fd, seals).map_err(fail("seal"))?;
        let region = SharedRegion::from_fd(fd.as_fd(), size)?;
        Ok((region, fd))
    }

    /// Maps the first `size` bytes of a memfd that another process created.
    ///
    /// Refuses every file whose later access could raise SIGBUS: one that is no memfd, can shrink, is too short, or
    /// whose pages cannot be allocated. The pages are allocated here.
    pub fn from_fd(fd: BorrowedFd<'_>, size: usize) -> Result<SharedRegion, RegionError> {
        let announced = size as u64;
        let fail = |action| system_error(action, announced);
        check_size(announced)?;
        // F_GET_SEALS fails on everything but a memfd, so it comes first.
        let seals = fs::fcntl_get_seals(fd).map_err(|_| RegionError::NotMemfd)?;
        // Huge pages are not reserved by fallocate(2) alone and may run out at the time of access.
        if fs::fstatfs(fd).map_err(fail("examine"))?.f_type as u64 == HUGETLBFS_MAGIC {
            return Err(RegionError::NotMemfd);
        }
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RegionError::NotSealed);
        }
        let stat = fs::fstat(fd).map_err(fail("examine"))?;
        let actual = u64::try_from(stat.st_size).unwrap_or(0);
        if actual < announced {
            return Err(RegionError::TooShort { announced, actual });
        }
        retry_on_intr(|| fs::fallocate(fd, FallocateFlags::empty(), 0, announced))
            .map_err(fail("allocate"))?;
        let mapping = MmapOptions::new().len(size).populate().map_raw(fd.as_raw_fd());
        let mapping =
            mapping.map_err(|source| RegionError::System { action: "map", size: announced, source })?;
        Ok(SharedRegion { lender: Arc::new(Lender::new(mapping)) })
    }

    /// Number of bytes in the region; never zero.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.lender.len()
    }

    /// Leases `input` for reading and `output` for writing. The two may be the same range.
    ///
    /// Leases that exist at the same time may read the same bytes. Bytes that one of them writes, no other reads or
    /// writes.
    pub fn lease(&self, input: Range<usize>, output: Range<usize>) -> Result<Lease, LeaseError> {
        Lender::lease(&self.lender, input, output)
    }
}

fn system_error(action: &'static str, size: u64) -> impl Fn(rustix::io::Errno) -> RegionError {
    move |errno| RegionError::System { action, size, source: errno.into() }
}

fn check_size(size: u64) -> Result<(), RegionError> {
    match isize::try_from(size) {
        Ok(1..) => Ok(()),
        _ => Err(RegionError::Size { size }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(size: u64, seals: SealFlags) -> OwnedFd {
        let fd = fs::memfd_create(NAME, MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        fs::ftruncate(&fd, size).unwrap();
        fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn both_mappings_have_the_same_bytes() {
        let (mine, fd) = SharedRegion::create(10_000).unwrap();
        let theirs = SharedRegion::from_fd(fd.as_fd(), 10_000).unwrap();
        drop(fd);
        let mut mine = mine.lease(0..10_000, 9_996..10_000).unwrap();
        let mut theirs = theirs.lease(0..10_000, 0..5).unwrap();
        mine.output(0, 4).unwrap().copy_from_slice(b"here");
        assert_eq!(theirs.input(9_996, 4).unwrap(), b"here");
        theirs.output(0, 5).unwrap().copy_from_slice(b"there");
        assert_eq!(mine.input(0, 5).unwrap(), b"there");
    }

    #[test]
    fn a_descriptor_that_could_raise_sigbus_is_refused() {
        let open = |fd: &OwnedFd, size| SharedRegion::from_fd(fd.as_fd(), size).map(|_| ());
        assert!(matches!(open(&memfd(4096, SealFlags::empty()), 4096), Err(RegionError::NotSealed)));
        assert!(matches!(open(&memfd(4096, SealFlags::GROW), 4096), Err(RegionError::NotSealed)));
        let short = memfd(4095, SealFlags::SHRINK);
        assert!(matches!(open(&short, 4096), Err(RegionError::TooShort { announced: 4096, actual: 4095 })));
        assert!(matches!(open(&short, 0), Err(RegionError::Size { size: 0 })));
        assert!(matches!(open(&short, usize::MAX), Err(RegionError::Size { .. })));
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(matches!(open(&file, 1), Err(RegionError::NotMemfd)));
        let whole = memfd(4096, SealFlags::SHRINK);
        let read_only = std::fs::File::open(format!("/proc/self/fd/{}", whole.as_raw_fd())).unwrap();
        assert!(matches!(open(&read_only.into(), 4096), Err(RegionError::System { .. })));
    }

    #[test]
    fn the_seal_prevents_shrinking() {
        let (region, fd) = SharedRegion::create(8192).unwrap();
        assert_eq!(fs::ftruncate(&fd, 4096), Err(rustix::io::Errno::PERM));
        assert_eq!(region.len(), 8192);
    }
}

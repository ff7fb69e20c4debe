//! Memory that a client and the daemon both map: a sealed memfd.

use std::{
    ffi::CStr,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    slice,
};

use super::{Mapping, Region};

/// Why a descriptor cannot serve as shared memory.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// No bytes, or more than an address can count.
    #[error("cannot share {size} bytes: the size must be between 1 byte and {} bytes", isize::MAX)]
    Size {
        /// What was asked for.
        size: u64,
    },
    /// Not a memfd.
    #[error(
        "the descriptor is not a memfd of ordinary pages; create it with memfd_create(2) without MFD_HUGETLB"
    )]
    NotMemfd,
    /// It could still be truncated, and a truncated mapping kills whoever reads it.
    #[error(
        "the memfd lacks F_SEAL_SHRINK; create it with MFD_ALLOW_SEALING and add the seal before registering it"
    )]
    NotSealed,
    /// Smaller than was said.
    #[error("the memfd has {actual} bytes, {announced} were announced; call ftruncate(2) before sealing it")]
    TooShort {
        /// What the client said.
        announced: u64,
        /// What the file has.
        actual: u64,
    },
    /// A system call failed.
    #[error("cannot {action} a shared memory of {size} bytes: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// The size asked for.
        size: u64,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A mapped, sealed memfd.
///
/// The *other process* may write to it at any time. What is read is plain bytes, of which every pattern
/// is valid, and nothing here decides anything by reading a byte twice: a client that writes while an
/// operation runs spoils its own numbers. Within this process the borrow rules hold: one `Shared` per
/// mapping, or [`Region`]'s leases.
#[derive(Debug)]
pub struct Shared {
    mapping: Mapping,
}

const NAME: &CStr = c"sumac-tensor";

impl Shared {
    /// Creates `size` bytes of zeros, sealed against shrinking and growing, and maps them.
    ///
    /// The descriptor is for the other process; closing it leaves the mapping as it is.
    pub fn create(size: usize) -> Result<(Shared, OwnedFd), SharedError> {
        let announced = size as u64;
        let fail = |action| move |source| SharedError::System { action, size: announced, source };
        let length = check_size(announced)?;
        // SAFETY: a constant string that ends in zero.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        check(fd).map_err(fail("create"))?;
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: takes numbers only.
        check(unsafe { libc::ftruncate(fd.as_raw_fd(), length) }).map_err(fail("size"))?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: takes numbers only.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map_err(fail("seal"))?;
        let shared = Shared::from_fd(fd.as_fd(), size)?;
        Ok((shared, fd))
    }

    /// Maps the first `size` bytes of a memfd that another process made.
    ///
    /// Refuses what could make a later access fail: a file of another kind, one that can shrink, one that
    /// is too short, and one whose pages cannot be had (they are allocated here).
    pub fn from_fd(fd: BorrowedFd<'_>, size: usize) -> Result<Shared, SharedError> {
        let announced = size as u64;
        let fail = |action| move |source| SharedError::System { action, size: announced, source };
        let length = check_size(announced)?;
        // Seals first: F_GET_SEALS is what tells a memfd from every other descriptor.
        // SAFETY: takes numbers only.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || is_huge(fd).map_err(fail("examine"))? {
            return Err(SharedError::NotMemfd);
        }
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(SharedError::NotSealed);
        }
        let actual = file_size(fd).map_err(fail("examine"))?;
        if actual < announced {
            return Err(SharedError::TooShort { announced, actual });
        }
        // SAFETY: takes numbers only.
        check(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, length) }).map_err(fail("allocate"))?;
        let mapping = Mapping::of(fd, size, 0).map_err(fail("map"))?;
        Ok(Shared { mapping })
    }

    /// Bytes mapped; never zero.
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// `len` bytes at `offset`, or `None` when they do not lie inside.
    pub fn bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let start = self.mapping.at(offset, len)?;
        // SAFETY: inside the mapping, which `self` keeps; no `&mut` of this process exists beside `&self`.
        Some(unsafe { slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// `len` bytes at `offset` for writing, or `None` when they do not lie inside.
    pub fn bytes_mut(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let start = self.mapping.at(offset, len)?;
        // SAFETY: inside the mapping; `&mut self` shuts out every other borrow of this process.
        Some(unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) })
    }

    /// Gives the memory to several users at once, each with ranges of its own.
    pub fn into_region(self) -> Region {
        Region::new(self.mapping)
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn check_size(size: u64) -> Result<libc::off_t, SharedError> {
    match libc::off_t::try_from(size) {
        Ok(length) if length > 0 && isize::try_from(size).is_ok() => Ok(length),
        _ => Err(SharedError::Size { size }),
    }
}

fn file_size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the pointer is to a `stat`, which the kernel fills.
    check(unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: zeroed and then filled; integers only.
    let stat = unsafe { stat.assume_init() };
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Huge pages run out at the time of access, which ends in SIGBUS.
fn is_huge(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut stat = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the pointer is to a `statfs`, which the kernel fills.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: zeroed and then filled; integers only.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_type == libc::HUGETLBFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(size: i64, seals: i32) -> OwnedFd {
        // SAFETY: a constant string; a new descriptor.
        let fd = unsafe {
            OwnedFd::from_raw_fd(libc::memfd_create(
                NAME.as_ptr(),
                libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC,
            ))
        };
        // SAFETY: numbers only.
        unsafe {
            assert_eq!(libc::ftruncate(fd.as_raw_fd(), size), 0);
            assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
        }
        fd
    }

    #[test]
    fn both_sides_see_the_same_bytes() {
        let (mut mine, fd) = Shared::create(10_000).unwrap();
        let mut theirs = Shared::from_fd(fd.as_fd(), 10_000).unwrap();
        drop(fd);
        mine.bytes_mut(9_996, 4).unwrap().copy_from_slice(b"here");
        assert_eq!(theirs.bytes(9_996, 4).unwrap(), b"here");
        theirs.bytes_mut(0, 5).unwrap().copy_from_slice(b"there");
        assert_eq!(mine.bytes(0, 5).unwrap(), b"there");
        assert_eq!(mine.len(), 10_000);
    }

    #[test]
    fn nothing_outside_is_given_out() {
        let (mut shared, _fd) = Shared::create(100).unwrap();
        assert!(shared.bytes(0, 100).is_some());
        for (offset, len) in [(0, 101), (100, 1), (usize::MAX, 2), (2, usize::MAX)] {
            assert!(shared.bytes(offset, len).is_none(), "{offset} {len}");
            assert!(shared.bytes_mut(offset, len).is_none(), "{offset} {len}");
        }
    }

    #[test]
    fn what_could_kill_the_reader_is_refused() {
        let open = |fd: &OwnedFd, size| Shared::from_fd(fd.as_fd(), size).map(|_| ());
        assert!(matches!(open(&memfd(4096, 0), 4096), Err(SharedError::NotSealed)));
        assert!(matches!(open(&memfd(4096, libc::F_SEAL_GROW), 4096), Err(SharedError::NotSealed)));
        let short = memfd(4095, libc::F_SEAL_SHRINK);
        assert!(matches!(open(&short, 4096), Err(SharedError::TooShort { announced: 4096, actual: 4095 })));
        assert!(matches!(open(&short, 0), Err(SharedError::Size { size: 0 })));
        assert!(matches!(open(&short, usize::MAX), Err(SharedError::Size { .. })));
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(matches!(open(&file, 1), Err(SharedError::NotMemfd)));
        let whole = memfd(4096, libc::F_SEAL_SHRINK);
        let read_only = std::fs::File::open(format!("/proc/self/fd/{}", whole.as_raw_fd())).unwrap();
        assert!(matches!(open(&read_only.into(), 4096), Err(SharedError::System { .. })));
    }

    #[test]
    fn the_seal_holds() {
        let (_shared, fd) = Shared::create(8192).unwrap();
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 4096) }, -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
    }
}

//! The mapping of a reader: bytes that the daemon writes, and that this process can only read.

use std::{
    ops::Range,
    os::fd::{AsRawFd, BorrowedFd},
    slice,
};

use memmap2::{MmapOptions, MmapRaw};

use crate::region::{RegionError, check_length, check_size, system_error};

/// A region of [`SharedRegion::for_readers`](crate::SharedRegion::for_readers) in another process.
///
/// The daemon writes to it during an operation of which it is the result. Until the operation has ended
/// nothing reads it here.
#[derive(Debug)]
pub struct ReadRegion {
    mapping: MmapRaw,
}

impl ReadRegion {
    /// Maps the first `size` bytes of a file, and allocates their pages.
    pub fn from_fd(fd: BorrowedFd<'_>, size: usize) -> Result<ReadRegion, RegionError> {
        check_size(size as u64)?;
        check_length(fd, size)?;
        let mapping = MmapOptions::new().len(size).populate().map_raw_read_only(fd.as_raw_fd());
        Ok(ReadRegion { mapping: mapping.map_err(system_error("map", size as u64))? })
    }

    /// Returns the address of the first byte, a page's.
    #[must_use]
    pub fn address(&self) -> *const u8 {
        self.mapping.as_ptr()
    }

    /// Returns bytes of the region, or `None` when they do not lie inside.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.mapping.len() {
            return None;
        }
        // SAFETY: the bytes lie inside the mapping, which outlives the borrow. This process does not write
        // them, and another one does so only while an operation owns them.
        Some(unsafe { slice::from_raw_parts(self.mapping.as_ptr().add(range.start), range.len()) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{FallocateFlags, fallocate, ftruncate};
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect};

    use super::*;
    use crate::SharedRegion;

    const SIZE: usize = 10_000;

    fn shared() -> (SharedRegion, OwnedFd) {
        SharedRegion::for_readers(SIZE).unwrap()
    }

    #[test]
    fn a_reader_has_what_the_writer_writes() {
        let (region, fd) = shared();
        let hole = region.check_pages(fd.as_fd());
        assert!(matches!(hole, Err(RegionError::Hole { at: 0 })), "{hole:?}");
        let reader = ReadRegion::from_fd(fd.as_fd(), SIZE).unwrap();
        // The reader has allocated its pages.
        region.check_pages(fd.as_fd()).unwrap();
        region.lease(0..0, 5000..SIZE).unwrap().output(0, 4).unwrap().copy_from_slice(b"sums");
        assert_eq!(reader.bytes(4999..5004), Some(&b"\0sums"[..]));
        assert_eq!(reader.bytes(0..SIZE).map(<[u8]>::len), Some(SIZE));
        assert!(reader.bytes(1..SIZE + 1).is_none() && reader.bytes(usize::MAX..usize::MAX).is_none());
        assert!(ReadRegion::from_fd(fd.as_fd(), SIZE + 1).is_err());
    }

    #[test]
    fn a_reader_has_no_way_to_write() {
        let (_region, fd) = shared();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses an address that is free; nothing accesses the mapping.
        let writable = unsafe { mmap(std::ptr::null_mut(), SIZE, protection, flags, &fd, 0) };
        assert_eq!(writable.map(|_| ()), Err(Errno::PERM));
        let reader = ReadRegion::from_fd(fd.as_fd(), SIZE).unwrap();
        let writable = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: it would only allow more accesses.
        let changed = unsafe { mprotect(reader.address().cast_mut().cast(), SIZE, writable) };
        assert_eq!(changed, Err(Errno::ACCESS));
        assert_eq!(rustix::io::pwrite(&fd, b"x", 0), Err(Errno::PERM));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&fd, punch, 0, 4096), Err(Errno::PERM));
        assert_eq!(ftruncate(&fd, 4096), Err(Errno::PERM));
        assert!(SharedRegion::from_fd(fd.as_fd(), SIZE).is_err(), "registered as memory of its own");
    }
}

//! Memory that came from `mmap(2)` and is unmapped when its owner goes.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{NonNull, null_mut},
};

/// A readable and writable mapping. It owns the addresses; who may touch which byte is its user's care.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range has no thread; the accesses are guarded by its users.
unsafe impl Send for Mapping {}
// SAFETY: as above; the type itself reads and writes nothing.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of zeros, page aligned and of nobody else.
    pub(crate) fn anonymous(len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: no address is asked for, so no other mapping is replaced.
        unsafe { Mapping::map(len, flags, -1, 0) }
    }

    /// Maps `len` bytes of a file or of a socket's ring.
    pub(crate) fn of(fd: BorrowedFd<'_>, len: usize, offset: libc::off_t) -> io::Result<Mapping> {
        // SAFETY: as above.
        unsafe { Mapping::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset) }
    }

    /// # Safety
    ///
    /// `flags` must not contain `MAP_FIXED`.
    unsafe fn map(len: usize, flags: i32, fd: i32, offset: libc::off_t) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address.
        let address = unsafe { libc::mmap(null_mut(), len, protection, flags, fd, offset) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { address, len })
    }

    /// Where it starts.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The start of `len` bytes at `offset`, when they lie inside.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: just seen to be within the mapping.
        Some(unsafe { self.address.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's, and every borrow of it ends before its owner does.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::Mapping;

    #[test]
    fn nothing_outside_is_given_out() {
        let mapping = Mapping::anonymous(4096).unwrap();
        assert!(mapping.at(0, 4096).is_some());
        assert!(mapping.at(4096, 0).is_some());
        for (offset, len) in [(0, 4097), (1, 4096), (4097, 0), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(mapping.at(offset, len).is_none(), "{offset} {len}");
        }
        assert!(Mapping::anonymous(0).is_err());
    }
}

//! Memory of NCCL: addresses that requests keep until their ends.

use std::ffi::c_void;

/// Bytes in NCCL's memory. NCCL keeps them valid from the call that passed them to the end of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserBytes {
    /// The address, whose provenance is exposed: requests move between threads.
    address: usize,
    pub(crate) length: usize,
}

impl UserBytes {
    pub(crate) fn new(pointer: *mut c_void, length: usize) -> UserBytes {
        UserBytes { address: pointer.expose_provenance(), length }
    }

    pub(crate) fn is_null(self) -> bool {
        self.address == 0
    }

    /// The bytes from `offset` on.
    pub(crate) fn part(self, offset: usize, length: usize) -> UserBytes {
        UserBytes { address: self.address.saturating_add(offset), length }
    }

    /// Copies them to `target`.
    ///
    /// # Safety
    /// `target` has as many bytes, which overlap none of these and nothing else accesses meanwhile. The
    /// request of these bytes has not ended.
    pub(crate) unsafe fn copy_to(self, target: *mut u8) {
        if self.length > 0 {
            let source = std::ptr::with_exposed_provenance::<u8>(self.address);
            // SAFETY: as the caller warrants.
            unsafe { source.copy_to_nonoverlapping(target, self.length) };
        }
    }

    /// Copies `source` to them.
    ///
    /// # Safety
    /// As [`UserBytes::copy_to`].
    pub(crate) unsafe fn copy_from(self, source: *const u8) {
        if self.length > 0 {
            let target = std::ptr::with_exposed_provenance_mut::<u8>(self.address);
            // SAFETY: as the caller warrants.
            unsafe { source.copy_to_nonoverlapping(target, self.length) };
        }
    }

    /// The bytes.
    ///
    /// # Safety
    /// The request of these bytes has not ended, and nothing writes them meanwhile.
    pub(crate) unsafe fn as_slice<'a>(self) -> &'a [u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: as the caller warrants.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.address), self.length) }
    }

    /// The bytes, to be written.
    ///
    /// # Safety
    /// The request of these bytes has not ended, and nothing else accesses them meanwhile.
    pub(crate) unsafe fn as_mut_slice<'a>(self) -> &'a mut [u8] {
        if self.length == 0 {
            return &mut [];
        }
        let pointer = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: as the caller warrants.
        unsafe { std::slice::from_raw_parts_mut(pointer, self.length) }
    }
}

//! Arguments of NCCL's calls.

use std::ffi::c_void;

use crate::abi::{HANDLE_BYTES, Sge, v8};
use crate::address::Address;
use crate::error::PluginError;
use crate::memory::UserBytes;

/// Writes a result of a call.
///
/// # Safety
/// `out` is NULL, which is an error, or has room for a value.
pub(crate) unsafe fn write<T>(out: *mut T, value: T) -> Result<(), PluginError> {
    if out.is_null() {
        return Err(PluginError::argument("the pointer for the result is NULL"));
    }
    // SAFETY: as the caller warrants.
    unsafe { out.write(value) };
    Ok(())
}

/// Reads a handle of `listen`.
///
/// # Safety
/// `handle` is NULL, which is an error, or has as many bytes as a handle.
pub(crate) unsafe fn address(handle: *const c_void) -> Result<Address, PluginError> {
    if handle.is_null() {
        return Err(PluginError::argument("the handle is NULL"));
    }
    // SAFETY: as the caller warrants; an array of bytes has no alignment.
    Address::decode(unsafe { &*handle.cast::<[u8; HANDLE_BYTES]>() })
}

/// NCCL's bytes of a request.
pub(crate) fn bytes(data: *mut c_void, size: usize) -> Result<UserBytes, PluginError> {
    let user = UserBytes::new(data, size);
    if user.is_null() && size > 0 {
        return Err(PluginError::argument("the data is NULL"));
    }
    // A negative size of version 8 among them.
    if isize::try_from(size).is_err() {
        return Err(PluginError::argument("the data exceeds the address space"));
    }
    Ok(user)
}

/// A part of a window, of any version.
pub(crate) trait Part {
    fn bytes(&self) -> Result<UserBytes, PluginError>;
}

impl Part for Sge {
    fn bytes(&self) -> Result<UserBytes, PluginError> {
        bytes(self.address, self.size)
    }
}

impl Part for v8::Sge {
    fn bytes(&self) -> Result<UserBytes, PluginError> {
        bytes(self.address, self.size as usize)
    }
}

/// The parts of a window in NCCL's memory.
///
/// # Safety
/// `parts` is NULL, or has `count` elements.
pub(crate) unsafe fn parts<P: Part>(
    parts: *const P,
    count: std::ffi::c_int,
) -> Result<Vec<UserBytes>, PluginError> {
    let count = usize::try_from(count).unwrap_or(0);
    if parts.is_null() && count > 0 {
        return Err(PluginError::argument("the parts are NULL"));
    }
    // SAFETY: as the caller warrants.
    (0..count).map(|at| unsafe { &*parts.add(at) }.bytes()).collect()
}

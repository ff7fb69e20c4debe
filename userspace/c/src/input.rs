//! Arguments from C: checked, and converted. With `error.rs`'s boundary, all access to the program's memory.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use crate::error::{Error, call};
use crate::layout::{Enum, Structure, number};
use crate::types::sumac_status;

/// A structure of a later version has no more bytes; a larger number was never set.
const MAX_SIZE: usize = 4096;

/// The row of a table for an enum's number.
pub(crate) fn choose<E: Enum, T: Copy>(
    value: MaybeUninit<E>,
    name: &str,
    table: &[(E, T)],
) -> Result<T, Error> {
    let chosen = number(value);
    let found = table.iter().find(|(row, _)| number(MaybeUninit::new(*row)) == chosen);
    found.map(|(_, value)| *value).ok_or_else(|| Error::argument(format!("{chosen} is no {name}")))
}

/// As [`choose`]; zero is the default.
pub(crate) fn choose_or_default<E: Enum, T: Copy>(
    value: MaybeUninit<E>,
    name: &str,
    table: &[(E, T)],
) -> Result<Option<T>, Error> {
    if number(value) == 0 { Ok(None) } else { choose(value, name, table).map(Some) }
}

/// A string of the program; `None` for NULL.
///
/// # Safety
/// `text` is NULL or a string that ends with a zero, and nobody changes it meanwhile.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Error> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller warrants.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|error| Error::argument(format!("{name} is not UTF-8: {error}")))
}

/// A structure of the program's, with zeros for members that it does not know; all zeros for NULL.
///
/// # Safety
/// `structure` is NULL, or its first member is its size, and as many bytes are initialized.
pub(crate) unsafe fn structure<S: Structure>(structure: *const S, name: &str) -> Result<S, Error> {
    let mut known = MaybeUninit::<S>::zeroed();
    if !structure.is_null() {
        // SAFETY: as the caller warrants.
        let size = unsafe { structure.cast::<usize>().read_unaligned() };
        if !(size_of::<usize>()..=MAX_SIZE).contains(&size) {
            let message = format!("size of {name} is {size}; set it with the function that ends with _init");
            return Err(Error::argument(message));
        }
        let common = size.min(size_of::<S>());
        // SAFETY: `size` bytes are the program's, and `size_of::<S>()` are here.
        unsafe {
            structure.cast::<u8>().copy_to_nonoverlapping(known.as_mut_ptr().cast::<u8>(), common);
        }
        for at in common..size {
            // SAFETY: `size` bytes are the program's.
            if unsafe { structure.cast::<u8>().add(at).read() } != 0 {
                let message = format!("{name} has members that this version of libsumac does not know");
                return Err(Error::argument(message));
            }
        }
    }
    // SAFETY: every bit pattern is a value (`Structure`), and all bytes are initialized.
    Ok(unsafe { known.assume_init() })
}

/// Sets a structure of the program's to zeros, and its size.
///
/// # Safety
/// `structure` is NULL or has `size` writable bytes.
pub(crate) unsafe fn initialize<S: Structure>(
    structure: *mut S,
    size: usize,
    name: &str,
) -> Result<(), Error> {
    if structure.is_null() || !(size_of::<usize>()..=MAX_SIZE).contains(&size) {
        return Err(Error::argument(format!("{name} is NULL, or has {size} bytes")));
    }
    // SAFETY: `size` bytes are writable, at least as many as the first member has.
    unsafe {
        structure.cast::<u8>().write_bytes(0, size);
        structure.cast::<usize>().write_unaligned(size);
    }
    Ok(())
}

/// Writes a result into a structure of the program's, as much of it as the program knows; nothing for NULL.
///
/// # Safety
/// `structure` is NULL, or its first member is its size, and as many bytes are writable.
pub(crate) unsafe fn fill<S: Structure>(structure: *mut S, value: S, name: &str) -> Result<(), Error> {
    if structure.is_null() {
        return Ok(());
    }
    // SAFETY: as the caller warrants.
    let size = unsafe { structure.cast::<usize>().read_unaligned() };
    let first = size_of::<usize>();
    if !(first..=MAX_SIZE).contains(&size) {
        return Err(Error::argument(format!("size of {name} is {size}; set it to the structure's size")));
    }
    let common = size.min(size_of::<S>());
    // SAFETY: `common` bytes are in both. The first member stays.
    unsafe {
        let from = (&raw const value).cast::<u8>().add(first);
        structure.cast::<u8>().add(first).copy_from_nonoverlapping(from, common - first);
    }
    Ok(())
}

/// A pointer to a result that a function must have.
pub(crate) fn required<T>(pointer: *mut T, name: &str) -> Result<*mut T, Error> {
    if pointer.is_null() { Err(Error::argument(format!("{name} is NULL"))) } else { Ok(pointer) }
}

/// Runs the body of a function of the library, and writes its result.
///
/// # Safety
/// `out` is NULL, which is an error, or has room for the result.
pub(crate) unsafe fn call_into<T>(
    out: *mut T,
    name: &str,
    body: impl FnOnce() -> Result<T, Error>,
) -> sumac_status {
    call(|| {
        let out = required(out, name)?;
        let value = body()?;
        // SAFETY: not NULL, so it has room, as the caller warrants.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// A rank, or another number of 16 bits.
pub(crate) fn short(number: u32, name: &str) -> Result<u16, Error> {
    u16::try_from(number).map_err(|_| Error::argument(format!("{name} {number} is above 65535")))
}

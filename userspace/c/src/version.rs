//! Versions of the library and of its ABI.

use std::ffi::{CStr, c_char};

use crate::error::Error;
use crate::types::sumac_status;

/// The major number of the ABI: that of the soname. Programs compiled for another one are refused.
pub const SUMAC_ABI_MAJOR: u32 = 0;

/// The minor number of the ABI. It grows with additions; programs compiled for a later one are refused.
pub const SUMAC_ABI_MINOR: u32 = 5;

/// The ABI that a program is compiled for; its argument to `sumac_connect`.
pub const SUMAC_ABI_VERSION: u32 = (SUMAC_ABI_MAJOR << 16) | SUMAC_ABI_MINOR;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// Returns the version of the library that is loaded, "MAJOR.MINOR.PATCH", as a static string.
/// `SUMAC_VERSION` is that of the header.
///
/// Thread safety: any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn sumac_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Returns the ABI of the library that is loaded: its major number times 65536, plus its minor number.
///
/// Thread safety: any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn sumac_abi_version() -> u32 {
    SUMAC_ABI_VERSION
}

/// Refuses programs that this library does not fit.
pub(crate) fn check(program: u32) -> Result<(), Error> {
    let (major, minor) = (program >> 16, program & 0xffff);
    if major == SUMAC_ABI_MAJOR && minor <= SUMAC_ABI_MINOR {
        return Ok(());
    }
    let message = format!(
        "the program was compiled for ABI {major}.{minor} of libsumac, and libsumac {} has ABI \
        {SUMAC_ABI_MAJOR}.{SUMAC_ABI_MINOR}",
        env!("CARGO_PKG_VERSION"),
    );
    let hint = "compile the program with the header of the installed library, or install the library that it \
    was compiled for";
    Err(Error::new(sumac_status::SUMAC_ERR_ABI_VERSION, message).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_another_major_or_a_later_minor_is_refused() {
        assert!(check(SUMAC_ABI_VERSION).is_ok());
        assert!(check(SUMAC_ABI_MAJOR << 16).is_ok(), "an earlier minor number");
        let next = format!("{SUMAC_ABI_MAJOR}.{}", SUMAC_ABI_MINOR + 1);
        for (program, name) in
            [(SUMAC_ABI_VERSION + 1, &*next), (0x0001_0000, "1.0"), (u32::MAX, "65535.65535")]
        {
            let error = check(program).unwrap_err();
            assert_eq!(error.status, sumac_status::SUMAC_ERR_ABI_VERSION);
            assert!(error.message().contains(&format!("for ABI {name} ")), "{}", error.message());
        }
    }
}

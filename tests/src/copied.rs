//! Copies of programs, which tests run as a user that may not read the build directory. The tests of other
//! packages include this file.

use std::{ffi::OsStr, path::Path, process::Command};

/// Copies programs to `to`, a folder, or the path of one copy. Another process writes them: a child that a
/// thread of this one forks meanwhile would keep a copy open for writing, and the kernel runs no such file
/// (ETXTBSY).
pub fn copy_programs<P: AsRef<OsStr>>(programs: impl IntoIterator<Item = P>, to: &Path) {
    let status = Command::new("cp").args(programs).arg(to).status().unwrap();
    assert!(status.success(), "cp to {}: {status}", to.display());
}

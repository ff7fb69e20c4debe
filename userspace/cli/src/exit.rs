//! Exit codes, the same for every command.

use std::{io, process::ExitCode};

/// The table of exit codes as a literal, for `concat!` in help texts.
macro_rules! help_text {
    () => {
        "Exit codes:\n  0  success\n  1  failed; the reason and the remedy are on standard error\n  2  invalid command line\n  3  success, but a finding needs attention (doctor, status)"
    };
}
pub(crate) use help_text;

/// The table of exit codes for the end of a help text.
pub const HELP: &str = help_text!();

/// A finding needs attention.
pub const ATTENTION: u8 = 3;

/// Prints the reason of a failure. A closed pipe (`sumac status | head`) is no failure.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("sumac: {}", sumac_loader::chain(error.as_ref()));
    ExitCode::FAILURE
}

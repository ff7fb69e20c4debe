//! Exit codes, the same for every verb.

use std::{io, process::ExitCode};

/// The table of exit codes as a literal, so that help texts can hold it.
macro_rules! help_text {
    () => {
        "Exit codes:\n  0  done\n  1  failed; standard error says why and what to do\n  2  the command line is wrong\n  3  done, and what was found needs attention (doctor, status)"
    };
}
pub(crate) use help_text;

/// The table of exit codes for the end of a help text.
pub const HELP: &str = help_text!();

/// Something was found that needs attention.
pub const ATTENTION: u8 = 3;

/// Says why a verb failed. A reader that went away (`sumac status | head`) is no failure.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("sumac: {error}");
    ExitCode::FAILURE
}

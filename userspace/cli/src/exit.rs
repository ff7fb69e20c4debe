//! Exit codes, the same for every command.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

/// The table of exit codes as a literal, for `concat!` in help texts.
macro_rules! help_text {
    () => {
        "Exit codes:\n  0  success\n  1  failed; the reason and the remedy are on standard error\n  2  \
        invalid command line\n  3  success, but a finding needs attention (doctor, status)"
    };
}
pub(crate) use help_text;

/// The table of exit codes for the end of a help text.
pub const HELP: &str = help_text!();

/// A finding needs attention.
pub const ATTENTION: u8 = 3;

/// Prints one JSON object, the output of a command with `--json`.
pub fn print_json(object: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, object).map_err(io::Error::from)?;
    writeln!(out)
}

/// Prints the reason of a failure. A closed pipe (`sumac status | head`) is no failure.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    sumac_log::print(&format!("sumac: {}", sumac_loader::chain(error.as_ref())));
    ExitCode::FAILURE
}

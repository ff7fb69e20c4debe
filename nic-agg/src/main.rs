//! The command line of a SmartNIC or switch box: one file per verb.
//!
//! Standard output carries what was asked for, standard error everything else.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

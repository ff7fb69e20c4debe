//! The output of measurements.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use serde::Serialize;

/// Prints measurements as one JSON array, or as lines below a title.
pub fn print<T: Serialize>(
    measured: &[T],
    json: bool,
    title: &str,
    row: impl Fn(&T) -> String,
) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, measured)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{title}")?;
        measured.iter().try_for_each(|one| writeln!(out, "{}", row(one)))?;
    }
    Ok(ExitCode::SUCCESS)
}

//! The log of `sumac` and `sumac-agg`, on standard error. A process that runs for long calls
//! [`in_background`]: from then on a thread writes, and a reader that has stopped (of a pipe, a terminal, or
//! journald) neither blocks the process nor ends it.
#![forbid(unsafe_code)]

mod queue;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    env::VarError,
    io::{self, IsTerminal as _, Write},
    panic,
    sync::OnceLock,
    time::Duration,
};

use rustix::stdio;
use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets},
    fmt::MakeWriter,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use self::queue::Lines;

/// Lines that wait to be written.
const CAPACITY: usize = 4096;
/// The time that the last lines have to be written when the process ends.
const LONGEST_FINISH: Duration = Duration::from_secs(1);

static LINES: OnceLock<Lines> = OnceLock::new();

/// Logs to standard error, at level `info` unless RUST_LOG is set: to a level, or to levels of targets
/// (`warn,sumac_control=debug`).
pub fn start() {
    let default = Targets::new().with_default(LevelFilter::INFO);
    let (filter, invalid) = match std::env::var("RUST_LOG") {
        Ok(given) => match given.parse() {
            Ok(filter) => (filter, None),
            Err(error) => (default, Some(format!("{error}: `{given}`"))),
        },
        Err(VarError::NotPresent) => (default, None),
        Err(error @ VarError::NotUnicode(_)) => (default, Some(error.to_string())),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        // They would be printed, which panics where standard error has no reader any more.
        .log_internal_errors(false)
        .with_writer(Output);
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    if let Some(error) = invalid {
        tracing::warn!("RUST_LOG is ignored: {error}");
    }
}

/// Has a thread write from now on, with the privileges of the caller. Panics are logged in the same way.
pub fn in_background() -> io::Result<()> {
    let lines = Lines::new(Stderr, CAPACITY)?;
    if LINES.set(lines).is_ok() {
        panic::set_hook(Box::new(|panic| {
            let backtrace = Backtrace::capture();
            match backtrace.status() {
                BacktraceStatus::Captured => print(&format!("{panic}\n{backtrace}")),
                _ => print(&panic.to_string()),
            }
        }));
    }
    Ok(())
}

/// Prints a line on standard error.
pub fn print(line: &str) {
    // Without a reader there is nobody to print for.
    let _ = Output.make_writer().write_all(format!("{line}\n").as_bytes());
}

/// Waits until what was logged is written, for a moment.
pub fn finish() {
    if let Some(lines) = LINES.get() {
        lines.finish(LONGEST_FINISH);
    }
}

/// Writes standard input's file from now on: the log's, and standard output too.
pub fn continue_on_stdin() -> io::Result<()> {
    finish();
    stdio::dup2_stdout(stdio::stdin())?;
    stdio::dup2_stderr(stdio::stdin())?;
    Ok(())
}

/// Returns the number of lines that were not written, since the reader had stopped or was gone.
pub fn lines_dropped() -> u64 {
    LINES.get().map_or(0, Lines::dropped)
}

struct Output;

impl<'a> MakeWriter<'a> for Output {
    type Writer = Box<dyn Write + 'a>;

    fn make_writer(&'a self) -> Self::Writer {
        match LINES.get() {
            Some(lines) => Box::new(lines.clone()),
            None => Box::new(io::stderr()),
        }
    }
}

/// Standard error without its lock, which a write that blocks would hold.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(stdio::stderr(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! The program's messages (bursts of bad tokens, strangers, unknown jobs), read from the kernel and given to `tracing`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use aya_log::EbpfLogger;
use log::{Level, Log, Metadata, Record};
use thiserror::Error;

use crate::attached::Attached;

/// Why the program's messages cannot be read.
#[derive(Debug, Error)]
#[error("could not open the messages of host program {program_id}: {source}")]
pub struct LogError {
    program_id: u32,
    source: aya_log::Error,
}

/// The messages of one attached program. Several readers share them: each message reaches one of them.
pub struct ProgramLog(EbpfLogger<ToTracing>);

impl ProgramLog {
    /// Opens the messages of an attached program.
    ///
    /// # Errors
    /// When the program is gone, or the caller may not look at the kernel's programs (`CAP_SYS_ADMIN`).
    pub fn open(attached: &Attached) -> Result<Self, LogError> {
        let program_id = attached.program_id();
        let target = ToTracing { interface: attached.interface().name.clone() };
        match EbpfLogger::init_from_id_with_logger(program_id, target) {
            Ok(logger) => Ok(Self(logger)),
            Err(source) => Err(LogError { program_id, source }),
        }
    }

    /// Hands every message that waits to `tracing`. Never blocks; wait for [`AsFd`] to become readable.
    pub fn flush(&mut self) {
        self.0.flush();
    }
}

impl AsFd for ProgramLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for ProgramLog {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

struct ToTracing {
    interface: String,
}

impl Log for ToTracing {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let interface = &self.interface;
        match record.level() {
            Level::Error | Level::Warn => tracing::warn!(interface, "host program: {}", record.args()),
            _ => tracing::info!(interface, "host program: {}", record.args()),
        }
    }

    fn flush(&self) {}
}

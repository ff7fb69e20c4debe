//! The programs' messages (rejected jobs, bursts of bad tokens), read from the kernel and given to `tracing`.

use std::os::fd::{AsFd, BorrowedFd};

use aya::programs::{ProgramError, ProgramInfo};
use aya_log::EbpfLogger;
use log::{Level, Log, Metadata, Record};
use thiserror::Error;

use crate::{aggregator::Aggregator, pins};

/// Why the programs' messages cannot be read.
#[derive(Debug, Error)]
pub enum LogError {
    /// The pinned program.
    #[error("opening the pinned program {path}: {source}; is the aggregator attached?")]
    Program {
        /// Its pin.
        path: String,
        /// What the kernel said.
        source: ProgramError,
    },
    /// Its messages.
    #[error("opening the messages of the aggregator's program: {0}")]
    Messages(#[from] aya_log::Error),
}

/// The messages of an aggregator. Several readers share them: each message reaches one of them.
pub struct ProgramLog(EbpfLogger<ToTracing>);

impl ProgramLog {
    /// Opens the messages of an attached aggregator.
    ///
    /// # Errors
    /// When it is not attached, or the caller may not look at the kernel's programs (`CAP_SYS_ADMIN`).
    pub fn open(aggregator: &Aggregator) -> Result<ProgramLog, LogError> {
        let path = aggregator.pins().pin(pins::INGRESS);
        let info = ProgramInfo::from_pin(&path)
            .map_err(|source| LogError::Program { path: path.display().to_string(), source })?;
        Ok(ProgramLog(EbpfLogger::init_from_id_with_logger(info.id(), ToTracing)?))
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

struct ToTracing;

impl Log for ToTracing {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        match record.level() {
            Level::Error | Level::Warn => tracing::warn!("aggregator: {}", record.args()),
            _ => tracing::info!("aggregator: {}", record.args()),
        }
    }

    fn flush(&self) {}
}

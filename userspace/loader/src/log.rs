//! A program's log messages, read from its ring buffer and forwarded to `tracing`.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
};

use aya::programs::{ProgramError, ProgramInfo};
use aya_log::EbpfLogger;
use log::{Level, Log, Metadata, Record};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum LogError {
    #[error("could not open the pinned program {path}: {source}; is it attached?")]
    Program { path: String, source: ProgramError },
    #[error("could not open the log of XDP program {program_id}: {source}; it takes CAP_SYS_ADMIN")]
    Open { program_id: u32, source: aya_log::Error },
    #[error("could not follow the log of the {program}: {source}")]
    Follow { program: String, source: io::Error },
}

/// The log of one attached program. Several readers share it: each message reaches one of them.
pub struct ProgramLog {
    logger: EbpfLogger<ToTracing>,
    program: String,
}

impl ProgramLog {
    /// Opens the log of a loaded program, whose messages are prefixed with `program`.
    ///
    /// # Errors
    /// When the program is gone, or the caller may not open programs by number (`CAP_SYS_ADMIN`).
    pub fn open(program_id: u32, program: impl Into<String>) -> Result<Self, LogError> {
        let program = program.into();
        match EbpfLogger::init_from_id_with_logger(program_id, ToTracing { program: program.clone() }) {
            Ok(logger) => Ok(Self { logger, program }),
            Err(source) => Err(LogError::Open { program_id, source }),
        }
    }

    /// Opens the log of a pinned program.
    pub fn of_pinned(pin: &Path, program: impl Into<String>) -> Result<Self, LogError> {
        let info = ProgramInfo::from_pin(pin)
            .map_err(|source| LogError::Program { path: pin.display().to_string(), source })?;
        Self::open(info.id(), program)
    }

    /// Forwards the waiting messages. Never blocks; the log is readable by [`AsFd`] when there are more.
    pub fn flush(&mut self) {
        self.logger.flush();
    }

    /// Forwards messages until `stop`, if given, is readable.
    pub fn run(mut self, stop: Option<&EventFd>) -> io::Result<()> {
        loop {
            self.flush();
            let mut waits = vec![PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            waits.extend(stop.map(|stop| PollFd::new(stop.as_fd(), PollFlags::POLLIN)));
            match poll(&mut waits, PollTimeout::NONE) {
                Ok(_) if waits.get(1).and_then(PollFd::any) == Some(true) => return Ok(()),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Forwards messages on a thread of its own, until the follower is dropped.
    pub fn follow(self) -> Result<Follower, LogError> {
        let program = self.program.clone();
        let failed = |source: io::Error| LogError::Follow { program, source };
        let stop = match EventFd::from_flags(EfdFlags::EFD_CLOEXEC) {
            Ok(stop) => Arc::new(stop),
            Err(error) => return Err(failed(error.into())),
        };
        let stopped = stop.clone();
        let forward = move || {
            if let Err(error) = self.run(Some(&stopped)) {
                tracing::warn!("no more messages of an XDP program: {error}");
            }
        };
        let thread = thread::Builder::new().name("sumac-events".to_owned()).spawn(forward).map_err(failed)?;
        Ok(Follower { stop, thread: Some(thread) })
    }
}

impl AsFd for ProgramLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.logger.as_fd()
    }
}

/// A thread that forwards a program's messages; it ends when this is dropped.
#[derive(Debug)]
pub struct Follower {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.stop.write(1).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A thread that panicked has reported that itself.
            let _ = thread.join();
        }
    }
}

struct ToTracing {
    program: String,
}

impl Log for ToTracing {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let program = &self.program;
        match record.level() {
            Level::Error | Level::Warn => tracing::warn!("{program}: {}", record.args()),
            _ => tracing::info!("{program}: {}", record.args()),
        }
    }

    fn flush(&self) {}
}

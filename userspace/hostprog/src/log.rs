//! The program's messages (bursts of bad tokens, strangers, unknown jobs), read from the kernel and given to `tracing`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
    thread::{self, JoinHandle},
};

use aya_log::EbpfLogger;
use log::{Level, Log, Metadata, Record};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};
use thiserror::Error;

use crate::attached::Attached;

/// Why the program's messages cannot be read.
#[derive(Debug, Error)]
pub enum LogError {
    /// Its buffer.
    #[error("could not open the messages of host program {program_id}: {source}; it takes CAP_SYS_ADMIN")]
    Open {
        /// The kernel's number of the program.
        program_id: u32,
        /// What went wrong.
        source: aya_log::Error,
    },
    /// The thread that follows them.
    #[error("could not follow the messages of the host program on {interface}: {source}")]
    Follow {
        /// The interface.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
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
            Err(source) => Err(LogError::Open { program_id, source }),
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

/// A thread that hands a program's messages to `tracing` as they come; it ends when this is dropped.
#[derive(Debug)]
pub struct Follower {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// Follows the messages of an attached program, for a daemon.
///
/// # Errors
/// As [`ProgramLog::open`], or when the system gives no thread.
pub fn follow(attached: &Attached) -> Result<Follower, LogError> {
    let log = ProgramLog::open(attached)?;
    let failed =
        |source: io::Error| LogError::Follow { interface: attached.interface().name.clone(), source };
    let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(|error| failed(error.into()))?);
    let stopped = stop.clone();
    let thread = thread::Builder::new()
        .name("sumac-events".to_owned())
        .spawn(move || relay(log, &stopped))
        .map_err(failed)?;
    Ok(Follower { stop, thread: Some(thread) })
}

fn relay(mut log: ProgramLog, stop: &EventFd) {
    loop {
        log.flush();
        let mut waits =
            [PollFd::new(log.as_fd(), PollFlags::POLLIN), PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waits, PollTimeout::NONE) {
            Ok(_) if waits[1].any() == Some(true) => return,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::warn!("no more messages of the host program: {error}");
                return;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.stop.write(1).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
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

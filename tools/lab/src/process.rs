//! Programs that run in a lab: recorded, logged to a file, ended with it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command;
use crate::interrupt::{self, Waited};
use crate::record::{ProcessRecord, Record, RecordError};

/// The time between SIGTERM and SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason that a program of the lab does not run.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It could not be started.
    #[error("starting `{line}`: {source}")]
    Start {
        /// The command line.
        line: String,
        /// The cause.
        source: std::io::Error,
    },
    /// It ended when it should not have.
    #[error("{what} ended with {status} before {awaited}; the end of its log:\n{log}")]
    Ended {
        /// The program.
        what: String,
        status: ExitStatus,
        /// The awaited condition.
        awaited: String,
        /// The text of its messages.
        log: String,
    },
    /// It did not do in time what was expected.
    #[error("{what} did not get to {awaited} within {seconds} s; the end of its log:\n{log}")]
    Late {
        /// The program.
        what: String,
        /// The awaited condition.
        awaited: String,
        /// The timeout, in seconds.
        seconds: u64,
        /// The text of its messages.
        log: String,
    },
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] interrupt::Interrupted),
    /// It could not be recorded.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// A running program. Dropping it ends it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    what: String,
    log: PathBuf,
    record: Arc<Mutex<Record>>,
}

/// CPU time of a process, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct CpuTime {
    /// In user mode.
    pub user: f64,
    /// In the kernel on its behalf.
    pub system: f64,
}

impl std::ops::Add for CpuTime {
    type Output = CpuTime;

    fn add(self, other: CpuTime) -> CpuTime {
        CpuTime { user: self.user + other.user, system: self.system + other.system }
    }
}

impl std::ops::Sub for CpuTime {
    type Output = CpuTime;

    fn sub(self, other: CpuTime) -> CpuTime {
        CpuTime { user: self.user - other.user, system: self.system - other.system }
    }
}

impl Process {
    /// Starts `command` with its standard error, and its standard output unless `piped`, appended to `<folder>/<what>.log`.
    pub(crate) fn start(
        mut command: Command,
        what: &str,
        record: &Arc<Mutex<Record>>,
        piped: bool,
    ) -> Result<Process, ProcessError> {
        let line = command::line(&command);
        let start = |source| ProcessError::Start { line: line.clone(), source };
        let mut kept = record.lock().unwrap_or_else(PoisonError::into_inner);
        let log = Record::folder(&kept.spec.name).join(format!("{what}.log"));
        let file = File::options().create(true).append(true).open(&log).map_err(start)?;
        let stdout = if piped { Stdio::piped() } else { file.try_clone().map_err(start)?.into() };
        // A group of its own: the terminal's Ctrl-C comes to the lab alone, which then ends things in order.
        command.stdin(Stdio::null()).stdout(stdout).stderr(file).process_group(0);
        let child = command.spawn().map_err(start)?;
        kept.processes.push(ProcessRecord::of(child.id(), what));
        let saved = kept.save();
        drop(kept);
        let process = Process { child, what: what.to_owned(), log, record: record.clone() };
        saved?;
        Ok(process)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The description.
    pub fn what(&self) -> &str {
        &self.what
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines that it said.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Its standard output, when it was started with one that is piped, once.
    pub fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// CPU time until now, that of its threads included; zero when it is gone.
    pub fn cpu(&self) -> CpuTime {
        crate::cpu::of_process(self.pid()).unwrap_or_default()
    }

    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until `ready` says so.
    ///
    /// # Errors
    /// When the program ends first, the time runs out or the user interrupts.
    pub fn wait_until(
        &mut self,
        awaited: &str,
        limit: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), ProcessError> {
        let waited = interrupt::wait_for(limit, || match self.ended() {
            Some(status) => Some(Err(status)),
            None => ready().then_some(Ok(())),
        });
        let (what, awaited, log) = (self.what.clone(), awaited.to_owned(), self.log_tail());
        match waited {
            Waited::Done(Ok(())) => Ok(()),
            Waited::Done(Err(status)) => Err(ProcessError::Ended { what, status, awaited, log }),
            Waited::TimedOut => Err(ProcessError::Late { what, awaited, seconds: limit.as_secs(), log }),
            Waited::Interrupted => Err(interrupt::Interrupted.into()),
        }
    }

    /// Waits until it has ended well.
    ///
    /// # Errors
    /// When it ends with an error, the time runs out or the user interrupts.
    pub fn wait_success(&mut self, awaited: &str, limit: Duration) -> Result<(), ProcessError> {
        let waited = interrupt::wait_for(limit, || self.ended());
        let (what, awaited, log) = (self.what.clone(), awaited.to_owned(), self.log_tail());
        match waited {
            Waited::Done(status) if status.success() => Ok(()),
            Waited::Done(status) => Err(ProcessError::Ended { what, status, awaited, log }),
            Waited::TimedOut => Err(ProcessError::Late { what, awaited, seconds: limit.as_secs(), log }),
            Waited::Interrupted => Err(interrupt::Interrupted.into()),
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        // Our own child, not waited for yet: the number cannot be another's. That it has ended is no error.
        let _ = kill(Pid::from_raw(self.pid() as i32), signal);
    }

    /// Ends it: SIGTERM, and SIGKILL when that does not help.
    pub fn stop(&mut self) -> Option<ExitStatus> {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            if self.ended().is_none() {
                self.signal(signal);
            }
            let deadline = Instant::now() + STOP_TIMEOUT;
            while Instant::now() < deadline {
                if let Some(status) = self.ended() {
                    self.forget();
                    return Some(status);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        None
    }

    fn forget(&self) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let before = record.processes.len();
        record.processes.retain(|process| process.pid != self.child.id());
        if record.processes.len() != before {
            // A record that still names an ended process is harmless: its start time matches nothing.
            let _ = record.save();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

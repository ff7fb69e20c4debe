//! Programs that run in a lab: recorded, logged to a file, ended with it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command;
use crate::cpu::{self, CpuTime};
use crate::interrupt;
use crate::record::{ProcessRecord, Record, end};

/// A running program. Dropping it ends it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    entry: ProcessRecord,
    log: PathBuf,
    record: Arc<Mutex<Record>>,
}

/// The place of a program's standard output.
#[derive(Debug)]
pub(crate) enum Output {
    /// Its log, with the standard error.
    Log,
    /// A pipe, read by [`Process::take_stdout`].
    Pipe,
    File(File),
}

impl Process {
    /// Starts `command` with its standard error appended to `<folder>/<what>.log`.
    pub(crate) fn start(
        mut command: Command,
        what: &str,
        record: &Arc<Mutex<Record>>,
        output: Output,
    ) -> Result<Process> {
        let line = command::line(&command);
        let start = |source| anyhow!("starting `{line}`: {source}");
        let mut kept = record.lock().unwrap_or_else(PoisonError::into_inner);
        let log = Record::folder(&kept.spec.name).join(format!("{what}.log"));
        let file = File::options().create(true).append(true).open(&log).map_err(start)?;
        let stdout = match output {
            Output::Log => file.try_clone().map_err(start)?.into(),
            Output::Pipe => Stdio::piped(),
            Output::File(file) => file.into(),
        };
        // A group of its own: the terminal's Ctrl-C comes to the lab alone, which then ends things in order.
        command.stdin(Stdio::null()).stdout(stdout).stderr(file).process_group(0);
        let child = command.spawn().map_err(start)?;
        let entry = ProcessRecord::of(child.id(), what);
        kept.processes.push(entry.clone());
        let saved = kept.save();
        drop(kept);
        let process = Process { child, entry, log, record: record.clone() };
        saved?;
        Ok(process)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn what(&self) -> &str {
        &self.entry.what
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
        cpu::of_process(self.pid()).unwrap_or_default()
    }

    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn wait_until(
        &mut self,
        awaited: &str,
        limit: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        self.wait(awaited, limit, |ended| match ended {
            Some(status) => Some(Err(status)),
            None => ready().then_some(Ok(())),
        })
    }

    /// Waits until it has ended well.
    pub fn wait_success(&mut self, awaited: &str, limit: Duration) -> Result<()> {
        self.wait(awaited, limit, |ended| {
            ended.map(|status| if status.success() { Ok(()) } else { Err(status) })
        })
    }

    /// Asks `outcome`, which is told of the program's end, until it says something.
    fn wait(
        &mut self,
        awaited: &str,
        limit: Duration,
        mut outcome: impl FnMut(Option<ExitStatus>) -> Option<Result<(), ExitStatus>>,
    ) -> Result<()> {
        let waited = interrupt::wait_for(limit, || outcome(self.ended()))?;
        let (what, log, seconds) = (self.what(), self.log_tail(), limit.as_secs());
        match waited {
            Some(Ok(())) => Ok(()),
            Some(Err(status)) => {
                bail!("{what} ended with {status} before {awaited}; the end of its log:\n{log}")
            }
            None => bail!("{what} did not get to {awaited} within {seconds} s; the end of its log:\n{log}"),
        }
    }

    pub fn signal(&self, signal: Signal) {
        // Our own child, not waited for yet: the number cannot be another's. That it has ended is no error.
        let _ = kill(Pid::from_raw(self.pid() as i32), signal);
    }
}

impl Drop for Process {
    /// Ends it.
    fn drop(&mut self) {
        if self.ended().is_none() && end(std::slice::from_ref(&self.entry)).is_ok() {
            // A zombie, which this reaps. What not even SIGKILL ends stays in the record.
            let _ = self.child.wait();
        }
        if self.ended().is_some() {
            let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
            let before = record.processes.len();
            record.processes.retain(|process| *process != self.entry);
            if record.processes.len() != before {
                // A record that still names an ended process is harmless: its start time matches nothing.
                let _ = record.save();
            }
        }
    }
}

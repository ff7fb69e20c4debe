//! The record of a lab's objects on disk, from which another process can remove them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::command::CommandError;
use crate::interrupt;
use crate::namespace::Namespace;
use crate::spec::LabSpec;

/// The directory of records and of labs' files.
pub const DIRECTORY: &str = "/run/sumac-lab";

/// The time between SIGTERM and SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The reason that a record could not be kept or executed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Its file.
    #[error("{what} {path}: {source}; the lab needs root")]
    File {
        /// The action.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Its contents.
    #[error("{path} is not a lab's record: {source}; remove it by hand when no such lab is running")]
    Format {
        /// The file.
        path: PathBuf,
        source: serde_json::Error,
    },
    /// The name is unknown.
    #[error("no lab is called {0}; `sumac-lab list` names those that exist")]
    Unknown(String),
    /// A lab of this name is there already.
    #[error("a lab called {0} exists; choose another --name or `sumac-lab down --name {0}`")]
    Exists(String),
    /// A process of the lab does not go away.
    #[error("{what} (pid {pid}) does not end, not even by SIGKILL")]
    Immortal {
        /// The description.
        what: String,
        pid: u32,
    },
    /// A namespace.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// A process that belongs to a lab; its start time tells it from a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    pub pid: u32,
    /// When it was started, in the kernel's ticks since boot.
    pub started: u64,
    /// The description.
    pub what: String,
}

/// Everything of a lab that outlives its maker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The specification.
    pub spec: LabSpec,
    /// The process that made it.
    pub owner: ProcessRecord,
    /// Namespaces, by name.
    pub namespaces: Vec<String>,
    /// Folders in bpffs.
    pub pins: Vec<PathBuf>,
    /// Running programs.
    pub processes: Vec<ProcessRecord>,
}

impl Record {
    /// Returns the path of a lab's record.
    pub fn path(name: &str) -> PathBuf {
        Path::new(DIRECTORY).join(format!("{name}.json"))
    }

    /// Returns the directory of a lab's sockets, configurations and logs.
    pub fn folder(name: &str) -> PathBuf {
        Path::new(DIRECTORY).join(name)
    }

    /// Reads the record of a lab.
    ///
    /// # Errors
    /// When there is none or it cannot be read.
    pub fn load(name: &str) -> Result<Record, RecordError> {
        let path = Record::path(name);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RecordError::Unknown(name.to_owned()));
            }
            Err(source) => return Err(RecordError::File { what: "reading", path, source }),
            Ok(text) => text,
        };
        serde_json::from_str(&text).map_err(|source| RecordError::Format { path, source })
    }

    /// The names of all labs that have a record.
    ///
    /// # Errors
    /// When the folder of records cannot be read.
    pub fn names() -> Result<Vec<String>, RecordError> {
        let path = PathBuf::from(DIRECTORY);
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(RecordError::File { what: "listing", path, source }),
            Ok(entries) => entries,
        };
        let mut names: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
            .collect();
        names.sort();
        Ok(names)
    }

    /// Writes a new lab's record, and makes its folder.
    ///
    /// # Errors
    /// When there is one of this name, or the files cannot be made.
    pub(crate) fn create(&self) -> Result<(), RecordError> {
        if Record::path(&self.spec.name).exists() {
            return Err(RecordError::Exists(self.spec.name.clone()));
        }
        let folder = Record::folder(&self.spec.name);
        fs::create_dir_all(&folder).map_err(|source| RecordError::File {
            what: "creating",
            path: folder.clone(),
            source,
        })?;
        self.save()
    }

    /// Writes it again.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn save(&self) -> Result<(), RecordError> {
        let path = Record::path(&self.spec.name);
        let error = |source| RecordError::File { what: "writing", path: path.clone(), source };
        let text = serde_json::to_string_pretty(self).map_err(|e| error(e.into()))?;
        // Renamed into place, so that a crash leaves the old record or the new one.
        let draft = path.with_extension("draft");
        fs::write(&draft, text).map_err(error)?;
        fs::rename(&draft, &path).map_err(error)
    }

    /// Whether the process that made the lab is still there.
    pub fn owner_lives(&self) -> bool {
        self.owner.lives()
    }

    /// Ends the recorded processes and no others, and removes pins, namespaces, folder and record.
    ///
    /// # Errors
    /// The first thing that could not be removed, after all others have been; the record stays then.
    pub fn remove(&self) -> Result<(), RecordError> {
        let name = &self.spec.name;
        let mut first: Result<(), RecordError> = Ok(());
        let mut note = |result: Result<(), RecordError>| {
            if first.is_ok() {
                first = result;
            }
        };
        note(end(&self.processes));
        for path in self.pins.iter().chain([&Record::folder(name)]) {
            note(remove_folder(path));
        }
        for namespace in &self.namespaces {
            note(Namespace::named(namespace).delete().map_err(RecordError::from));
        }
        first?;
        let path = Record::path(name);
        fs::remove_file(&path).map_err(|source| RecordError::File { what: "removing", path, source })
    }
}

impl ProcessRecord {
    /// The record of a running process.
    pub(crate) fn of(pid: u32, what: impl Into<String>) -> ProcessRecord {
        // A process that is gone already has no start time, and none will ever match it.
        ProcessRecord { pid, started: start_time(pid).unwrap_or(0), what: what.into() }
    }

    /// Whether it is still running: a zombie is not.
    pub fn lives(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    fn signal(&self, signal: Signal) {
        if self.lives() {
            // It may have ended in this moment, which is what is wanted.
            let _ = kill(Pid::from_raw(self.pid as i32), signal);
        }
    }
}

/// Asks processes to end, and makes them.
fn end(processes: &[ProcessRecord]) -> Result<(), RecordError> {
    // Not interrupt::wait_for: after Ctrl-C is just when this has to be done with patience.
    let gone_within = |limit: Duration| {
        let deadline = std::time::Instant::now() + limit;
        while std::time::Instant::now() < deadline {
            if !processes.iter().any(ProcessRecord::lives) {
                return true;
            }
            std::thread::sleep(interrupt::TICK);
        }
        false
    };
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        for process in processes {
            process.signal(signal);
        }
        if gone_within(STOP_TIMEOUT) {
            return Ok(());
        }
    }
    match processes.iter().find(|process| process.lives()) {
        Some(process) => Err(RecordError::Immortal { what: process.what.clone(), pid: process.pid }),
        None => Ok(()),
    }
}

fn remove_folder(path: &Path) -> Result<(), RecordError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(RecordError::File { what: "removing", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// When a process started, in ticks since boot; none when it is gone or a zombie.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold spaces and parentheses; what follows does not.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    // The state is field 3, the start time field 22 of proc(5).
    fields.nth(22 - 4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_number_and_start() {
        let me = ProcessRecord::of(std::process::id(), "test");
        assert!(me.lives());
        assert!(!ProcessRecord { started: me.started + 1, ..me }.lives());
    }

    #[test]
    fn only_recorded_processes_are_ended() {
        let mut ours = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let stale = ProcessRecord { started: 1, ..ProcessRecord::of(other.id(), "another of that number") };
        end(&[ProcessRecord::of(ours.id(), "ours"), stale]).unwrap();
        assert!(!ours.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none(), "the other sleep was ended too");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

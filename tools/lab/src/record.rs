//! The record of a lab's objects on disk, from which another process can remove them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::interrupt;
use crate::namespace::Namespace;
use crate::spec::LabSpec;

/// The directory of records and of labs' files: of root, or of this user.
pub fn directory() -> PathBuf {
    let user = nix::unistd::geteuid();
    if user.is_root() {
        return PathBuf::from("/run/sumac-lab");
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    own.map_or_else(|| std::env::temp_dir().join(format!("sumac-lab-{user}")), |path| path.join("sumac-lab"))
}

/// The time between SIGTERM and SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A process that belongs to a lab; its start time tells it from a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    pub pid: u32,
    /// When it was started, in the kernel's ticks since boot.
    pub started: u64,
    pub what: String,
}

/// Everything of a lab that outlives its maker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub spec: LabSpec,
    pub owner: ProcessRecord,
    pub namespaces: Vec<String>,
    /// Folders in bpffs.
    pub pins: Vec<PathBuf>,
    pub processes: Vec<ProcessRecord>,
}

impl Record {
    /// Returns the path of a lab's record.
    pub fn path(name: &str) -> PathBuf {
        directory().join(format!("{name}.json"))
    }

    /// Returns the directory of a lab's sockets, configurations and logs.
    pub fn folder(name: &str) -> PathBuf {
        directory().join(name)
    }

    /// Reads the record of a lab.
    pub fn load(name: &str) -> Result<Record> {
        let path = Record::path(name);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("no lab is called {name}; `sumac-lab list` names those that exist");
            }
            Err(source) => return Err(file_error("reading", &path, &source)),
            Ok(text) => text,
        };
        serde_json::from_str(&text).map_err(|source| {
            let path = path.display();
            anyhow!("{path} is not a lab's record: {source}; remove it by hand when no such lab is running")
        })
    }

    /// The names of all labs that have a record.
    pub fn names() -> Result<Vec<String>> {
        let path = &directory();
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(file_error("listing", path, &source)),
            Ok(entries) => entries,
        };
        let mut names: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
            .collect();
        names.sort();
        Ok(names)
    }

    /// Writes a new lab's record, and makes its folder.
    pub(crate) fn create(&self) -> Result<()> {
        let name = &self.spec.name;
        if Record::path(name).exists() {
            bail!("a lab called {name} exists; choose another --name or `sumac-lab down --name {name}`");
        }
        let folder = Record::folder(name);
        fs::create_dir_all(&folder).map_err(|source| file_error("creating", &folder, &source))?;
        self.save()
    }

    pub(crate) fn save(&self) -> Result<()> {
        let path = Record::path(&self.spec.name);
        let error = |source| file_error("writing", &path, &source);
        let text = serde_json::to_string_pretty(self)?;
        // Renamed into place, so that a crash leaves the old record or the new one.
        let draft = path.with_extension("draft");
        fs::write(&draft, text).map_err(error)?;
        fs::rename(&draft, &path).map_err(error)
    }

    /// Ends the recorded processes and no others, and removes pins, namespaces, folder and record. Returns
    /// the first error after it has tried everything; the record stays then.
    pub fn remove(&self) -> Result<()> {
        let name = &self.spec.name;
        let mut results = vec![end(&self.processes)];
        results.extend(self.pins.iter().chain([&Record::folder(name)]).map(|path| remove_folder(path)));
        results.extend(self.namespaces.iter().map(|namespace| Namespace::named(namespace).delete()));
        results.into_iter().collect::<Result<()>>()?;
        let path = Record::path(name);
        fs::remove_file(&path).map_err(|source| file_error("removing", &path, &source))
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
pub(crate) fn end(processes: &[ProcessRecord]) -> Result<()> {
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
        Some(ProcessRecord { what, pid, .. }) => {
            bail!("{what} (pid {pid}) does not end, not even by SIGKILL")
        }
        None => Ok(()),
    }
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(file_error("removing", path, &source)),
        _ => Ok(()),
    }
}

fn file_error(what: &str, path: &Path, source: &io::Error) -> anyhow::Error {
    anyhow!("{what} {}: {source}; the lab needs root", path.display())
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

//! The traces of a lab on the machine, and the check that none remain.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use aya::programs::{ProgramInfo, loaded_programs};
use serde_json::Value;

use crate::command;
use crate::interrupt;
use crate::lab::Lab;
use crate::namespace::Namespace;
use crate::record::{ProcessRecord, Record};

/// Everything of a lab that somebody could find.
pub struct Traces {
    namespaces: Vec<Namespace>,
    processes: Vec<ProcessRecord>,
    programs: BTreeSet<u32>,
    files: Vec<PathBuf>,
}

impl Traces {
    /// Of a lab with everything running in it.
    pub fn of(lab: &Lab) -> Result<Traces> {
        let name = &lab.spec().name;
        let record = Record::load(name)?;
        let namespaces: Vec<_> = record.namespaces.iter().map(Namespace::named).collect();
        let mut programs = pinned(&lab.pin_root())?;
        let mut processes = record.processes;
        for namespace in &namespaces {
            programs.extend(attached(namespace)?);
            let inside = namespace.pids()?;
            processes.extend(inside.into_iter().map(|pid| ProcessRecord::of(pid, namespace.name())));
        }
        Ok(Traces {
            namespaces,
            processes,
            programs,
            files: [record.pins, vec![lab.folder(), Record::path(name)]].concat(),
        })
    }

    /// Returns what remains after this time: the kernel frees programs and namespaces a little after their
    /// last user.
    pub fn remaining(&self, grace: Duration) -> Result<Vec<String>> {
        let mut left = Vec::new();
        interrupt::wait_for(grace, || {
            left = self.look();
            left.is_empty().then_some(())
        })?;
        Ok(left)
    }

    fn look(&self) -> Vec<String> {
        // One that goes at this moment has no number any more.
        let loaded = loaded_programs().filter_map(|program| Some(program.ok()?.id())).collect();
        let mut left = Vec::new();
        let spaces = self.namespaces.iter().filter(|namespace| namespace.exists());
        left.extend(spaces.map(|namespace| format!("namespace {}", namespace.name())));
        let processes = self.processes.iter().filter(|process| process.lives());
        left.extend(processes.map(|process| format!("process {} ({})", process.pid, process.what)));
        left.extend(self.programs.intersection(&loaded).map(|id| format!("program {id}")));
        left.extend(self.files.iter().filter(|path| path.exists()).map(|path| path.display().to_string()));
        left
    }
}

/// The numbers of the XDP programs on a host's interfaces.
fn attached(host: &Namespace) -> Result<Vec<u32>> {
    let links = command::json(host.command("ip").args(["-json", "link", "show"]))?;
    let links = links.as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(links.iter().filter_map(|link| number(&link["xdp"]["prog"]["id"])).collect())
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

/// The numbers of all programs that are pinned below a folder: `prog` and `prog-out` are the names of such
/// pins.
fn pinned(folder: &Path) -> Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(pinned(&path)?);
        } else if entry.file_name().to_string_lossy().starts_with("prog") {
            found.insert(ProgramInfo::from_pin(&path)?.id());
        }
    }
    Ok(found)
}

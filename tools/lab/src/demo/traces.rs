//! The traces of a lab on the machine, and the check that none remain.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::DemoError;
use crate::command;
use crate::interrupt::{self, Waited};
use crate::lab::{Lab, LabError};
use crate::namespace::Namespace;
use crate::record::{ProcessRecord, Record};

/// The kernel frees programs and namespaces a little after their last user.
const GRACE: Duration = Duration::from_secs(5);

/// Everything of a lab that somebody could find.
pub(super) struct Traces {
    namespaces: Vec<Namespace>,
    processes: Vec<ProcessRecord>,
    programs: BTreeSet<u32>,
    files: Vec<PathBuf>,
}

impl Traces {
    /// Of a lab with everything running in it.
    pub(super) fn of(lab: &Lab) -> Result<Traces, DemoError> {
        let name = &lab.spec().name;
        let record = Record::load(name).map_err(LabError::from)?;
        let namespaces: Vec<_> = record.namespaces.iter().map(Namespace::named).collect();
        let mut programs = BTreeSet::new();
        let mut processes = record.processes;
        for namespace in &namespaces {
            programs.extend(attached(namespace).map_err(LabError::from)?);
            let inside = namespace.pids().map_err(LabError::from)?;
            processes.extend(inside.into_iter().map(|pid| ProcessRecord::of(pid, namespace.name())));
        }
        Ok(Traces {
            namespaces,
            processes,
            programs,
            files: vec![lab.pin_root(), lab.folder(), Record::path(name)],
        })
    }

    /// Returns the traces that remain.
    pub(super) fn remaining(&self) -> Result<Vec<String>, DemoError> {
        let mut last = Vec::new();
        let waited = interrupt::wait_for(GRACE, || match self.look() {
            Ok(left) if left.is_empty() => Some(Ok(())),
            Ok(left) => {
                last = left;
                None
            }
            Err(error) => Some(Err(error)),
        });
        match waited {
            Waited::Done(Ok(())) => Ok(Vec::new()),
            Waited::Done(Err(error)) => Err(error),
            Waited::TimedOut => Ok(last),
            Waited::Interrupted => Err(interrupt::Interrupted.into()),
        }
    }

    fn look(&self) -> Result<Vec<String>, DemoError> {
        let loaded = loaded()?;
        let mut left = Vec::new();
        let spaces = self.namespaces.iter().filter(|namespace| namespace.exists());
        left.extend(spaces.map(|namespace| format!("namespace {}", namespace.name())));
        let processes = self.processes.iter().filter(|process| process.lives());
        left.extend(processes.map(|process| format!("process {} ({})", process.pid, process.what)));
        left.extend(self.programs.intersection(&loaded).map(|id| format!("program {id}")));
        left.extend(self.files.iter().filter(|path| path.exists()).map(|path| path.display().to_string()));
        Ok(left)
    }
}

/// The numbers of the XDP programs on a host's interfaces.
fn attached(host: &Namespace) -> Result<Vec<u32>, command::CommandError> {
    let links = command::json(host.command("ip").args(["-json", "link", "show"]))?;
    let links = links.as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(links.iter().filter_map(|link| number(&link["xdp"]["prog"]["id"])).collect())
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

/// The numbers of all programs in the kernel.
fn loaded() -> Result<BTreeSet<u32>, DemoError> {
    aya::programs::loaded_programs()
        .map(|program| {
            program.map(|program| program.id()).map_err(|error| DemoError::Programs(error.to_string()))
        })
        .collect()
}

//! Which rules Sumac put in: a note beside the pins, and with the same life, for each rule.
//!
//! A bpffs holds no ordinary files, but symbolic links, whose targets are text. The link `rule-1022` to
//! `port-48700-queue-0` says that the rule at place 1022 is Sumac's, and what it says. It leads nowhere.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::flow_rules::PortRule;
use crate::pins::entries;

/// What the names of notes begin with.
const PREFIX: &str = "rule-";

/// The notes of one interface.
#[derive(Clone, Debug)]
pub struct Memory {
    directory: PathBuf,
    prefix: String,
}

impl Memory {
    /// In a directory that belongs to one interface.
    #[must_use]
    pub fn of_interface(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), prefix: PREFIX.to_owned() }
    }

    /// In a directory that several interfaces share, for one of them.
    #[must_use]
    pub fn shared(directory: &Path, interface: &str) -> Self {
        // bpffs allows no dot in a name and the kernel no colon in an interface's.
        let prefix = format!("{PREFIX}{}-", interface.replace('.', ":"));
        Self { directory: directory.to_owned(), prefix }
    }

    /// The interfaces that have notes in a directory that several share, sorted.
    ///
    /// # Errors
    /// As the file system answers; a directory that is not there has none.
    pub fn sharing(directory: &Path) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in entries(directory)? {
            let name = entry.file_name().and_then(OsStr::to_str);
            let note = name.and_then(|name| name.strip_prefix(PREFIX)?.rsplit_once('-'));
            found.extend(note.map(|(interface, _)| interface.replace(':', ".")));
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The rules that are noted, by place; none when there is no directory.
    ///
    /// # Errors
    /// As the file system answers. Links that are no notes are passed over.
    pub fn read(&self) -> io::Result<Vec<PortRule>> {
        let mut found = Vec::new();
        for entry in entries(&self.directory)? {
            if !fs::symlink_metadata(&entry)?.is_symlink() {
                continue;
            }
            let target = fs::read_link(&entry)?;
            let name = entry.file_name().unwrap_or_default();
            found.extend(parse(&name.to_string_lossy(), &self.prefix, &target.to_string_lossy()));
        }
        found.sort_by_key(|rule: &PortRule| rule.location);
        Ok(found)
    }

    /// Has exactly these rules be noted.
    ///
    /// # Errors
    /// As the file system answers.
    pub fn write(&self, rules: &[PortRule]) -> io::Result<()> {
        let noted = self.read()?;
        for rule in noted.iter().filter(|rule| !rules.contains(rule)) {
            fs::remove_file(self.note(rule))?;
        }
        for rule in rules.iter().filter(|rule| !noted.contains(rule)) {
            symlink(format!("port-{}-queue-{}", rule.port, rule.queue), self.note(rule))?;
        }
        Ok(())
    }

    fn note(&self, rule: &PortRule) -> PathBuf {
        self.directory.join(format!("{}{}", self.prefix, rule.location))
    }
}

fn parse(name: &str, prefix: &str, target: &str) -> Option<PortRule> {
    let location = name.strip_prefix(prefix)?.parse().ok()?;
    let (port, queue) = target.strip_prefix("port-")?.split_once("-queue-")?;
    Some(PortRule { location, port: port.parse().ok()?, queue: queue.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_what_was_written_last() {
        let directory = std::env::temp_dir().join(format!("sumac-notes-{}", std::process::id()));
        let rule = |location, port, queue| PortRule { location, port, queue };
        let memory = Memory::of_interface(&directory);
        assert_eq!(memory.read().unwrap(), [], "no directory, no notes");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("link"), "").unwrap();
        symlink("elsewhere", directory.join("rule-x")).unwrap();
        symlink("port-1-queue-no", directory.join("rule-9")).unwrap();
        for rules in [
            vec![rule(3, 48700, 0), rule(1022, 48701, 1)],
            vec![rule(3, 48700, 2)],
            vec![rule(3, 48700, 2), rule(4, 48701, 3)],
            vec![],
        ] {
            memory.write(&rules).unwrap();
            assert_eq!(memory.read().unwrap(), rules);
        }
        let (one, other) = (Memory::shared(&directory, "eth0.7"), Memory::shared(&directory, "eth0"));
        one.write(&[rule(1, 2, 3)]).unwrap();
        other.write(&[rule(4, 5, 6)]).unwrap();
        assert_eq!((one.read().unwrap(), other.read().unwrap()), (vec![rule(1, 2, 3)], vec![rule(4, 5, 6)]));
        assert_eq!(memory.read().unwrap(), []);
        assert_eq!(Memory::sharing(&directory).unwrap(), ["eth0", "eth0.7"]);
        fs::remove_dir_all(directory).unwrap();
    }
}

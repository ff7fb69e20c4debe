//! Records of the rules that Sumac inserted, beside the pins and with their lifetime.
//!
//! A bpffs holds no ordinary files, but symbolic links, whose targets are text. The link `rule-1022` with the
//! target `port-48700-queue-0` records that Sumac inserted the rule at location 1022, and its content. It
//! leads nowhere.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use sumac_loader::pins::{decode_interface, encode_interface, entries, file_name};

use super::flow_rules::PortRule;

/// The location of a rule that is about to be inserted: the driver may choose it.
const PENDING: u32 = u32::MAX;

const PREFIX: &str = "rule-";

/// The records of one interface's rules.
#[derive(Clone, Debug)]
pub struct RuleRecords {
    directory: PathBuf,
    prefix: String,
}

impl RuleRecords {
    /// Returns those in a directory that belongs to one interface.
    pub fn of_interface(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), prefix: PREFIX.to_owned() }
    }

    /// Returns one interface's in a directory that several share.
    pub fn shared(directory: &Path, interface: &str) -> Self {
        let prefix = format!("{PREFIX}{}-", encode_interface(interface));
        Self { directory: directory.to_owned(), prefix }
    }

    /// Returns the interfaces with records in a directory that several share, sorted.
    pub fn interfaces(directory: &Path) -> io::Result<Vec<String>> {
        let entries = entries(directory)?;
        let names =
            entries.iter().filter_map(|entry| file_name(entry).strip_prefix(PREFIX)?.rsplit_once('-'));
        let mut found: Vec<_> = names.map(|(interface, _)| decode_interface(interface)).collect();
        found.sort();
        found.dedup();
        Ok(found)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the recorded rules by location; none when there is no directory. Other links are skipped.
    pub fn read(&self) -> io::Result<Vec<PortRule>> {
        let mut found = Vec::new();
        for entry in entries(&self.directory)? {
            if !fs::symlink_metadata(&entry)?.is_symlink() {
                continue;
            }
            let target = fs::read_link(&entry)?;
            found.extend(parse(file_name(&entry), &self.prefix, &target.to_string_lossy()));
        }
        found.sort_by_key(|rule: &PortRule| rule.location);
        Ok(found)
    }

    /// Records that a rule is about to be inserted, in place of the last one of which that was recorded. If
    /// this process ends before [`RuleRecords::add`], the rule is known by port and queue: a port has one
    /// rule.
    pub fn announce(&self, port: u16, queue: u32) -> io::Result<()> {
        self.forget_pending()?;
        self.link(&PortRule { location: PENDING, port, queue })
    }

    /// Records the rule that was announced, now that it is inserted.
    pub fn add(&self, rule: &PortRule) -> io::Result<()> {
        if self.record(rule).is_symlink() {
            fs::remove_file(self.record(rule))?;
        }
        self.link(rule)?;
        self.forget_pending()
    }

    fn forget_pending(&self) -> io::Result<()> {
        match fs::remove_file(self.directory.join(format!("{}{PENDING}", self.prefix))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Records exactly these rules.
    pub fn write(&self, rules: &[PortRule]) -> io::Result<()> {
        let recorded = self.read()?;
        for rule in recorded.iter().filter(|rule| !rules.contains(rule)) {
            fs::remove_file(self.record(rule))?;
        }
        for rule in rules.iter().filter(|rule| !recorded.contains(rule)) {
            self.link(rule)?;
        }
        Ok(())
    }

    fn link(&self, rule: &PortRule) -> io::Result<()> {
        symlink(format!("port-{}-queue-{}", rule.port, rule.queue), self.record(rule))
    }

    fn record(&self, rule: &PortRule) -> PathBuf {
        self.directory.join(format!("{}{}", self.prefix, rule.location))
    }
}

/// Returns whether a rule of the NIC is one of the recorded.
pub(super) fn has(records: &[PortRule], rule: &PortRule) -> bool {
    records.iter().any(|own| {
        *rule == PortRule { location: rule.location, ..*own }
            && [rule.location, PENDING].contains(&own.location)
    })
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
    fn the_last_write_is_recorded() {
        let directory = std::env::temp_dir().join(format!("sumac-records-{}", std::process::id()));
        let rule = |location, port, queue| PortRule { location, port, queue };
        let records = RuleRecords::of_interface(&directory);
        assert_eq!(records.read().unwrap(), [], "no directory, no records");
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
            records.write(&rules).unwrap();
            assert_eq!(records.read().unwrap(), rules);
        }
        let (one, other) =
            (RuleRecords::shared(&directory, "eth0.7"), RuleRecords::shared(&directory, "eth0"));
        one.write(&[rule(1, 2, 3)]).unwrap();
        other.write(&[rule(4, 5, 6)]).unwrap();
        assert_eq!((one.read().unwrap(), other.read().unwrap()), (vec![rule(1, 2, 3)], vec![rule(4, 5, 6)]));
        assert_eq!(records.read().unwrap(), []);
        assert_eq!(RuleRecords::interfaces(&directory).unwrap(), ["eth0", "eth0.7"]);
        fs::remove_dir_all(directory).unwrap();
    }
}

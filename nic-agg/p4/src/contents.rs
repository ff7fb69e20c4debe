//! The contents of the switch's tables and multicast groups, and the way from one to another.

use std::collections::BTreeMap;

use crate::{
    sizes,
    tables::{
        self, HeldJob, JOBS,
        admission::{former, outlives_job},
    },
    target::{Change, Entry, Group, Key, SwitchError, Target, Update},
};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    entries: BTreeMap<(&'static str, Key), Entry>,
    groups: BTreeMap<u32, Group>,
}

impl Contents {
    pub fn read(switch: &impl Target) -> Result<Contents, SwitchError> {
        let mut contents = Contents::default();
        for table in tables::ALL {
            contents.add(switch.entries(table)?);
        }
        // The switch's owner may have other groups.
        let ours = switch.groups()?.into_iter().filter(|group| (1..sizes::JOBS as u32).contains(&group.id));
        contents.groups = ours.map(|group| (group.id, group)).collect();
        Ok(contents)
    }

    /// Adds entries, in the place of those with the same keys.
    pub fn add(&mut self, entries: impl IntoIterator<Item = Entry>) {
        self.entries.extend(entries.into_iter().map(|entry| ((entry.table, entry.key.clone()), entry)));
    }

    pub fn add_group(&mut self, group: Group) {
        self.groups.insert(group.id, group);
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub fn remove_table(&mut self, table: &'static str) {
        self.entries.retain(|(of, _), _| *of != table);
    }

    /// Removes the entries of a job's number.
    pub fn remove_job(&mut self, job: u16) {
        self.entries.retain(|_, entry| !is_of(entry, job));
        self.groups.remove(&job.into());
    }

    /// Makes a job a former one: its last epoch stays, and the entries that outlive it.
    pub fn end_job(&mut self, job: u16) {
        if let Some(HeldJob::Active(new)) = self.jobs().remove(&job) {
            self.add([former(job, &new.active_entry())]);
        }
        self.entries
            .retain(|_, entry| !is_of(entry, job) || entry.table == JOBS || outlives_job(entry.table));
        self.groups.remove(&job.into());
    }

    /// Removes the intentional drops of a job's number.
    pub fn remove_drops(&mut self, job: u16) {
        self.entries.retain(|_, entry| !is_drop(entry) || entry.exact_field("job") != Some(job.into()));
    }

    /// Removes what is of no job as a whole: a control plane may have ended while it installed or removed
    /// one.
    pub fn remove_parts(&mut self) {
        let jobs = self.jobs();
        for job in (0..=u16::MAX).take(sizes::JOBS) {
            match jobs.get(&job) {
                Some(HeldJob::Active(_)) => {}
                Some(HeldJob::Former(_)) => self.end_job(job),
                None => self.remove_job(job),
            }
        }
    }

    /// Returns the numbers of the jobs that aggregate here, and not in `found`.
    pub fn jobs_missing_in(&self, found: &Contents) -> Vec<u16> {
        let active =
            self.entries.iter().filter(|(_, entry)| entry.table == JOBS && entry.action == "set_job");
        let missing = active.filter(|(place, entry)| found.entries.get(*place) != Some(*entry));
        missing.filter_map(|(_, entry)| u16::try_from(entry.exact_field("job")?).ok()).collect()
    }

    /// Adds the jobs of `found` that have later epochs, as former ones. Slots may have such a job as their
    /// owner, so its epoch must not be used again.
    pub fn add_later_epochs(&mut self, found: &Contents) {
        let jobs = self.jobs();
        for (job, theirs) in found.jobs() {
            if jobs.get(&job).is_some_and(|ours| ours.entry().epoch >= theirs.entry().epoch) {
                continue;
            }
            self.remove_job(job);
            self.add(found.entries().filter(|entry| is_of(entry, job)).cloned());
            self.end_job(job);
        }
    }

    /// Removes the entries of removed jobs, except their last epochs. Returns whether there were any.
    pub fn forget_former(&mut self) -> bool {
        let former = self.jobs().into_iter().filter(|(_, known)| matches!(known, HeldJob::Former(_)));
        let former: Vec<u16> = former.map(|(job, _)| job).collect();
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.table == JOBS || !former.iter().any(|job| is_of(entry, *job)));
        self.entries.len() < before
    }

    /// Returns the jobs, present and former, by number.
    pub fn jobs(&self) -> BTreeMap<u16, HeldJob> {
        let mut by_job: BTreeMap<u16, Vec<&Entry>> = BTreeMap::new();
        for entry in self.entries.values().filter(|entry| !is_drop(entry)) {
            if let Some(job) = entry.exact_field("job").and_then(|job| u16::try_from(job).ok()) {
                by_job.entry(job).or_default().push(entry);
            }
        }
        by_job.into_iter().filter_map(|(job, entries)| Some((job, tables::recall(job, &entries)?))).collect()
    }

    /// Returns the updates that make these contents another, in steps that each follow the one before: jobs
    /// that end, their entries, the entries of others, and jobs that begin.
    pub fn steps_to(&self, after: &Contents) -> [Vec<Update>; 4] {
        let [mut ending, mut removed, mut added, mut beginning] = [const { Vec::new() }; 4];
        for (place, entry) in &self.entries {
            if !after.entries.contains_key(place) {
                let removal = Update::Entry(Change::Delete, entry.clone());
                if entry.table == JOBS { ending.push(removal) } else { removed.push(removal) }
            }
        }
        for (place, entry) in &after.entries {
            let change = match self.entries.get(place) {
                Some(before) if before == entry => continue,
                Some(_) => Change::Modify,
                None => Change::Insert,
            };
            let update = Update::Entry(change, entry.clone());
            match entry.table {
                JOBS if entry.action == "set_job" => beginning.push(update),
                JOBS => ending.push(update),
                _ => added.push(update),
            }
        }
        for (id, group) in &after.groups {
            match self.groups.get(id) {
                Some(before) if before == group => {}
                Some(_) => added.push(Update::Group(Change::Modify, group.clone())),
                None => added.push(Update::Group(Change::Insert, group.clone())),
            }
        }
        let gone = self.groups.iter().filter(|(id, _)| !after.groups.contains_key(id));
        removed.extend(gone.map(|(_, group)| Update::Group(Change::Delete, group.clone())));
        [ending, removed, added, beginning]
    }
}

fn is_of(entry: &Entry, job: u16) -> bool {
    !is_drop(entry) && entry.exact_field("job") == Some(job.into())
}

/// Drops are of jobs' numbers, present or not.
fn is_drop(entry: &Entry) -> bool {
    matches!(entry.table, "drops" | "copy_drops")
}

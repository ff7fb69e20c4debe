//! A switch in memory: as strict as a real one about what is there, and with tables of limited sizes.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex},
};

use sumac_agg_p4::target::{Binding, Change, Entry, Group, Key, SwitchError, Target, Update};

#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    instance: u64,
    session: u64,
    entries: BTreeMap<(&'static str, Key), Entry>,
    groups: BTreeMap<u32, Group>,
    counters: BTreeMap<(&'static str, u32), u64>,
    sizes: BTreeMap<&'static str, usize>,
    /// Updates until the connection is lost.
    updates_left: Option<usize>,
    writes: Vec<Vec<Update>>,
}

impl Memory {
    fn with<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    pub fn restart(&self) {
        self.with(|inner| {
            *inner = Inner { instance: inner.instance + 1, ..Inner::default() };
        });
    }

    /// Makes all control planes of the switch bind anew: which of them writes is a test's choice.
    pub fn rebind(&self) {
        self.with(|inner| inner.session += 1);
    }

    pub fn limit(&self, table: &'static str, size: usize) {
        self.with(|inner| inner.sizes.extend([(table, size)]));
    }

    /// Loses the connection after so many updates; `None`: it is back.
    pub fn lose_after(&self, updates: Option<usize>) {
        self.with(|inner| inner.updates_left = updates);
    }

    pub fn count(&self, counter: &'static str, cell: u32, packets: u64) {
        self.with(|inner| inner.counters.extend([((counter, cell), packets)]));
    }

    pub fn all(&self) -> (Vec<Entry>, Vec<Group>) {
        self.with(|inner| {
            (inner.entries.values().cloned().collect(), inner.groups.values().cloned().collect())
        })
    }

    pub fn replace(&self, (entries, groups): (Vec<Entry>, Vec<Group>)) {
        self.with(|inner| {
            let place = |entry: Entry| ((entry.table, entry.key.clone()), entry);
            inner.entries = entries.into_iter().map(place).collect();
            inner.groups = groups.into_iter().map(|group| (group.id, group)).collect();
        });
    }

    /// Returns the writes since the last call.
    pub fn writes(&self) -> Vec<Vec<Update>> {
        self.with(|inner| std::mem::take(&mut inner.writes))
    }
}

fn away() -> SwitchError {
    SwitchError::Away { address: "memory".into(), what: "the connection is lost".into() }
}

impl Inner {
    fn check(&self) -> Result<(), SwitchError> {
        if self.updates_left == Some(0) { Err(away()) } else { Ok(()) }
    }

    fn apply(&mut self, update: &Update) -> Result<(), SwitchError> {
        self.check()?;
        self.updates_left = self.updates_left.map(|left| left - 1);
        let (change, is_there) = match update {
            Update::Entry(change, entry) => {
                (change, self.entries.contains_key(&(entry.table, entry.key.clone())))
            }
            Update::Group(change, group) => (change, self.groups.contains_key(&group.id)),
        };
        if is_there == (*change == Change::Insert) {
            let what = if is_there { "it exists" } else { "it does not exist" }.to_owned();
            return Err(SwitchError::Refused { doing: update.to_string(), what });
        }
        match update {
            Update::Entry(Change::Delete, entry) => {
                self.entries.remove(&(entry.table, entry.key.clone()));
            }
            Update::Entry(_, entry) => {
                let count = self.entries.keys().filter(|(table, _)| *table == entry.table).count();
                let size = self.sizes.get(entry.table);
                if !is_there && size.is_some_and(|size| count >= *size) {
                    return Err(SwitchError::TableFull { table: entry.table.into(), what: String::new() });
                }
                self.entries.insert((entry.table, entry.key.clone()), entry.clone());
            }
            Update::Group(Change::Delete, group) => drop(self.groups.remove(&group.id)),
            Update::Group(_, group) => drop(self.groups.insert(group.id, group.clone())),
        }
        Ok(())
    }
}

impl Target for Memory {
    fn binding(&self) -> Result<Binding, SwitchError> {
        self.with(|inner| {
            inner.check().map(|()| Binding { instance: inner.instance, session: inner.session })
        })
    }

    fn write(&self, updates: &[Update]) -> Result<(), SwitchError> {
        self.with(|inner| {
            inner.writes.push(updates.to_vec());
            updates.iter().try_for_each(|update| inner.apply(update))
        })
    }

    fn entries(&self, table: &'static str) -> Result<Vec<Entry>, SwitchError> {
        self.with(|inner| {
            inner.check()?;
            Ok(inner.entries.values().filter(|entry| entry.table == table).cloned().collect())
        })
    }

    fn groups(&self) -> Result<Vec<Group>, SwitchError> {
        self.with(|inner| inner.check().map(|()| inner.groups.values().cloned().collect()))
    }

    fn counters(&self, counter: &'static str, cells: Range<u32>) -> Result<Vec<u64>, SwitchError> {
        self.with(|inner| {
            inner.check()?;
            Ok(cells.map(|cell| inner.counters.get(&(counter, cell)).copied().unwrap_or(0)).collect())
        })
    }

    fn clear_counters(&self, counter: &'static str, cells: Range<u32>) -> Result<(), SwitchError> {
        self.with(|inner| {
            inner.check()?;
            inner.counters.retain(|(of, cell), _| *of != counter || !cells.contains(cell));
            Ok(())
        })
    }
}

//! The interface to a programmable switch: tables, multicast groups and counters, by the names of the P4
//! program.
//!
//! P4Runtime and BFRuntime implement it, and everything above it is the same for both. A name is the last
//! component of the program's (`jobs` of `SumacIngress.admission.jobs`). Values fit 64 bits; their widths are
//! the program's.

use std::{collections::BTreeMap, fmt, ops::Range};

use thiserror::Error;

/// A programmable switch with the aggregator's program. Calls block, and may be made from any thread.
pub trait Target: Send + Sync + 'static {
    /// # Errors
    /// When the switch does not answer, or another control plane is its primary.
    fn binding(&self) -> Result<Binding, SwitchError>;

    /// Returns the instance of the binding.
    ///
    /// # Errors
    /// As [`Target::binding`].
    fn instance(&self) -> Result<u64, SwitchError> {
        self.binding().map(|binding| binding.instance)
    }

    /// Applies updates in their order. When that fails, some of them may have been applied: read the tables
    /// again.
    ///
    /// # Errors
    /// An insertion of what is there, or a change of what is not there, fails, as on the switch.
    fn write(&self, updates: &[Update]) -> Result<(), SwitchError>;

    /// Returns the entries of a table, without its default entry.
    fn entries(&self, table: &'static str) -> Result<Vec<Entry>, SwitchError>;

    fn groups(&self) -> Result<Vec<Group>, SwitchError>;

    /// Returns cells of an indexed counter of packets.
    fn counters(&self, counter: &'static str, cells: Range<u32>) -> Result<Vec<u64>, SwitchError>;

    /// Sets cells of an indexed counter to zero.
    fn clear_counters(&self, counter: &'static str, cells: Range<u32>) -> Result<(), SwitchError>;
}

impl<T: Target + ?Sized> Target for Box<T> {
    fn binding(&self) -> Result<Binding, SwitchError> {
        (**self).binding()
    }

    fn write(&self, updates: &[Update]) -> Result<(), SwitchError> {
        (**self).write(updates)
    }

    fn entries(&self, table: &'static str) -> Result<Vec<Entry>, SwitchError> {
        (**self).entries(table)
    }

    fn groups(&self) -> Result<Vec<Group>, SwitchError> {
        (**self).groups()
    }

    fn counters(&self, counter: &'static str, cells: Range<u32>) -> Result<Vec<u64>, SwitchError> {
        (**self).counters(counter, cells)
    }

    fn clear_counters(&self, counter: &'static str, cells: Range<u32>) -> Result<(), SwitchError> {
        (**self).clear_counters(counter, cells)
    }
}

/// The memory that a control plane writes, and since when no other has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Names the memory of the program on the switch: another number means that its tables, counters and
    /// registers are as after a start. It outlives a restart of the control plane.
    pub instance: u64,
    /// Increases when this process becomes the switch's primary, or binds to its program: another control
    /// plane may have written in between.
    pub session: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Match {
    Exact(u64),
    /// The mask is not 0, and the value has no bits outside of it.
    Ternary {
        value: u64,
        mask: u64,
    },
}

/// The key of a table's entry: its fields by name. A ternary field that may hold anything is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub BTreeMap<String, Match>);

/// An entry of a table. Ternary entries of a table do not overlap, so that their priorities do not matter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    pub table: &'static str,
    pub key: Key,
    pub action: String,
    pub parameters: BTreeMap<String, u64>,
}

impl Entry {
    /// Returns an entry without a key yet.
    #[must_use]
    pub fn new(table: &'static str, action: &str) -> Entry {
        Entry { table, key: Key::default(), action: action.to_owned(), parameters: BTreeMap::new() }
    }

    #[must_use]
    pub fn exact(mut self, field: &str, value: impl Into<u64>) -> Entry {
        self.key.0.insert(field.to_owned(), Match::Exact(value.into()));
        self
    }

    /// Adds a ternary field. A mask of 0 leaves it out.
    #[must_use]
    pub fn ternary(mut self, field: &str, value: impl Into<u64>, mask: impl Into<u64>) -> Entry {
        let (value, mask) = (value.into(), mask.into());
        if mask != 0 {
            self.key.0.insert(field.to_owned(), Match::Ternary { value: value & mask, mask });
        }
        self
    }

    #[must_use]
    pub fn parameter(mut self, name: &str, value: impl Into<u64>) -> Entry {
        self.parameters.insert(name.to_owned(), value.into());
        self
    }

    /// Returns the value of an exact field of the key.
    #[must_use]
    pub fn exact_field(&self, field: &str) -> Option<u64> {
        match self.key.0.get(field) {
            Some(Match::Exact(value)) => Some(*value),
            Some(Match::Ternary { .. }) | None => None,
        }
    }
}

/// A multicast group: a packet that is sent to it leaves once for each replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// Not 0.
    pub id: u32,
    /// In order.
    pub replicas: Vec<Replica>,
}

impl Group {
    #[must_use]
    pub fn new(id: u32, replicas: impl IntoIterator<Item = Replica>) -> Group {
        let mut replicas: Vec<_> = replicas.into_iter().collect();
        replicas.sort_unstable();
        Group { id, replicas }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replica {
    pub port: u32,
    /// The copy's replication id (`egress_rid`).
    pub instance: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    Insert,
    /// Replaces the action of an entry, or the replicas of a group.
    Modify,
    Delete,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Update {
    Entry(Change, Entry),
    Group(Change, Group),
}

impl fmt::Display for Update {
    /// Without values: tokens are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Update::Entry(change, entry) => {
                write!(f, "{change:?} of an entry of table `{}` ({})", entry.table, entry.action)
            }
            Update::Group(change, group) => write!(f, "{change:?} of multicast group {}", group.id),
        }
    }
}

/// The reason that a switch does not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SwitchError {
    #[error(
        "cannot connect to the switch at {address}: {what}; is its server running, and is --switch-address \
        right?"
    )]
    Connect { address: String, what: String },
    #[error(
        "the switch at {address} has another primary control plane for device {device}: stop that one, or \
        give this one another --device-id"
    )]
    NotPrimary { address: String, device: u64 },
    #[error(
        "another control plane is bound to program `{program}` of the switch at {address} ({what}): stop \
        that one first"
    )]
    Bound { address: String, program: String, what: String },
    #[error("the switch at {address} is not ready: {what}")]
    Away { address: String, what: String },
    #[error(
        "the switch refuses the program of {file}: {what}; compile it for this switch with the compiler of \
        its release"
    )]
    PipelineRefused { file: String, what: String },
    #[error(
        "table `{table}` of the switch is full ({what}): run fewer or smaller jobs, or compile the program \
        with larger sizes"
    )]
    TableFull { table: String, what: String },
    #[error(
        "the switch's program has no {kind} `{name}`: load the program of this release (p4/ of the same \
        version)"
    )]
    Unknown { kind: &'static str, name: String },
    #[error(
        "field `{field}` of table `{table}`: {what}; load the program of this release (p4/ of the same \
        version)"
    )]
    Field { table: String, field: String, what: String },
    #[error("{doing}: the switch answers {what}")]
    Refused { doing: String, what: String },
    #[error("{path}: {what}")]
    File { path: String, what: String },
}

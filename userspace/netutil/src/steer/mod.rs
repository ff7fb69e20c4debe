//! Directs each shard's packets to its own receive queue: a rule in the NIC for each UDP port.
//!
//! Where a NIC has no rules, something else chooses the queue ([`report`]), and the thread of another queue
//! that receives a packet hands it over: it is slower, and counted as `crossed`.
//!
//! Rules belong to the interface, not to the program: they would stay after it. So the rules inserted here
//! are recorded beside the program's pins ([`records`]) and deleted with it. Equal rules that others inserted
//! are used and left alone.

mod change;
mod error;
pub mod flow_rules;
pub mod records;
pub mod report;

use std::fmt;

use serde::{Deserialize, Serialize};
use sumac_loader::{Interface, namespace};

pub use self::{change::Change, error::SteerError};
use self::{change::RuleTable, error::unsupported, flow_rules::FlowRules, records::RuleRecords};

/// Whether the NIC shall steer by rules.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Steer {
    /// Rules where the driver has them; else what chooses the queue is reported
    #[default]
    Auto,
    /// Rules, or fail
    Ntuple,
    /// No rules; those inserted before are deleted
    Off,
}

impl fmt::Display for Steer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Ntuple => "ntuple",
            Self::Off => "off",
        })
    }
}

/// Returns the queue for each shard's port. Shards take the queues in turn, as the daemon's threads do.
pub fn wanted(base_port: u16, shards: u16, queues: &[u32]) -> Vec<(u16, u32)> {
    // Ports beyond the last one were refused before.
    (base_port..=u16::MAX).take(shards.into()).zip(queues.iter().copied().cycle()).collect()
}

/// Changes the interface's rules to those wanted; to none for an interface of one queue. With [`Steer::Auto`]
/// a rule that the driver refuses is a warning; own rules that would steer wrongly are deleted all the same.
///
/// # Errors
/// See [`SteerError`]; with [`Steer::Auto`] only [`SteerError::Records`].
pub fn apply(
    steer: Steer,
    interface: &Interface,
    wanted: &[(u16, u32)],
    records: &RuleRecords,
) -> Result<Change, SteerError> {
    let name = &interface.name;
    let wanted = if steer == Steer::Off || interface.rx_queues <= 1 { &[] } else { wanted };
    let own = records.read().map_err(|source| SteerError::records(name, records, source))?;
    if wanted.is_empty() && own.is_empty() {
        return Ok(Change::default());
    }
    let rules = FlowRules::open(name).map_err(|source| unsupported(name, source))?;
    let table = RuleTable { ifname: name, rules: &rules, records };
    match table.change(&own, wanted) {
        Err(error) if steer == Steer::Auto && !matches!(error, SteerError::Records { .. }) => {
            tracing::warn!("{error}; continuing without");
            Ok(table.delete_wrong(&own, wanted))
        }
        outcome => outcome,
    }
}

/// Undoes a change. A failure is a warning: an error led here already.
pub fn roll_back(change: Change, interface: &Interface, records: &RuleRecords) {
    let name = &interface.name;
    let undone = FlowRules::open(name).map_err(|source| unsupported(name, source)).and_then(|rules| {
        let own = records.read().map_err(|source| SteerError::records(name, records, source))?;
        RuleTable { ifname: name, rules: &rules, records }.undo(own, change)
    });
    if let Err(error) = undone {
        tracing::warn!("{error}; see `ethtool -n {name}`");
    }
}

/// Deletes the recorded rules of an interface in a network namespace. An interface that is gone had its rules
/// with it.
///
/// # Errors
/// The first rule that stays; all rules are then as they were.
pub fn remove(namespace: u64, ifname: &str, records: &RuleRecords) -> Result<(), SteerError> {
    let own = records.read().map_err(|source| SteerError::records(ifname, records, source))?;
    if own.is_empty() {
        return Ok(());
    }
    let removed = namespace::inside(namespace, || {
        if Interface::by_name(ifname).is_err() {
            return Ok(());
        }
        let rules = FlowRules::open(ifname).map_err(|source| unsupported(ifname, source))?;
        RuleTable { ifname, rules: &rules, records }.change(&own, &[]).map(drop)
    });
    removed.map_err(|source| SteerError::Namespace { ifname: ifname.to_owned(), source })?
}

#[cfg(test)]
mod tests;

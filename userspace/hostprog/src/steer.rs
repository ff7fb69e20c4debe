//! Leads each shard's packets to its own receive queue: a rule in the NIC for each UDP port.
//!
//! Where a NIC has no rules, something else chooses the queue ([`report`] says what), and a packet that comes to another
//! queue's thread is handed over by that thread: it is slower, and counted as `crossed`.
//!
//! Rules belong to the interface, not to the program: they would stay when it goes. So those that were put in here are
//! remembered beside the program's pins ([`memory`]), and are taken out with it. Rules of the same meaning that somebody else
//! put in are used and left alone.

pub mod flow_rules;
pub mod memory;
pub mod report;

use std::{fmt, io, path::PathBuf, str::FromStr};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    interface::{self, Interface},
    netns,
    steer::{
        flow_rules::{FlowRules, PortRule},
        memory::Memory,
    },
};

/// Whether rules are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Steer {
    /// Rules where the driver has them; else what steers instead is reported.
    #[default]
    Auto,
    /// Rules, or fail.
    Ntuple,
    /// No rules, and none stay that were put in before.
    Off,
}

/// A word that names no way to steer.
#[derive(Debug, Error)]
#[error("{0:?} is no way to steer: use auto, ntuple or off")]
pub struct UnknownSteer(String);

impl Steer {
    /// All, as the command line lists them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Ntuple, Self::Off];

    /// The word for it on the command line and in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ntuple => "ntuple",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Steer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Steer {
    type Err = UnknownSteer;

    fn from_str(word: &str) -> Result<Self, UnknownSteer> {
        Self::ALL.into_iter().find(|steer| steer.name() == word).ok_or_else(|| UnknownSteer(word.to_owned()))
    }
}

/// Why the shards' packets are not steered by rules. The interface's rules are as they were before.
#[derive(Debug, Error)]
pub enum SteerError {
    /// The driver does not tell its rules, mostly because it has none.
    #[error("{ifname} takes no rules that steer packets to queues: {advice} ({source})")]
    Unsupported {
        /// The interface.
        ifname: String,
        /// What the kernel said.
        source: io::Error,
        /// What that means, or what to do.
        advice: String,
    },
    /// Somebody else's rule has the port.
    #[error(
        "rule {} of {ifname}, which is not Sumac's, sends UDP port {} to queue {} and not {queue}; remove it: \
         ethtool -N {ifname} delete {}", rule.location, rule.port, rule.queue, rule.location
    )]
    Taken {
        /// The interface.
        ifname: String,
        /// The rule.
        rule: PortRule,
        /// The queue of the port's shard.
        queue: u32,
    },
    /// The driver refused a rule.
    #[error(
        "{ifname} did not take the rule that sends UDP port {port} to queue {queue}: {advice} ({source})"
    )]
    Insert {
        /// The interface.
        ifname: String,
        /// UDP destination port.
        port: u16,
        /// Receive queue.
        queue: u32,
        /// What the kernel said.
        source: io::Error,
        /// What that means, or what to do.
        advice: String,
    },
    /// A rule of Sumac's that stays.
    #[error(
        "could not remove rule {location} of {ifname}: {source}; by hand: ethtool -N {ifname} delete {location}"
    )]
    Delete {
        /// The interface.
        ifname: String,
        /// The rule's place.
        location: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The interface's network namespace.
    #[error("could not enter the network namespace of {ifname}: {source}; see `ethtool -n {ifname}` there")]
    Namespace {
        /// The interface.
        ifname: String,
        /// What the system said.
        source: io::Error,
    },
    /// The notes of what was put in.
    #[error("could not keep or read the notes of {ifname}'s rules at {path}: {source}")]
    Memory {
        /// The interface.
        ifname: String,
        /// The directory.
        path: PathBuf,
        /// What the file system said.
        source: io::Error,
    },
}

/// The queue that each shard's port shall lead to, for shards that have the queues in turn as the daemon's threads do.
#[must_use]
pub fn wanted(base_port: u16, shards: u16, queues: &[u32]) -> Vec<(u16, u32)> {
    // Ports that would lie beyond the last one are refused before.
    (base_port..=u16::MAX).take(shards.into()).zip(queues.iter().copied().cycle()).collect()
}

/// What was done to an interface's rules, to be undone should something later fail.
#[derive(Debug, Default)]
#[must_use = "it is needed to undo the change"]
pub struct Change {
    inserted: Vec<PortRule>,
    deleted: Vec<PortRule>,
}

/// Has the interface's rules be those that are wanted, none for an interface of one queue. What cannot be is a warning
/// with [`Steer::Auto`]; own rules that would mislead go all the same.
///
/// # Errors
/// See [`SteerError`]; with [`Steer::Auto`] only that the notes cannot be kept.
pub fn apply(
    steer: Steer,
    interface: &Interface,
    wanted: &[(u16, u32)],
    memory: &Memory,
) -> Result<Change, SteerError> {
    let name = &interface.name;
    let wanted = if steer == Steer::Off || interface.rx_queues <= 1 { &[] } else { wanted };
    let own = memory.read().map_err(|source| unkept(name, memory, source))?;
    if wanted.is_empty() && own.is_empty() {
        return Ok(Change::default());
    }
    let flows = FlowRules::open(name).map_err(|source| unsupported(name, source))?;
    match change(name, &flows, &own, wanted, memory) {
        Err(error) if steer == Steer::Auto && !matches!(error, SteerError::Memory { .. }) => {
            tracing::warn!("{error}; going on without");
            Ok(keep_right(name, &flows, &own, wanted, memory))
        }
        outcome => outcome,
    }
}

/// Takes out own rules that are not wanted any more, where the others cannot be had.
fn keep_right(
    ifname: &str,
    flows: &impl Rules,
    own: &[PortRule],
    wanted: &[(u16, u32)],
    memory: &Memory,
) -> Change {
    let right: Vec<_> =
        own.iter().map(|rule| (rule.port, rule.queue)).filter(|rule| wanted.contains(rule)).collect();
    if right.len() == own.len() {
        return Change::default();
    }
    change(ifname, flows, own, &right, memory).unwrap_or_else(|error| {
        tracing::warn!("{error}; see `ethtool -n {ifname}`");
        Change::default()
    })
}

/// Undoes a change. What cannot be undone is told as a warning: there is an error already that led here.
pub fn roll_back(change: Change, interface: &Interface, memory: &Memory) {
    let name = &interface.name;
    let undone = FlowRules::open(name).map_err(|source| unsupported(name, source)).and_then(|flows| {
        let own = memory.read().map_err(|source| unkept(name, memory, source))?;
        undo(name, &flows, own, change, memory)
    });
    if let Err(error) = undone {
        tracing::warn!("{error}; see `ethtool -n {name}`");
    }
}

/// Takes out what was put into an interface of a network namespace, as far as it is still there. Rules that others put in
/// stay.
///
/// # Errors
/// The first rule that stays; all are as they were then. An interface that is gone had its rules with it.
pub fn remove(namespace: u64, ifname: &str, memory: &Memory) -> Result<(), SteerError> {
    let own = memory.read().map_err(|source| unkept(ifname, memory, source))?;
    if own.is_empty() {
        return Ok(());
    }
    let removed = netns::inside(namespace, || {
        if Interface::by_name(ifname).is_err() {
            return Ok(());
        }
        let flows = FlowRules::open(ifname).map_err(|source| unsupported(ifname, source))?;
        change(ifname, &flows, &own, &[], memory).map(drop)
    });
    removed.map_err(|source| SteerError::Namespace { ifname: ifname.to_owned(), source })?
}

/// A NIC's table of rules: the kernel's, or a test's.
trait Rules {
    fn rules(&self) -> io::Result<Vec<PortRule>>;
    fn insert(&self, port: u16, queue: u32) -> io::Result<PortRule>;
    fn delete(&self, location: u32) -> io::Result<()>;
}

impl Rules for FlowRules {
    fn rules(&self) -> io::Result<Vec<PortRule>> {
        FlowRules::rules(self)
    }

    fn insert(&self, port: u16, queue: u32) -> io::Result<PortRule> {
        FlowRules::insert(self, port, queue)
    }

    fn delete(&self, location: u32) -> io::Result<()> {
        FlowRules::delete(self, location)
    }
}

/// Takes out own rules that are not wanted, and puts in those that are missing: in this order, since many drivers take
/// no second rule for the same packets.
fn change(
    ifname: &str,
    flows: &impl Rules,
    own: &[PortRule],
    wanted: &[(u16, u32)],
    memory: &Memory,
) -> Result<Change, SteerError> {
    let found = match flows.rules() {
        // A driver that has no rules, or none since its filters were switched off, has none of ours.
        Err(error) if wanted.is_empty() && error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => {
            Vec::new()
        }
        found => found.map_err(|source| unsupported(ifname, source))?,
    };
    // Own rules that somebody took out, or that went when the driver started anew, are forgotten.
    let (own, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|rule| own.contains(rule));
    for (port, queue) in wanted {
        if let Some(rule) = others.iter().find(|rule| rule.port == *port && rule.queue != *queue) {
            return Err(SteerError::Taken { ifname: ifname.to_owned(), rule: *rule, queue: *queue });
        }
    }
    let is_wanted = |rule: &PortRule| wanted.contains(&(rule.port, rule.queue));
    let (kept, obsolete): (Vec<_>, Vec<_>) = own.into_iter().partition(is_wanted);
    let missing =
        wanted.iter().filter(|(port, _)| !kept.iter().chain(&others).any(|rule| rule.port == *port));
    let mut change = Change::default();
    let mut outcome = take_out(ifname, flows, &obsolete, &mut change);
    if outcome.is_ok() {
        outcome = put_in(ifname, flows, missing.copied(), &mut change);
    }
    let stuck = obsolete.iter().filter(|rule| !change.deleted.contains(rule));
    let now: Vec<_> = kept.iter().chain(stuck).chain(&change.inserted).copied().collect();
    match outcome.and_then(|()| memory.write(&now).map_err(|source| unkept(ifname, memory, source))) {
        Ok(()) => Ok(change),
        Err(error) => {
            if let Err(stuck) = undo(ifname, flows, now, change, memory) {
                tracing::warn!("{stuck}; see `ethtool -n {ifname}`");
            }
            Err(error)
        }
    }
}

fn take_out(
    ifname: &str,
    flows: &impl Rules,
    rules: &[PortRule],
    change: &mut Change,
) -> Result<(), SteerError> {
    for rule in rules {
        let PortRule { location, port, queue } = *rule;
        flows.delete(location).map_err(|source| SteerError::Delete {
            ifname: ifname.to_owned(),
            location,
            source,
        })?;
        tracing::info!("removed rule {location} of {ifname}: UDP port {port} to queue {queue}");
        change.deleted.push(*rule);
    }
    Ok(())
}

fn put_in(
    ifname: &str,
    flows: &impl Rules,
    wanted: impl Iterator<Item = (u16, u32)>,
    change: &mut Change,
) -> Result<(), SteerError> {
    for (port, queue) in wanted {
        let rule = flows.insert(port, queue).map_err(|source| SteerError::Insert {
            ifname: ifname.to_owned(),
            port,
            queue,
            advice: advice(ifname, &source),
            source,
        })?;
        change.inserted.push(rule);
    }
    Ok(())
}

/// Takes out what a change put in, puts back what it took out, and notes what is there then of the rules in `own`.
fn undo(
    ifname: &str,
    flows: &impl Rules,
    own: Vec<PortRule>,
    change: Change,
    memory: &Memory,
) -> Result<(), SteerError> {
    let mut back = Change::default();
    let out = take_out(ifname, flows, &change.inserted, &mut back);
    let put_back =
        put_in(ifname, flows, change.deleted.iter().map(|rule| (rule.port, rule.queue)), &mut back);
    let mut now = own;
    now.retain(|rule| !back.deleted.contains(rule));
    now.extend(&back.inserted);
    let noted = memory.write(&now).map_err(|source| unkept(ifname, memory, source));
    out.and(put_back).and(noted)
}

fn unsupported(ifname: &str, source: io::Error) -> SteerError {
    SteerError::Unsupported { ifname: ifname.to_owned(), advice: advice(ifname, &source), source }
}

fn unkept(ifname: &str, memory: &Memory, source: io::Error) -> SteerError {
    SteerError::Memory { ifname: ifname.to_owned(), path: memory.path().to_owned(), source }
}

/// What a refusal means, or what to do about it.
pub(crate) fn advice(ifname: &str, refusal: &io::Error) -> String {
    if interface::filters(ifname).is_ok_and(|filters| filters == interface::Filters::Off) {
        return format!("its filters are switched off: ethtool -K {ifname} ntuple on, then attach again");
    }
    match refusal.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EOPNOTSUPP) => "its driver has none".to_owned(),
        Some(Errno::EPERM) => "it takes CAP_NET_ADMIN".to_owned(),
        Some(Errno::ENOSPC) => {
            format!("its table is full: ethtool -n {ifname} shows what is in it")
        }
        _ => format!("many drivers take only rules of one kind at a time, see ethtool -n {ifname}"),
    }
}

#[cfg(test)]
mod tests;

//! Reasons why the NIC does not steer the shards' packets.

use std::{io, path::PathBuf};

use nix::errno::Errno;
use sumac_loader::interface::{self, Filters};
use thiserror::Error;

use super::{flow_rules::PortRule, records::RuleRecords};

/// Rules that were not changed as asked. The interface's rules are as they were before.
#[derive(Debug, Error)]
pub enum SteerError {
    /// The driver does not list its rules, mostly because it has none.
    #[error("{ifname} takes no rules that steer packets to queues: {advice} ({source})")]
    Unsupported { ifname: String, source: io::Error, advice: String },
    #[error(
        "rule {} of {ifname}, which is not Sumac's, sends UDP port {} to queue {} and not {queue}; remove \
        it: ethtool -N {ifname} delete {}", rule.location, rule.port, rule.queue, rule.location
    )]
    Taken { ifname: String, rule: PortRule, queue: u32 },
    #[error(
        "{ifname} did not take the rule that sends UDP port {port} to queue {queue}: {advice} ({source})"
    )]
    Insert { ifname: String, port: u16, queue: u32, source: io::Error, advice: String },
    #[error(
        "could not remove rule {location} of {ifname}: {source}; by hand: ethtool -N {ifname} delete \
        {location}"
    )]
    Delete { ifname: String, location: u32, source: io::Error },
    #[error("could not enter the network namespace of {ifname}: {source}; see `ethtool -n {ifname}` there")]
    Namespace { ifname: String, source: io::Error },
    #[error("could not write or read the records of {ifname}'s rules at {path}: {source}")]
    Records { ifname: String, path: PathBuf, source: io::Error },
}

impl SteerError {
    pub(super) fn records(ifname: &str, records: &RuleRecords, source: io::Error) -> SteerError {
        SteerError::Records { ifname: ifname.to_owned(), path: records.directory().to_owned(), source }
    }
}

pub(super) fn unsupported(ifname: &str, source: io::Error) -> SteerError {
    SteerError::Unsupported { ifname: ifname.to_owned(), advice: advice(ifname, &source), source }
}

pub(super) fn advice(ifname: &str, refusal: &io::Error) -> String {
    if interface::filters(ifname).is_ok_and(|filters| filters == Filters::Off) {
        return format!("its filters are switched off: ethtool -K {ifname} ntuple on, then attach again");
    }
    match refusal.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EOPNOTSUPP) => "its driver has none".to_owned(),
        Some(Errno::EPERM) => "it takes CAP_NET_ADMIN".to_owned(),
        Some(Errno::ENOSPC) => format!("its table is full: ethtool -n {ifname} lists it"),
        _ => format!("many drivers take only rules of one kind at a time, see ethtool -n {ifname}"),
    }
}

//! Changes to the rules of one interface, and their rollback.

use nix::errno::Errno;

use super::{
    error::{SteerError, advice, unsupported},
    flow_rules::{FlowRules, PortRule},
    records::{RuleRecords, has},
};

/// A change to an interface's rules, kept for its rollback.
#[derive(Debug, Default)]
#[must_use = "it is needed to undo the change"]
pub struct Change {
    pub(super) inserted: Vec<PortRule>,
    pub(super) deleted: Vec<PortRule>,
}

pub(super) struct RuleTable<'a> {
    pub(super) ifname: &'a str,
    pub(super) rules: &'a FlowRules,
    pub(super) records: &'a RuleRecords,
}

impl RuleTable<'_> {
    /// Deletes own rules that are not wanted, and inserts those that are missing: in this order, since many
    /// drivers take no second rule for the same packets.
    pub(super) fn change(&self, own: &[PortRule], wanted: &[(u16, u32)]) -> Result<Change, SteerError> {
        let found = match self.rules.rules() {
            // A driver without rules, or with its filters switched off, has none of ours.
            Err(error) if wanted.is_empty() && error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => {
                Vec::new()
            }
            found => found.map_err(|source| unsupported(self.ifname, source))?,
        };
        // Recorded rules that others deleted, or that a restart of the driver did, are own no more.
        let (own, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|rule| has(own, rule));
        // Also that of an insertion that did not end, before another one is announced.
        self.record(&own)?;
        for (port, queue) in wanted {
            if let Some(rule) = others.iter().find(|rule| rule.port == *port && rule.queue != *queue) {
                let ifname = self.ifname.to_owned();
                return Err(SteerError::Taken { ifname, rule: *rule, queue: *queue });
            }
        }
        let is_wanted = |rule: &PortRule| wanted.contains(&(rule.port, rule.queue));
        let (kept, obsolete): (Vec<_>, Vec<_>) = own.into_iter().partition(is_wanted);
        let missing =
            wanted.iter().filter(|(port, _)| !kept.iter().chain(&others).any(|rule| rule.port == *port));
        let mut change = Change::default();
        let mut outcome = self.delete(&obsolete, &mut change);
        if outcome.is_ok() {
            outcome = self.insert(missing.copied(), &mut change);
        }
        let stuck = obsolete.iter().filter(|rule| !change.deleted.contains(rule));
        let now: Vec<_> = kept.iter().chain(stuck).chain(&change.inserted).copied().collect();
        match outcome.and_then(|()| self.record(&now)) {
            Ok(()) => Ok(change),
            Err(error) => {
                if let Err(stuck) = self.undo(now, change) {
                    tracing::warn!("{stuck}; see `ethtool -n {}`", self.ifname);
                }
                Err(error)
            }
        }
    }

    /// Deletes own rules that are not wanted, where the wanted ones were refused.
    pub(super) fn delete_wrong(&self, own: &[PortRule], wanted: &[(u16, u32)]) -> Change {
        let right: Vec<_> =
            own.iter().map(|rule| (rule.port, rule.queue)).filter(|rule| wanted.contains(rule)).collect();
        if right.len() == own.len() {
            return Change::default();
        }
        self.change(own, &right).unwrap_or_else(|error| {
            tracing::warn!("{error}; see `ethtool -n {}`", self.ifname);
            Change::default()
        })
    }

    /// Deletes the rules that a change inserted, inserts those that it deleted, and updates the records of
    /// `own` rules.
    pub(super) fn undo(&self, own: Vec<PortRule>, change: Change) -> Result<(), SteerError> {
        let mut back = Change::default();
        let deleted = self.delete(&change.inserted, &mut back);
        let former = change.deleted.iter().map(|rule| (rule.port, rule.queue));
        let inserted = self.insert(former, &mut back);
        let mut now = own;
        now.retain(|rule| !back.deleted.contains(rule));
        now.extend(&back.inserted);
        deleted.and(inserted).and(self.record(&now))
    }

    fn delete(&self, rules: &[PortRule], change: &mut Change) -> Result<(), SteerError> {
        let ifname = self.ifname;
        for rule in rules {
            let PortRule { location, port, queue } = *rule;
            self.rules.delete(location).map_err(|source| SteerError::Delete {
                ifname: ifname.to_owned(),
                location,
                source,
            })?;
            tracing::info!("removed rule {location} of {ifname}: UDP port {port} to queue {queue}");
            change.deleted.push(*rule);
        }
        Ok(())
    }

    fn insert(
        &self,
        wanted: impl Iterator<Item = (u16, u32)>,
        change: &mut Change,
    ) -> Result<(), SteerError> {
        let failed = |source| SteerError::records(self.ifname, self.records, source);
        for (port, queue) in wanted {
            // Before the rule: a process that is killed must not leave one that nobody knows.
            self.records.announce(port, queue).map_err(failed)?;
            let rule = self.rules.insert(port, queue).map_err(|source| SteerError::Insert {
                ifname: self.ifname.to_owned(),
                port,
                queue,
                advice: advice(self.ifname, &source),
                source,
            })?;
            change.inserted.push(rule);
            self.records.add(&rule).map_err(failed)?;
        }
        Ok(())
    }

    fn record(&self, rules: &[PortRule]) -> Result<(), SteerError> {
        let written = self.records.write(rules);
        written.map_err(|source| SteerError::records(self.ifname, self.records, source))
    }
}

//! The parts of an aggregator's job numbers and slots that one host, user or secret may hold, so that none
//! takes all of them.
//!
//! Each rank of a job holds an equal part of its number and slots. A part counts for the rank's holders: its
//! host, its user, and its secret.

use std::collections::BTreeMap;

use super::{
    Coordinator,
    holder::{Holder, PARTS, parts},
    ids::RunId,
    run::{InstallState, Join, Run},
};
use crate::{
    MAX_OF_ONE_ADDRESS,
    failure::{Refusal, RefusalKind},
};

impl Run {
    /// Returns the parts of the job that count for each holder.
    pub(super) fn parts(&self) -> BTreeMap<Holder, u64> {
        parts(self.members.values().flat_map(|member| &member.holders), self.workers())
    }

    fn parts_of(&self, holder: &Holder) -> u64 {
        self.holders.iter().filter(|(of, _)| of == holder).map(|(_, parts)| parts).sum()
    }
}

impl Coordinator {
    /// Returns the part of a total that one holder may have.
    fn most_of(&self, total: u64) -> u64 {
        (total.saturating_mul(self.join_limits.share_percent) / 100).max(1)
    }

    /// Returns the part of a total that this holder may have. A user of a host leaves a part of the host's
    /// share to the others there.
    fn most_for(&self, holder: &Holder, total: u64) -> u64 {
        match holder {
            Holder::UserOf(..) => self.most_of(self.most_of(total)),
            _ => self.most_of(total),
        }
    }

    /// The jobs that the planes have, but for one.
    fn holding(&self, except: Option<RunId>) -> impl Iterator<Item = &Run> {
        let is_held =
            move |(id, run): &(&RunId, &Run)| run.install != InstallState::Absent && Some(**id) != except;
        self.runs.iter().filter(is_held).map(|(_, run)| run)
    }

    fn jobs_of(&self, holder: &Holder, except: Option<RunId>) -> String {
        let held = self.holding(except).filter(|run| run.parts_of(holder) > 0);
        listed(&held.map(|run| run.name.clone()).collect::<Vec<_>>())
    }

    /// Returns the hosts that hold the most job numbers, for people.
    pub(super) fn holders_of_numbers(&self) -> String {
        let mut hosts: BTreeMap<&Holder, u64> = BTreeMap::new();
        let held = self.holding(None).flat_map(|run| &run.holders);
        held.filter(|(holder, _)| matches!(holder, Holder::Host(_)))
            .for_each(|(holder, parts)| *hosts.entry(holder).or_default() += parts);
        let mut hosts: Vec<_> = hosts.into_iter().collect();
        hosts.sort_by_key(|(_, parts)| std::cmp::Reverse(*parts));
        let named = hosts.iter().take(NAMED);
        let named: Vec<_> =
            named.map(|(holder, parts)| format!("{holder} has {}", parts.div_ceil(PARTS))).collect();
        named.join(", ")
    }

    /// Refuses a worker whose host has as many workers as one host may have, or whose user has as many on
    /// its host as one user may have: others of the host have the connections that are left.
    pub(super) fn check_places(&self, request: &Join) -> Result<(), Refusal> {
        let members = || self.runs.values().flat_map(|run| run.members.values());
        let find = |is_it: fn(&&Holder) -> bool| request.holders.iter().find(is_it);
        if let Some(host) = find(|holder| matches!(holder, Holder::Host(_)))
            // Connections of the same rack, or of none.
            && members().filter(|it| it.rack == request.rack && it.holders.contains(host)).count()
                >= MAX_OF_ONE_ADDRESS
        {
            return Err(Refusal::too_many_of_host(&host.to_string(), MAX_OF_ONE_ADDRESS));
        }
        let Some(user) = find(|holder| matches!(holder, Holder::UserOf(..))) else { return Ok(()) };
        let held = members().filter(|member| member.holders.contains(user)).count() as u64;
        let most = self.most_of(MAX_OF_ONE_ADDRESS as u64);
        if held < most {
            return Ok(());
        }
        Err(Refusal::over_share(
            RefusalKind::TooManyJobs,
            format!("{user} is a worker of {held} jobs"),
            format!("{most} of the {MAX_OF_ONE_ADDRESS} connections of a host"),
        ))
    }

    /// Refuses a run that would give one of its holders more than its share of job numbers.
    pub(super) fn check_numbers(
        &self,
        parts: &BTreeMap<Holder, u64>,
        except: Option<RunId>,
    ) -> Result<(), Refusal> {
        let total = u64::from(self.most_jobs());
        let held = |holder: &Holder| -> u64 { self.holding(except).map(|run| run.parts_of(holder)).sum() };
        let beyond =
            parts.iter().find(|(holder, parts)| held(holder) + *parts > self.most_for(holder, total) * PARTS);
        let Some((holder, _)) = beyond else { return Ok(()) };
        let most = self.most_for(holder, total);
        let what = format!("{holder} holds {}", self.jobs_of(holder, except));
        Err(Refusal::over_share(RefusalKind::TooManyJobs, what, format!("{most} of {total} job numbers")))
    }

    /// Returns the most slots that a run may take without giving one of its holders more than its share, and
    /// that holder.
    pub(super) fn slots_left(&self, parts: &BTreeMap<Holder, u64>) -> Option<(u32, Holder)> {
        let total = self.pool.total(u32::MAX).into();
        let held = |holder: &Holder| -> u64 {
            let slots = |run: &Run| run.range.map_or(0, |range| u64::from(range.slots));
            self.holding(None).map(|run| run.parts_of(holder) * slots(run)).sum()
        };
        let left = |(holder, parts): (&Holder, &u64)| {
            let left = (self.most_for(holder, total) * PARTS).saturating_sub(held(holder)) / (*parts).max(1);
            (u32::try_from(left).unwrap_or(u32::MAX), holder.clone())
        };
        parts.iter().map(left).min_by_key(|(left, _)| *left)
    }

    pub(super) fn over_slots(&self, wanted: u32, holder: &Holder) -> Refusal {
        let total = self.pool.total(u32::MAX);
        let most = self.most_for(holder, total.into());
        let what = format!("{wanted} slots are too many: {holder} holds {}", self.jobs_of(holder, None));
        Refusal::over_share(RefusalKind::PoolFull, what, format!("{most} of {total} slots"))
    }
}

/// The jobs of a message: names beyond the first few are counted.
const NAMED: usize = 4;

/// Lists names, of many the first few.
pub(super) fn listed(names: &[String]) -> String {
    let first: Vec<_> = names.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    match names.len() {
        0 => "no job".into(),
        len if len > NAMED => format!("{} and {} more", first.join(", "), len - NAMED),
        _ => first.join(", "),
    }
}

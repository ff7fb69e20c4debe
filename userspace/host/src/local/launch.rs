//! Operations of ranks of one host: when the last rank has submitted one, the data of all of them are summed,
//! or copied from one to the other, or contributed to the sum of all hosts.

use std::ops::Range;

use sumac_api::Failure;
use sumac_control::{JobFailure, Outcome as LeaveOutcome};
use sumac_transport::{Arithmetic, LocalFault, LocalPart, LocalSum, OpError};

use super::rounds::{Common, Round, Submitted};
use crate::explain::{self, bounded};
use crate::finished::Outcome;
use crate::fragment::{ElementRanges, arithmetic};
use crate::fragment_end::FragmentEnd;
use crate::host::Host;
use crate::operation::{FragmentRecord, FragmentTimes, Operation, OperationPhase, Work};
use crate::region::SharedResult;
use crate::transfer::Transfer;
use crate::{FragmentKey, JobId, Nanos, OperationKey, Output, RankSum, Resources};

impl Host {
    /// Matches a rank's collective operation with those of the others.
    pub(crate) fn place_locally(
        &mut self,
        now: Nanos,
        key: OperationKey,
        (id, result): (JobId, Option<SharedResult>),
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(job) = self.state.jobs.get(&id) else { return };
        let (name, rank) = (job.name.clone(), job.rank);
        let Some(local) = self.state.local_jobs.get_mut(&name).filter(|local| !local.is_over) else { return };
        let Some(operation) = self.state.operations.get(&key) else { return };
        let Work::Collective { descriptor, priority, importance, .. } = &operation.work else { return };
        let ranks = u16::try_from(local.ranks().len()).unwrap_or(u16::MAX);
        let (queue, descriptor) = (job.queue(descriptor), descriptor.clone());
        let common = Common { descriptor, priority: *priority, importance: *importance, result };
        match local.rounds.add(now, ranks, queue, (rank, key), &common) {
            Submitted::Waits => {}
            Submitted::Complete(round) if local.spec.is_local() => {
                self.launch_locally(&round, resources, out);
            }
            Submitted::Complete(round) => self.launch_as_one(&round, resources, out),
            Submitted::Differs { rank: other, texts: [theirs, own] } => {
                self.differ(&name, [(other, theirs), (rank, own)], out);
            }
        }
    }

    /// Launches an operation of all ranks of this host as that of their leader.
    fn launch_as_one(&mut self, round: &Round, resources: &mut dyn Resources, out: &mut Vec<Output>) {
        let mut keys = round.submitted.values().copied();
        let Some(first) = keys.next() else { return };
        if let Some(leader) = self.state.operations.get_mut(&first) {
            leader.followers = keys.collect();
            let job = leader.job;
            self.announce_or_launch(first, job, resources, out);
        }
    }

    /// Numbers the operations of this host's other ranks that end with a leader's. Returns the sum of each
    /// fragment; none of a barrier, which has no values.
    pub(crate) fn begin_followers(&mut self, key: OperationKey) -> Vec<Option<RankSum>> {
        let Some(leader) = self.state.operations.get(&key) else { return Vec::new() };
        let number = self.state.jobs.get(&leader.job).and_then(|job| job.running.as_ref());
        let Some(number) = number.map(|running| running.next) else { return Vec::new() };
        let has_values = matches!(&leader.work, Work::Collective { descriptor, .. } if descriptor.count > 0);
        let fragments = u16::try_from(leader.fragments.len()).unwrap_or(u16::MAX);
        let sum = |fragment| self.rank_sum(FragmentKey { operation: key, fragment });
        let sums = (0..fragments).map(|fragment| sum(fragment).filter(|_| has_values)).collect();
        for follower in leader.followers.clone() {
            let Some(operation) = self.state.operations.get_mut(&follower) else { continue };
            operation.phase = OperationPhase::InFlight;
            if let Work::Collective { id, .. } = &mut operation.work {
                *id = Some(number);
            }
            let job = operation.job;
            if let Some(running) = self.running_mut(job) {
                running.next = number.next();
            }
        }
        sums
    }

    /// The sum of a fragment of an operation over the ranks of this host that take part in it, if there are
    /// several.
    #[must_use]
    pub fn rank_sum(&self, key: FragmentKey) -> Option<RankSum> {
        let leader = self.state.operations.get(&key.operation)?;
        if leader.followers.is_empty() { None } else { self.sum_of(key) }
    }

    fn sum_of(&self, FragmentKey { operation: first, fragment }: FragmentKey) -> Option<RankSum> {
        let leader = self.state.operations.get(&first)?;
        let (dtype, arithmetic) = match &leader.work {
            Work::Collective { descriptor, .. } => (descriptor.dtype, arithmetic(descriptor)),
            Work::Transfer(transfer) => (transfer.dtype, Arithmetic::Bits),
        };
        let running = self.state.jobs.get(&leader.job).and_then(|job| job.running.as_ref());
        let not_finite = running.map_or_else(Default::default, |running| running.terms.not_finite);
        let keys: Vec<OperationKey> = [first].into_iter().chain(leader.followers.iter().copied()).collect();
        let at = usize::from(fragment);
        let record = |key: &OperationKey| self.state.operations.get(key)?.fragments.get(at);
        let records = keys.iter().map(record).collect::<Option<Vec<&FragmentRecord>>>()?;
        let part = |record: &FragmentRecord| LocalPart {
            gives: sizes(&record.ranges.input),
            takes: sizes(&record.ranges.output),
            buffer: Box::new(Vec::new()),
        };
        let elements = sizes(&leader.fragments.get(at)?.fragment.elements);
        let sum = LocalSum {
            dtype,
            arithmetic,
            not_finite,
            count: elements.len(),
            base: elements.start,
            parts: records.into_iter().map(part).collect(),
        };
        let fragment = |key: &OperationKey| FragmentKey { operation: *key, fragment };
        Some(RankSum { keys: keys.iter().map(fragment).collect(), sum })
    }

    /// Ends a job whose ranks do not do the same. Returns its failure.
    pub(super) fn differ(
        &mut self,
        name: &str,
        mut both: [(u16, String); 2],
        out: &mut Vec<Output>,
    ) -> Failure {
        both.sort();
        let [(low, one), (high, other)] = both;
        let message =
            format!("the workers do not do the same: rank {low} has {one} where rank {high} has {other}");
        let failure = JobFailure::mismatch(&[low, high], message);
        let outcome = LeaveOutcome::Failed(failure.message.clone());
        for id in self.members(name) {
            self.end_rank(id, &failure, &outcome, out);
        }
        let order = self.state.local_jobs.get(name).and_then(|local| local.spec.order);
        explain::job_failure(&failure, order.unwrap_or_default())
    }

    fn launch_locally(&mut self, round: &Round, resources: &mut dyn Resources, out: &mut Vec<Output>) {
        let keys: Vec<OperationKey> = round.submitted.values().copied().collect();
        for key in &keys {
            let Some(operation) = self.state.operations.get_mut(key) else { return };
            let job = operation.job;
            if let Work::Collective { id, .. } = &mut operation.work
                && let Some(running) = self.state.jobs.get_mut(&job).and_then(|job| job.running.as_mut())
            {
                *id = Some(running.next);
                running.next = running.next.next();
            }
        }
        if round.common.descriptor.count == 0 {
            return keys.iter().for_each(|key| self.complete(*key, Outcome::default(), resources, out));
        }
        self.sum(&keys, out);
    }

    /// Has the values of operations summed, which end together. The first of them records the end.
    fn sum(&mut self, keys: &[OperationKey], out: &mut Vec<Output>) {
        let Some((first, followers)) = keys.split_first() else { return };
        let Some(leader) = self.state.operations.get_mut(first) else { return };
        leader.followers = followers.to_vec();
        leader.fragments_left = leader.fragments.len();
        let fragments = u16::try_from(leader.fragments.len()).unwrap_or(u16::MAX);
        for key in keys {
            if let Some(operation) = self.state.operations.get_mut(key) {
                operation.phase = OperationPhase::InFlight;
            }
        }
        let sums = (0..fragments)
            .filter_map(|fragment| self.sum_of(FragmentKey { operation: *first, fragment }))
            .map(|sum| Output::Sum(Box::new(sum)));
        out.extend(sums);
    }

    /// Returns the end of a fragment whose sum has failed, with the ranks at fault. In a job of one host it
    /// is the same for all.
    pub(crate) fn local_fault(&self, leader: &Operation, fault: &LocalFault) -> FragmentEnd {
        let end = explain::fragment_end(&fault.error, &leader.tensor());
        let (FragmentEnd::OwnFault(failure) | FragmentEnd::SumFault(failure)) = end else { return end };
        let rank = |operation: &Operation| self.state.jobs.get(&operation.job).map(|job| job.rank);
        let at_fault = fault.part.and_then(|part| match part.checked_sub(1) {
            None => Some(leader),
            Some(at) => self.state.operations.get(leader.followers.get(at)?),
        });
        let rank_at_fault = at_fault.and_then(rank);
        if self.state.jobs.get(&leader.job).is_some_and(|job| !job.is_local()) {
            let followers = leader.followers.iter().filter_map(|key| self.state.operations.get(key));
            let all = || [leader].into_iter().chain(followers).filter_map(rank).collect();
            let ranks: Vec<u16> = rank_at_fault.map_or_else(all, |rank| vec![rank]);
            return FragmentEnd::OwnFault(failure.ranks(ranks));
        }
        let Some(rank) = rank_at_fault else { return FragmentEnd::SumFault(failure) };
        let message = bounded(format!("rank {rank}: {}", failure.message));
        FragmentEnd::SumFault(Failure { message: message.into(), ..failure }.ranks([rank]))
    }

    /// Matches a rank's send or receive with the other end.
    pub(crate) fn post_locally(
        &mut self,
        key: OperationKey,
        id: JobId,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(job) = self.state.jobs.get(&id) else { return };
        let local = self.state.local_jobs.get_mut(&job.name).filter(|local| !local.is_over);
        let Some(local) = local else { return };
        let transfer = |key: &OperationKey| self.state.operations.get(key)?.transfer();
        let Some(own) = transfer(&key) else { return };
        let pair = if own.sends() { (job.rank, own.peer) } else { (own.peer, job.rank) };
        let unmatched = local.transfers.entry(pair).or_default();
        let is_other_end =
            |key: &OperationKey| transfer(key).is_some_and(|other| other.sends() != own.sends());
        let other = if unmatched.front().is_some_and(is_other_end) { unmatched.pop_front() } else { None };
        let Some(other) = other else { return unmatched.push_back(key) };
        if unmatched.is_empty() {
            local.transfers.remove(&pair);
        }
        let Some(peer) = transfer(&other) else { return };
        let form = |transfer: &Transfer| format!("{}[{}]", transfer.dtype.name(), transfer.count);
        let (ours, theirs) = (form(own), form(peer));
        if ours != theirs {
            self.disagree(key, ours.clone(), theirs.clone(), resources, out);
            return self.disagree(other, theirs, ours, resources, out);
        }
        let keys = if own.sends() { [key, other] } else { [other, key] };
        self.sum(&keys, out);
    }

    fn disagree(
        &mut self,
        key: OperationKey,
        ours: String,
        theirs: String,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(operation) = self.state.operations.get_mut(&key) else { return };
        let Some(rank) = operation.transfer().map(|transfer| transfer.peer) else { return };
        let end = explain::fragment_end(&OpError::Disagrees { rank, ours, theirs }, "");
        operation.fragment_ended(FragmentTimes::default(), end);
        self.transfer_ended(key, None, resources, out);
    }
}

/// The values that any of a worker's ranks contributes, and those that any takes.
pub(crate) fn hull(sum: &LocalSum) -> ElementRanges {
    let hull = |range: fn(&LocalPart) -> &Range<usize>| {
        let ranges = sum.parts.iter().map(range).filter(|range| !range.is_empty());
        let hull = ranges.cloned().reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        hull.start as u64..hull.end as u64
    };
    ElementRanges { input: hull(|part| &part.gives), output: hull(|part| &part.takes) }
}

fn sizes(range: &Range<u64>) -> Range<usize> {
    let size = |elements: u64| usize::try_from(elements).unwrap_or(usize::MAX);
    size(range.start)..size(range.end)
}

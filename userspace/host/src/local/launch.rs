//! Operations of a job of this host: when the last rank has submitted one, the data of all of them are
//! summed, or copied from one to the other.

use std::ops::Range;

use sumac_api::Failure;
use sumac_control::JobFailure;
use sumac_job::{DType, OperationOrder};
use sumac_transport::{Arithmetic, LocalFault, LocalPart, LocalSum, OpError};

use super::rounds::{Round, Submitted};
use crate::explain::{self, bounded};
use crate::finished::Outcome;
use crate::fragment::arithmetic;
use crate::fragment_end::FragmentEnd;
use crate::host::Host;
use crate::operation::{FragmentRecord, FragmentTimes, Operation, OperationPhase, Work};
use crate::transfer::Transfer;
use crate::{FragmentKey, JobId, Nanos, OperationKey, Output, Resources};

impl Host {
    /// Matches a rank's collective operation with those of the others.
    pub(crate) fn place_locally(
        &mut self,
        now: Nanos,
        key: OperationKey,
        id: JobId,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(job) = self.state.jobs.get(&id) else { return };
        let (name, rank) = (job.name.clone(), job.rank);
        let Some(local) = self.state.local_jobs.get_mut(&name).filter(|local| !local.is_over) else { return };
        let Some(operation) = self.state.operations.get(&key) else { return };
        let Work::Collective { descriptor, .. } = &operation.work else { return };
        let queue = match job.order {
            OperationOrder::Submission => "",
            OperationOrder::Name => descriptor.name.as_deref().unwrap_or_default(),
        };
        match local.rounds.add(now, local.spec.world, queue, (rank, key), descriptor) {
            Submitted::Waits => {}
            Submitted::Complete(round) => self.launch_locally(&round, resources, out),
            Submitted::Differs { rank: other, descriptor: theirs } => {
                let both = [(other, theirs.to_string()), (rank, descriptor.to_string())];
                self.differ(&name, both, out);
            }
        }
    }

    /// Ends a job whose ranks do not do the same.
    fn differ(&mut self, name: &str, mut both: [(u16, String); 2], out: &mut Vec<Output>) {
        both.sort();
        let [(low, one), (high, other)] = both;
        let message =
            format!("the workers do not do the same: rank {low} has {one} where rank {high} has {other}");
        let failure = JobFailure::mismatch(&[low, high], message);
        for id in self.members(name) {
            self.membership_failed(id, &failure, out);
        }
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
        if round.descriptor.count == 0 {
            return keys.iter().for_each(|key| self.complete(*key, Outcome::default(), resources, out));
        }
        self.sum(&keys, round.descriptor.dtype, arithmetic(&round.descriptor), out);
    }

    /// Has the values of operations summed, which end together. The first of them records the end.
    fn sum(&mut self, keys: &[OperationKey], dtype: DType, arithmetic: Arithmetic, out: &mut Vec<Output>) {
        let Some((first, followers)) = keys.split_first() else { return };
        let Some(leader) = self.state.operations.get_mut(first) else { return };
        let (fragments, job) = (leader.fragments.len(), leader.job);
        leader.followers = followers.to_vec();
        leader.fragments_left = fragments;
        for key in keys {
            if let Some(operation) = self.state.operations.get_mut(key) {
                operation.phase = OperationPhase::InFlight;
            }
        }
        let running = self.state.jobs.get(&job).and_then(|job| job.running.as_ref());
        let not_finite = running.map_or_else(Default::default, |running| running.terms.not_finite);
        let size = |elements: u64| usize::try_from(elements).unwrap_or(usize::MAX);
        let sizes = |range: &Range<u64>| size(range.start)..size(range.end);
        for (number, at) in (0u16..).zip(0..fragments) {
            let records = keys.iter().filter_map(|key| self.state.operations.get(key)?.fragments.get(at));
            let part = |record: &FragmentRecord| LocalPart {
                gives: sizes(&record.ranges.input),
                takes: sizes(&record.ranges.output),
                buffer: Box::new(Vec::new()),
            };
            let elements = records.clone().next().map_or(0..0, |record| sizes(&record.fragment.elements));
            let sum = LocalSum {
                dtype,
                arithmetic,
                not_finite,
                count: elements.len(),
                base: elements.start,
                parts: records.map(part).collect(),
            };
            let fragment = |key: &OperationKey| FragmentKey { operation: *key, fragment: number };
            out.push(Output::Sum { keys: keys.iter().map(fragment).collect(), sum: Box::new(sum) });
        }
    }

    /// Returns the end of a fragment whose sum has failed: the same for all ranks, with the rank at fault.
    pub(crate) fn local_fault(&self, leader: &Operation, fault: &LocalFault) -> FragmentEnd {
        let end = explain::fragment_end(&fault.error, &leader.tensor());
        let at_fault = fault.part.and_then(|part| match part.checked_sub(1) {
            None => Some(leader),
            Some(at) => self.state.operations.get(leader.followers.get(at)?),
        });
        let rank = at_fault.and_then(|operation| self.state.jobs.get(&operation.job)).map(|job| job.rank);
        let (FragmentEnd::OwnFault(failure), Some(rank)) = (&end, rank) else { return end };
        let message = bounded(format!("rank {rank}: {}", failure.message));
        FragmentEnd::SumFault(Failure { message: message.into(), ..failure.clone() }.ranks([rank]))
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
        let (keys, dtype) = (if own.sends() { [key, other] } else { [other, key] }, own.dtype);
        self.sum(&keys, dtype, Arithmetic::Bits, out);
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

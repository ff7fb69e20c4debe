//! Operations of a job of this host: when the last rank has submitted one, the data of all of them are
//! summed, or copied from one to the other.

use std::ops::Range;

use sumac_api::{Code, Failure};
use sumac_control::JobFailure;
use sumac_job::{OperationDescriptor, OperationOrder};
use sumac_transport::{Arithmetic, LocalFault, LocalPart, LocalSum};

use super::rounds::{Round, Submitted};
use crate::ends::fragment_end;
use crate::explain::bounded;
use crate::finished::Outcome;
use crate::fragment::arithmetic;
use crate::fragment_end::FragmentEnd;
use crate::host::Host;
use crate::operation::{FragmentOutcome, FragmentRecord, Operation, OperationPhase, Work};
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
        self.sum(&keys, &round.descriptor, arithmetic(&round.descriptor), out);
    }

    /// Has the values of operations summed, which end together. The first of them records the end.
    fn sum(
        &mut self,
        keys: &[OperationKey],
        descriptor: &OperationDescriptor,
        arithmetic: Arithmetic,
        out: &mut Vec<Output>,
    ) {
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
                dtype: descriptor.dtype,
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
        let end = fragment_end(leader, FragmentOutcome::LocalFault(fault.clone()));
        let (FragmentEnd::OwnFault(failure), Some(part)) = (&end, fault.part) else { return end };
        let job = match part.checked_sub(1) {
            None => Some(leader.job),
            Some(at) => {
                leader.followers.get(at).and_then(|key| self.state.operations.get(key)).map(|own| own.job)
            }
        };
        let Some(rank) = job.and_then(|job| self.state.jobs.get(&job)).map(|job| job.rank) else {
            return end;
        };
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
        let Some(Work::Transfer(own)) = self.state.operations.get(&key).map(|operation| &operation.work)
        else {
            return;
        };
        let pair = if own.sends() { (job.rank, own.peer) } else { (own.peer, job.rank) };
        let unmatched = local.transfers.entry(pair).or_default();
        let queues = (&mut unmatched.sends, &mut unmatched.receives);
        let (own_queue, others) = if own.sends() { queues } else { (queues.1, queues.0) };
        let Some(other) = others.pop_front() else { return own_queue.push_back(key) };
        if others.is_empty() {
            local.transfers.remove(&pair);
        }
        let Some(Work::Transfer(peer)) = self.state.operations.get(&other).map(|operation| &operation.work)
        else {
            return;
        };
        let form = |transfer: &Transfer| format!("{}[{}]", transfer.dtype.name(), transfer.count);
        let (ours, theirs) = (form(own), form(peer));
        if ours != theirs {
            for (key, [here, there]) in [(key, [&ours, &theirs]), (other, [&theirs, &ours])] {
                self.disagree(key, here, there, resources, out);
            }
            return;
        }
        let descriptor = own.descriptor();
        let keys = if own.sends() { [key, other] } else { [other, key] };
        self.sum(&keys, &descriptor, Arithmetic::Bits, out);
    }

    fn disagree(
        &mut self,
        key: OperationKey,
        here: &str,
        there: &str,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(operation) = self.state.operations.get(&key) else { return };
        let Work::Transfer(transfer) = &operation.work else { return };
        let rank = self.state.jobs.get(&operation.job).map_or(0, |job| job.rank);
        let message = format!(
            "{transfer}: rank {} has {there} where this worker has {here}; give both the same",
            transfer.peer
        );
        let ranks = [rank.min(transfer.peer), rank.max(transfer.peer)];
        let failure = Failure::new(Code::Mismatch, message).ranks(ranks);
        self.complete(key, Outcome { error: Some(failure), ..Outcome::default() }, resources, out);
    }
}

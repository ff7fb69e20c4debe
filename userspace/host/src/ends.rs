//! The ends of operations: from the data path's fragments to the messages of their clients.

use sumac_api::{Event, Failure, Outbound};
use sumac_control::events::{Fault, Post};
use sumac_transport::OpError;

use crate::connection::LIMITS;
use crate::explain::{self, bounded};
use crate::finished::Outcome;
use crate::fragment_end::FragmentEnd;
use crate::host::Host;
use crate::membership::attributed;
use crate::operation::{EndedFragment, FragmentOutcome, Operation, OperationPhase, Work};
use crate::quotas::Quota;
use crate::transfer::loss_of;
use crate::{FragmentKey, JobId, Message, Nanos, OperationKey, Output, Resources, SECOND, Span};

/// The time to wait for the report of another worker's value.
const FAULT_TIMEOUT: Nanos = SECOND;

impl Host {
    /// Records the end of a fragment. The client is notified of the operation's outcome after the last one.
    pub fn fragment_ended(
        &mut self,
        now: Nanos,
        key: FragmentKey,
        ended: EndedFragment,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let EndedFragment { outcome, times, loss, left } = ended;
        let Some(operation) = self.state.operations.get(&key.operation) else { return };
        if !operation.is_in_flight() {
            return;
        }
        let end = self.fragment_end(operation, outcome);
        let Some(operation) = self.state.operations.get_mut(&key.operation) else { return };
        match &operation.work {
            Work::Collective { descriptor, .. } => {
                let count = descriptor.count;
                operation.add_loss(count, loss);
                operation.add_left(key.fragment, &left);
                if operation.fragment_ended(times, end) {
                    self.collective_ended(now, key.operation, resources, out);
                }
            }
            Work::Transfer(transfer) => {
                let loss = loss.map(|loss| loss_of(transfer, &loss));
                operation.fragment_ended(times, end);
                self.transfer_ended(key.operation, loss, resources, out);
            }
        }
    }

    fn collective_ended(
        &mut self,
        now: Nanos,
        key: OperationKey,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(operation) = self.state.operations.get_mut(&key) else { return };
        let Some(job) = self.state.jobs.get_mut(&operation.job) else { return };
        let (rank, id) = (job.rank, operation.job);
        let (Some(running), Some(number)) = (job.running.as_mut(), operation.id()) else { return };
        let (end, duration_ns) = operation.end();
        let timing = operation.timing(now);
        if let (true, Some(timing), Work::Collective { descriptor, .. }) =
            (self.config.has_spans, timing, &operation.work)
        {
            let descriptor = descriptor.clone();
            let span = Span { id: number, descriptor, timing, error: end.problem() };
            out.push(Output::Span { job: id, span: Box::new(span) });
        }
        if end != FragmentEnd::JobEnded {
            running.log.ended(number);
        }
        let timing = timing.filter(|_| operation.is_timed);
        let failed = |failure| Outcome { duration_ns, error: Some(failure), ..Outcome::default() };
        let outcome = match end {
            FragmentEnd::Complete => {
                let loss = operation.loss();
                let late = loss.as_ref().map_or(Vec::new(), |loss| running.late.record(loss));
                if !late.is_empty() {
                    let local = running.terms.local_world.max(1);
                    let first = late.into_iter().map(|worker| worker as u16 * local);
                    let ranks = first.flat_map(|first| first..first + local).collect();
                    let message = "always late: left out up to the loss bound".to_owned();
                    out.push(Output::Warn { job: id, message, ranks });
                }
                let missed = std::mem::take(&mut operation.missed);
                Outcome { duration_ns, error: None, missed, loss, timing }
            }
            FragmentEnd::SumFault(failure) => failed(failure),
            FragmentEnd::OwnFault(failure) => {
                let mut failure = match (failure.ranks.is_empty(), operation.followers.is_empty()) {
                    (false, _) => failure,
                    (true, true) => failure.ranks([rank]),
                    // The engine has the sum alone.
                    (true, false) => {
                        let ranks: Vec<u16> = (rank..=rank + operation.followers.len() as u16).collect();
                        let message = format!("the sum of ranks {ranks:?}: {}", failure.message);
                        Failure { message: bounded(message).into(), ..failure }.ranks(ranks)
                    }
                };
                let problem = bounded(failure.message.to_string());
                let at_fault = failure.ranks.first().copied();
                let fault = Fault { operation: number, rank: at_fault, index: failure.index, problem };
                job.post(id, Post::Fault(fault), out);
                if let (true, [rank]) = (job.is_shared(), &failure.ranks[..]) {
                    failure.message = bounded(format!("rank {rank}: {}", failure.message)).into();
                }
                failed(failure)
            }
            FragmentEnd::PeerFault(failure) => {
                let outcome = failed(failure);
                let report = running.faults.iter().find(|(_, fault)| fault.operation == number);
                match report {
                    Some((rank, fault)) => attributed(outcome, *rank, fault),
                    None => {
                        return self.state.operations.hold_back(key, outcome, now + FAULT_TIMEOUT);
                    }
                }
            }
            FragmentEnd::JobEnded => {
                operation.phase = OperationPhase::EndedWithJob;
                return;
            }
        };
        self.complete(key, outcome, resources, out);
    }

    pub(crate) fn transfer_ended(
        &mut self,
        key: OperationKey,
        loss: Option<sumac_api::Loss>,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(operation) = self.state.operations.get_mut(&key) else { return };
        let rank = self.state.jobs.get(&operation.job).map_or(0, |job| job.rank);
        let Work::Transfer(transfer) = &operation.work else { return };
        let (end, duration_ns) = operation.end();
        let outcome = match end {
            FragmentEnd::Complete => Outcome { duration_ns, loss, ..Outcome::default() },
            // Only the two ends have a transfer, so the other ranks need not know its error.
            FragmentEnd::OwnFault(failure)
            | FragmentEnd::PeerFault(failure)
            | FragmentEnd::SumFault(failure) => {
                let message = bounded(format!("{transfer}: {}", failure.message));
                let ranks = [rank.min(transfer.peer), rank.max(transfer.peer)];
                let failure = Failure { message: message.into(), ..failure }.ranks(ranks);
                Outcome { duration_ns, error: Some(failure), ..Outcome::default() }
            }
            FragmentEnd::JobEnded => {
                operation.phase = OperationPhase::EndedWithJob;
                return;
            }
        };
        self.complete(key, outcome, resources, out);
    }

    /// Ends an operation: its completion word is set, its memory is the client's again, and the client is
    /// notified.
    pub(crate) fn complete(
        &mut self,
        key: OperationKey,
        outcome: Outcome,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(mut operation) = self.remove_operation(key, outcome.error.is_none(), resources) else {
            return;
        };
        for follower in std::mem::take(&mut operation.followers) {
            let Some(other) = self.state.operations.get_mut(&follower) else { continue };
            let (timing, own_loss) = (other.follow(&operation), other.loss());
            let theirs = outcome.clone();
            let theirs = Outcome { loss: own_loss.or(theirs.loss), timing, ..theirs };
            self.complete(follower, theirs, resources, out);
        }
        if let Some(running) = self.running_mut(operation.job) {
            running.ended += 1;
        }
        let Some(connection) = self.state.connections.get_mut(&key.connection) else { return };
        let (op, handle) = (key.op, operation.handle);
        let transfer_of = matches!(operation.work, Work::Transfer(_)).then_some(handle);
        let requests = connection.finished.add(op, outcome.clone(), transfer_of, LIMITS.finished as usize);
        for request in requests {
            self.send(key.connection, outcome.clone().reply(request, op), out);
        }
        let Outcome { duration_ns, error, missed, loss, timing } = outcome;
        if error.is_none() {
            for left in operation.left() {
                self.send(key.connection, Outbound::Event(Event::Left { op, left }), out);
            }
        }
        let event = Event::Completed { op, job: handle, duration_ns, missed, loss, timing, error };
        // After the message, so that a trainer that wakes up finds it.
        let message = Message { signalled_event: Some(handle), ..Message::new(Outbound::Event(event)) };
        out.push(Output::Send { connection: key.connection, message: Box::new(message) });
    }

    /// Takes an operation out of the table, with what it holds.
    pub(crate) fn remove_operation(
        &mut self,
        key: OperationKey,
        is_complete: bool,
        resources: &mut dyn Resources,
    ) -> Option<Operation> {
        let operation = self.state.operations.remove(&key)?;
        resources.set_word(key, is_complete);
        resources.release(key);
        self.state.quotas.release(operation.uid, Quota::Held, operation.held);
        operation.regions.into_iter().for_each(|region| self.release_region(region, 1, resources));
        if let Some(connection) = self.state.connections.get_mut(&key.connection) {
            connection.outstanding = connection.outstanding.saturating_sub(1);
        }
        Some(operation)
    }

    /// Ends all operations of a job with its failure, in the order of their submission.
    pub(crate) fn fail_operations(
        &mut self,
        now: Nanos,
        job: JobId,
        failure: &Failure,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let of_job = self.state.operations.of_job(job);
        let keys: Vec<_> = of_job.map(|(key, operation)| (*key, operation.submitted)).collect();
        for (key, submitted) in keys {
            let duration_ns = now.saturating_sub(submitted);
            let error = Some(failure.clone());
            self.complete(key, Outcome { duration_ns, error, ..Outcome::default() }, resources, out);
        }
    }

    fn fragment_end(&self, operation: &Operation, outcome: FragmentOutcome) -> FragmentEnd {
        match outcome {
            FragmentOutcome::Complete => FragmentEnd::Complete,
            FragmentOutcome::Failed(OpError::Disagrees { rank, ours, theirs }) => {
                // The engine knows the worker.
                let rank = operation.transfer().map_or(rank, |transfer| transfer.peer);
                explain::fragment_end(&OpError::Disagrees { rank, ours, theirs }, &operation.tensor())
            }
            FragmentOutcome::Failed(error) => explain::fragment_end(&error, &operation.tensor()),
            FragmentOutcome::LocalFault(fault) => self.local_fault(operation, &fault),
            FragmentOutcome::Refused(problem) => {
                FragmentEnd::OwnFault(Failure::new(sumac_api::Code::Unsupported, problem))
            }
            FragmentOutcome::JobEnded => FragmentEnd::JobEnded,
        }
    }
}

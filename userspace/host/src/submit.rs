//! The submission of operations: their checks, memory, order, and lanes.

use std::ops::Range;

use sumac_api::{
    Collective, CollectiveKind, Failure, MissingValues, OperationReply, Outbound, PostRecv, PostSend,
};
use sumac_control::events::{Announcement, Post};
use sumac_job::OperationOrder;
use sumac_transport::Arithmetic;

use crate::checks::{check, check_outstanding, chunks};
use crate::connection::ConnectionJobState;
use crate::finished::Outcome;
use crate::fragment::{ElementRanges, Fragment, Part, arithmetic, divide};
use crate::host::Host;
use crate::job::{Job, RunningJob};
use crate::lanes::Assignment;
use crate::local::hull;
use crate::operation::{FragmentRecord, Operation, OperationPhase, Work};
use crate::quotas::{Quota, operation_bytes};
use crate::ranges::append_range;
use crate::refusals::{gone, limit, unknown_job, unknown_region};
use crate::region::SharedResult;
use crate::tensor::Tensor;
use crate::transfer::{self, Direction, Transfer};
use crate::{ConnectionId, FragmentKey, JobId, Nanos, OperationKey, Output, RegionId, Resources, WordPlace};

/// An operation that is checked, and its tensor.
struct Submission {
    handle: u64,
    tensor: Tensor,
    work: Work,
    /// The word's offset in the output's region.
    word: Option<u64>,
    fragments: Vec<(Fragment, ElementRanges)>,
    chunks: u64,
    received_ns: Option<Nanos>,
    is_timed: bool,
}

impl Host {
    pub(crate) fn submit(
        &mut self,
        now: Nanos,
        (connection, id): (ConnectionId, u64),
        kind: CollectiveKind,
        request: &Collective,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let received_ns = (request.timing || self.config.has_spans).then_some(now);
        let (job, running, rank) = self.open_job(connection, request.job)?;
        let terms = &running.terms;
        check(kind, request, terms)?;
        let ranges = match terms.servers {
            0 => ElementRanges::of(kind, request.count, rank, terms.ranks(), request.root),
            servers => ElementRanges::with_servers(kind, request.count, rank, servers, request.root),
        };
        let tensor = Tensor::new(kind, request, ranges);
        let descriptor = request.descriptor(kind);
        let per_chunk = running.per_chunk(descriptor.dtype, arithmetic(&descriptor));
        let fragments = divide(descriptor.count, per_chunk, terms.shards);
        let ranges = tensor.ranges();
        let fragments = fragments.into_iter().map(|fragment| {
            let ranges = ranges.within(&fragment.elements);
            (fragment, ranges)
        });
        let (priority, importance) = (request.priority, request.importance);
        let mut fragments: Vec<_> = fragments.collect();
        let chunks = chunks(request.count, per_chunk)?;
        let work = Work::Collective { descriptor, priority, importance, id: None };
        let has_word = request.completion_word.is_some();
        let result = self.shared_result((connection, job), &tensor, &work, has_word)?;
        if result.is_some() && self.is_begun(job, &work) {
            // The rank that was first has leased it, and it is written once.
            fragments.iter_mut().for_each(|(_, ranges)| ranges.output = 0..0);
        }
        let submission = Submission {
            handle: request.job,
            fragments,
            chunks,
            tensor,
            work,
            word: request.completion_word,
            received_ns,
            is_timed: request.timing,
        };
        let key = self.accept(now, connection, job, submission, resources)?;
        let first = out.len();
        self.place(now, key, (job, result), resources, out);
        self.reply_submitted(key, id, first, out);
        Ok(())
    }

    /// Replies to the submission of an operation: after its fragments have gone to their lanes, and before
    /// all messages about it. `first`: the first of its outputs.
    fn reply_submitted(&self, key: OperationKey, id: u64, first: usize, out: &mut Vec<Output>) {
        let is_message = |output: &Output| matches!(output, Output::Send { .. });
        let at = out[first..].iter().position(is_message).map_or(out.len(), |at| first + at);
        let later = out.split_off(at);
        self.send(key.connection, Outbound::ok(id, &OperationReply { op: key.op }), out);
        out.extend(later);
    }

    /// Has an operation wait for those of this host's other ranks, if there are any, and launches it.
    fn place(
        &mut self,
        now: Nanos,
        key: OperationKey,
        (job, result): (JobId, Option<SharedResult>),
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        if self.state.jobs.get(&job).is_some_and(Job::is_shared) {
            return self.place_locally(now, key, (job, result), resources, out);
        }
        self.announce_or_launch(key, job, resources, out);
    }

    /// Launches an operation of this worker, or announces its name to the other ones.
    pub(crate) fn announce_or_launch(
        &mut self,
        key: OperationKey,
        job: JobId,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(found) = self.state.jobs.get_mut(&job) else { return };
        let Some(running) = &mut found.running else { return };
        if running.terms.order == OperationOrder::Submission {
            return self.launch(key, resources, out);
        }
        let Some(announcement) = self.state.operations.get(&key).and_then(announcement) else { return };
        if running.named.add(&announcement.name, key) {
            found.post(job, Post::Announce(announcement), out);
        }
    }

    //= mlt#5.1 sends and receives matched in order
    pub(crate) fn post_send(
        &mut self,
        now: Nanos,
        at: (ConnectionId, u64),
        request: &PostSend,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let PostSend { job, region, dtype, offset, count, destination, priority, importance } = *request;
        let direction = Direction::Send { priority, importance };
        let transfer = Transfer { direction, peer: destination, dtype, count };
        self.post(now, at, job, transfer, (region, offset), resources, out)
    }

    pub(crate) fn post_recv(
        &mut self,
        now: Nanos,
        at: (ConnectionId, u64),
        request: &PostRecv,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let PostRecv { job, region, dtype, offset, count, source, loss_bound, missing } = *request;
        let direction = Direction::Receive { loss_bound, keeps: missing == MissingValues::Keep };
        let transfer = Transfer { direction, peer: source, dtype, count };
        self.post(now, at, job, transfer, (region, offset), resources, out)
    }

    /// Submits a transfer as a whole to one lane. Both workers spread their transfers over the shards by
    /// their numbers.
    #[expect(clippy::too_many_arguments, reason = "a request's parts, with the core's usual parameters")]
    fn post(
        &mut self,
        now: Nanos,
        (connection, id): (ConnectionId, u64),
        handle: u64,
        transfer: Transfer,
        (region, offset): (u64, u64),
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let (job, running, rank) = self.open_job(connection, handle)?;
        transfer::check(&transfer, &running.terms, rank)?;
        let per_chunk = running.per_chunk(transfer.dtype, Arithmetic::Bits);
        let whole = Fragment { elements: 0..transfer.count, chunks: 0 };
        let (tensor, work) =
            (Tensor::of_transfer(region, offset, &transfer), Work::Transfer(transfer.clone()));
        self.shared_result((connection, job), &tensor, &work, false)?;
        let submission = Submission {
            handle,
            tensor,
            fragments: vec![(whole, transfer.ranges())],
            chunks: chunks(transfer.count, per_chunk)?,
            work,
            word: None,
            received_ns: None,
            is_timed: false,
        };
        let key = self.accept(now, connection, job, submission, resources)?;
        let first = out.len();
        if self.state.jobs.get(&job).is_some_and(|found| found.is_shared_with(transfer.peer)) {
            self.post_locally(key, job, resources, out);
            self.reply_submitted(key, id, first, out);
            return Ok(());
        }
        let leader = self.leader_of(job);
        let Some(running) = self.running_mut(job) else { return Ok(()) };
        let next = running.next_transfers.entry((transfer.sends(), transfer.peer)).or_default();
        let count = *next;
        *next = count.wrapping_add(1);
        let shard = count % u32::from(running.terms.shards.max(1));
        let operation = Box::new(transfer.operation(count, rank, &running.terms));
        // The lanes of the class that is not urgent come first: the receiver does not know the priority.
        let lane = u16::try_from(shard).unwrap_or(0);
        if let Some(operation) = self.state.operations.get_mut(&key) {
            (operation.phase, operation.fragments_left) = (OperationPhase::InFlight, 1);
        }
        let fragment = FragmentKey { operation: key, fragment: 0 };
        out.push(Output::Submit { job: leader, lane, key: fragment, operation, ranks: None });
        self.reply_submitted(key, id, first, out);
        Ok(())
    }

    /// Returns an open job of a connection: its id, its state, and this worker's rank.
    pub(crate) fn open_job(
        &self,
        connection: ConnectionId,
        handle: u64,
    ) -> Result<(JobId, &RunningJob, u16), Failure> {
        let own = self.state.connections.get(&connection).and_then(|found| found.jobs.get(&handle));
        match own.map(|own| (own.job, &own.state)) {
            Some((job, ConnectionJobState::Open)) => {
                let found = self.state.jobs.get(&job);
                let running = found.and_then(|found| Some((found.running.as_deref()?, found.rank)));
                running.map(|(running, rank)| (job, running, rank)).ok_or_else(|| unknown_job(handle))
            }
            Some((_, ConnectionJobState::Failed(failure))) => Err(failure.clone()),
            Some((_, ConnectionJobState::Opening | ConnectionJobState::Closing { .. })) | None => {
                Err(unknown_job(handle))
            }
        }
    }

    /// Checks and leases the memory of an operation, and adds it to the table.
    fn accept(
        &mut self,
        now: Nanos,
        connection: ConnectionId,
        job: JobId,
        submission: Submission,
        resources: &mut dyn Resources,
    ) -> Result<OperationKey, Failure> {
        let Submission { handle, tensor, work, word, fragments, chunks, received_ns, is_timed } = submission;
        let Some(found) = self.state.connections.get_mut(&connection) else { return Err(gone()) };
        if found.outstanding >= found.limits.operations {
            return Err(limit("outstanding operations", found.limits.operations, "wait for one first"));
        }
        let region = |handle: u64| -> Result<(RegionId, u64), Failure> {
            let id = found.regions.get(&handle).ok_or_else(|| unknown_region(handle))?;
            Ok((*id, self.state.regions.get(id).map_or(0, |region| region.size)))
        };
        let [from, to] = tensor.regions().map(region);
        let ((from, from_size), (to, to_size)) = (from?, to?);
        tensor.check(from_size, to_size)?;
        let Some(running) = self.state.jobs.get_mut(&job).and_then(|job| job.running.as_deref_mut()) else {
            return Err(unknown_job(handle));
        };
        check_outstanding(running)?;
        let (uid, held) = (found.credentials.uid, operation_bytes(chunks, &running.terms));
        self.state.quotas.reserve(&self.config.quotas, uid, &[(Quota::Held, held)])?;
        found.last_operation += 1;
        let key = OperationKey { connection, op: found.last_operation };
        let word = word.map(|offset| WordPlace { region: to, handle: tensor.regions()[1], offset });
        let records: Vec<_> = fragments
            .into_iter()
            .map(|(fragment, ranges)| {
                let memory = tensor.lease_request([from, to], &fragment.elements, &ranges);
                FragmentRecord { fragment, ranges, memory }
            })
            .collect();
        if let Err(failure) = lease(key, word.as_ref(), &records, resources) {
            resources.release(key);
            self.state.quotas.release(uid, Quota::Held, held);
            return Err(failure);
        }
        running.submitted += 1;
        found.outstanding += 1;
        for id in [from, to] {
            if let Some(region) = self.state.regions.get_mut(&id) {
                region.users += 1;
            }
        }
        let mut operation = Operation::new((job, handle, uid), [from, to], now, held, work);
        (operation.word, operation.fragments) = (word, records);
        (operation.received_ns, operation.is_timed) = (received_ns, is_timed);
        self.state.operations.insert(key, operation);
        Ok(key)
    }

    /// Assigns an operation its id, and submits its fragments to their lanes. All lanes have the operations
    /// in the same order.
    pub(crate) fn launch(&mut self, key: OperationKey, resources: &mut dyn Resources, out: &mut Vec<Output>) {
        let mut sums = self.begin_followers(key);
        let Some(operation) = self.state.operations.get_mut(&key) else { return };
        let running = self.state.jobs.get_mut(&operation.job).and_then(|job| job.running.as_deref_mut());
        let (Some(running), Work::Collective { descriptor, priority, importance, id: number }) =
            (running, &mut operation.work)
        else {
            return;
        };
        let id = running.next;
        running.next = id.next();
        *number = Some(id);
        let class = u16::from(descriptor.is_urgent);
        let is_block_scaled = running.is_block_scaled(descriptor);
        let fragments = operation.fragments.iter().map(|record| &record.fragment);
        let assignments = running.lanes.assign(class, is_block_scaled, fragments);
        let per_chunk = running.per_chunk(descriptor.dtype, arithmetic(descriptor));
        operation.per_chunk = per_chunk;
        let mut submitted = 0;
        for (fragment, (assignment, record)) in (0..).zip(assignments.iter().zip(&operation.fragments)) {
            let Assignment { chunks, completed, completed_values } = assignment;
            let Range { start, end } = record.fragment.elements;
            let skipped = u64::from(*completed_values) * per_chunk;
            append_range(&mut operation.missed, start..end.min(start + skipped));
            if *completed < chunks.chunks {
                let ranks = sums.get_mut(usize::from(fragment)).and_then(Option::take);
                let part = Part {
                    terms: &running.terms,
                    descriptor,
                    id,
                    priority: *priority,
                    importance: *importance,
                    elements: start..end,
                    ranges: ranks.as_ref().map_or_else(|| record.ranges.clone(), |ranks| hull(&ranks.sum)),
                    skip: *completed,
                };
                let key = FragmentKey { operation: key, fragment };
                let (job, lane) = (operation.job, chunks.lane);
                let (operation, ranks) = (Box::new(part.operation()), ranks.map(Box::new));
                out.push(Output::Submit { job, lane, key, operation, ranks });
                submitted += 1;
            }
        }
        let chunks = assignments.iter().map(|assignment| assignment.chunks).collect();
        running.log.add(id, descriptor.clone(), chunks);
        (operation.phase, operation.fragments_left) = (OperationPhase::InFlight, submitted);
        if submitted == 0 {
            running.log.ended(id);
            let missed = std::mem::take(&mut operation.missed);
            self.complete(key, Outcome { missed, ..Outcome::default() }, resources, out);
        }
    }

    /// Launches the operation of a name that all workers have announced.
    pub(crate) fn release(
        &mut self,
        id: JobId,
        name: &str,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        if self.is_over(id) {
            return;
        }
        let Some(job) = self.state.jobs.get_mut(&id).filter(|job| job.end.is_none()) else { return };
        let released = job.running.as_mut().and_then(|running| running.named.release(name));
        let Some((released, next)) = released else {
            let message = format!("name {name:?} was released, for which no operation here waits");
            return out.push(Output::Warn { job: id, message, ranks: Vec::new() });
        };
        let next = next.and_then(|next| self.state.operations.get(&next)).and_then(announcement);
        if let Some(next) = next {
            job.post(id, Post::Announce(next), out);
        }
        self.launch(released, resources, out);
    }
}

/// Returns the announcement of an operation's name to the other workers.
fn announcement(operation: &Operation) -> Option<Announcement> {
    let Work::Collective { descriptor, priority, .. } = &operation.work else { return None };
    let (signature, description) = (descriptor.unnumbered_signature(), descriptor.to_string());
    let name = descriptor.name.clone().unwrap_or_default();
    Some(Announcement { name, signature, description, priority: *priority })
}

fn lease(
    key: OperationKey,
    word: Option<&WordPlace>,
    records: &[FragmentRecord],
    resources: &mut dyn Resources,
) -> Result<(), Failure> {
    word.map_or(Ok(()), |word| resources.lease_word(key, word))?;
    (0..).zip(records).try_for_each(|(fragment, record)| {
        resources.lease(FragmentKey { operation: key, fragment }, &record.memory)
    })
}

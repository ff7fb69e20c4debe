//! The operations of one job on this host: several connections submit them, and they go out over several lanes.
//!
//! ```text
//!  sessions --- submit ---> id, fragments ---> lanes (class x shard) ---> data path
//!           <-- outcome --- in flight      <--- ends of fragments    <---
//! ```
//!
//! The lock is held while an operation's fragments are submitted, so that all lanes have the operations in the same
//! order. In a job in order of names an operation waits until all workers have announced its name.

mod client;
mod fragment;
mod handover;
mod in_flight;
mod lanes;
mod late;
mod log;
mod transfer;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sumac_api::{Code, Failure};
use sumac_control::events::{
    Announcement, Fault, OperationReport, Post, REPORTED_OPERATIONS, ReportedOperation,
};
use sumac_job::{DType, Importance, JobTerms, OperationDescriptor, OperationId, OperationOrder, ResumePoint};
use sumac_transport::convert::Codec;
use sumac_transport::{Arithmetic, Loss, Scale};
use sumac_wire::CLASSES;
use tokio::sync::mpsc::UnboundedSender;

pub(crate) use self::fragment::arithmetic;
use self::fragment::{LeasedFragment, divide};
use self::in_flight::{InFlight, Named};
use self::lanes::{Assignment, Lanes, append_range};
use self::late::LateWorkers;
use self::log::Log;
use self::transfer::Transfers;
use crate::backend::{Backend, stopped};
use crate::explain::bounded;
use crate::job::JobEvent;
use crate::quotas::{Reservation, operation_bytes};
use crate::session::{CompletionWord, LeasedBuffer, Notification, Outcome};
use crate::spans::JobSpans;

pub(crate) use self::client::{Client, ClientId, Ending};
pub(crate) use self::fragment::ElementRanges;
pub(crate) use self::handover::{OperationsState, Restored};
pub(crate) use self::in_flight::{FragmentEnd, FragmentTimes, UnattributedFault};
pub(crate) use self::lanes::is_valid;
pub(crate) use self::transfer::{Direction, Posting, Transfer, UnpostedTransfers};

/// The most chunks of an operation: the largest tensor has so many of 256 elements.
const MAX_CHUNKS: u64 = 1 << 24;
/// The most outstanding operations of a job, over all its connections.
const MAX_OUTSTANDING: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) descriptor: OperationDescriptor,
    pub(crate) priority: u8,
    pub(crate) importance: Importance,
    pub(crate) client: ClientId,
    pub(crate) op: u64,
    pub(crate) ranges: ElementRanges,
    pub(crate) ending: Ending,
    /// Its part of its user's share of the daemon's memory.
    pub(crate) held: Reservation,
}

#[derive(Debug)]
struct Prepared {
    submission: Submission,
    fragments: Vec<LeasedFragment>,
}

impl Prepared {
    fn name(&self) -> String {
        self.submission.descriptor.name.clone().unwrap_or_default()
    }

    /// Returns the announcement of its name to the other workers.
    fn announcement(&self) -> JobEvent {
        let Submission { descriptor, priority, .. } = &self.submission;
        let (signature, description) = (descriptor.unnumbered_signature(), descriptor.to_string());
        let name = self.name();
        JobEvent::Post(Post::Announce(Announcement { name, signature, description, priority: *priority }))
    }
}

#[derive(Debug, Default)]
struct State {
    next: OperationId,
    lanes: Lanes,
    log: Log,
    in_flight: HashMap<OperationId, InFlight>,
    transfers: Transfers,
    named: Named<Prepared>,
    /// The number of clients that ever attached.
    attached: u64,
    clients: BTreeMap<ClientId, Client>,
    /// The clients of operations held back as [`UnattributedFault`]s.
    held_back: Vec<ClientId>,
    /// Operations that ended with the job, and are reported with its end.
    ended_with_job: usize,
    late: LateWorkers,
    submitted: u64,
    ended: u64,
    /// One cancellation ends the job; the task need not hear of more.
    is_cancelled: bool,
    closed: Option<Failure>,
}

#[derive(Debug)]
pub(crate) struct JobOperations {
    pub(crate) terms: JobTerms,
    pub(crate) rank: u16,
    spans: JobSpans,
    events: UnboundedSender<JobEvent>,
    state: Mutex<State>,
}

impl JobOperations {
    /// `point`: the position at which a worker that replaces another one continues; else the default.
    pub(crate) fn new(
        terms: JobTerms,
        rank: u16,
        events: UnboundedSender<JobEvent>,
        opener: Client,
        point: &ResumePoint,
        spans: JobSpans,
    ) -> JobOperations {
        let mut lanes = Lanes::new(CLASSES, terms.shards, &terms.resume);
        lanes.begin_at(point);
        let state = State {
            next: point.operation,
            lanes,
            clients: BTreeMap::from([(ClientId::OPENER, opener)]),
            ..State::default()
        };
        JobOperations { terms, rank, spans, events, state: Mutex::new(state) }
    }

    /// Returns the bytes that the daemon holds for an operation until it ends. Refuses one of too many chunks.
    pub(crate) fn held_bytes(
        &self,
        dtype: DType,
        arithmetic: Arithmetic,
        count: u64,
    ) -> Result<u64, Failure> {
        let per_chunk = self.per_chunk(dtype, arithmetic).max(1);
        let chunks = count.div_ceil(per_chunk);
        if chunks > MAX_CHUNKS {
            let message = format!("{count} elements in packets of {per_chunk} are {chunks} packets");
            return Err(Failure::new(
                Code::Limit,
                format!("{message}; an operation has at most {MAX_CHUNKS}"),
            )
            .hint("open the job with larger `elements`, or split the tensor"));
        }
        Ok(operation_bytes(chunks, &self.terms))
    }

    /// Returns the elements of an operation's tensor in a full packet.
    fn per_chunk(&self, dtype: DType, arithmetic: Arithmetic) -> u64 {
        let codec = Codec::new(self.terms.world, self.terms.wire, Scale::Block);
        let per_word = codec.values_per_word(dtype, arithmetic);
        u64::from(self.terms.elements) * per_word as u64
    }

    /// Returns whether the engine may send exponents before the operation's values.
    fn is_block_scaled(&self, descriptor: &OperationDescriptor) -> bool {
        let codec = Codec::new(self.terms.world, self.terms.wire, self.terms.scale);
        !self.terms.is_direct() && codec.needs_exponent(descriptor.dtype, arithmetic(descriptor))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every statement under the lock leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, event: JobEvent) {
        // Fails when the job has ended.
        let _ = self.events.send(event);
    }

    /// Submits an operation. `lease` leases the memory of a fragment: of these elements, and these ranges within them.
    pub(crate) fn submit(
        &self,
        backend: &Backend,
        submission: Submission,
        lease: impl FnMut(&Range<u64>, &ElementRanges) -> Result<LeasedBuffer, Failure>,
    ) -> Result<(), Failure> {
        let mut state = self.lock();
        state.check_outstanding()?;
        let prepared = self.prepare(submission, lease)?;
        state.submitted += 1;
        if self.terms.order == OperationOrder::Submission {
            return self.launch(backend, &mut state, prepared);
        }
        let (name, announcement) = (prepared.name(), prepared.announcement());
        if state.named.add(&name, prepared) {
            self.send(announcement);
        }
        Ok(())
    }

    fn prepare(
        &self,
        submission: Submission,
        mut lease: impl FnMut(&Range<u64>, &ElementRanges) -> Result<LeasedBuffer, Failure>,
    ) -> Result<Prepared, Failure> {
        let descriptor = &submission.descriptor;
        let per_chunk = self.per_chunk(descriptor.dtype, arithmetic(descriptor));
        let fragments = divide(descriptor.count, per_chunk, self.terms.shards);
        let fragments = fragments.into_iter().map(|fragment| {
            let ranges = submission.ranges.within(&fragment.elements);
            let buffer = lease(&fragment.elements, &ranges)?;
            Ok(LeasedFragment { fragment, ranges, buffer })
        });
        let fragments = fragments.collect::<Result<_, Failure>>()?;
        Ok(Prepared { submission, fragments })
    }

    /// Assigns an operation its id, and submits its fragments to their lanes.
    fn launch(&self, backend: &Backend, state: &mut State, prepared: Prepared) -> Result<(), Failure> {
        let Prepared { submission, fragments } = prepared;
        let Submission { descriptor, priority, importance, client, op, held, ending, .. } = submission;
        let id = state.next;
        state.next = id.next();
        let class = u16::from(descriptor.is_urgent);
        let is_block_scaled = self.is_block_scaled(&descriptor);
        let fragments_only = fragments.iter().map(|leased| &leased.fragment);
        let assignments = state.lanes.assign(class, is_block_scaled, fragments_only);
        let per_chunk = self.per_chunk(descriptor.dtype, arithmetic(&descriptor));
        let (mut missed, mut operations) = (Vec::new(), Vec::new());
        for (assignment, leased) in assignments.iter().zip(fragments) {
            let Assignment { chunks, completed, completed_values } = assignment;
            let Range { start, end } = leased.fragment.elements;
            let skipped = u64::from(*completed_values) * per_chunk;
            append_range(&mut missed, start..end.min(start + skipped));
            if *completed < chunks.chunks {
                let tags = (priority, importance);
                let operation = leased.into_operation(&self.terms, &descriptor, id, tags, *completed);
                operations.push((chunks.lane, operation));
            }
        }
        let chunks = assignments.iter().map(|assignment| assignment.chunks).collect();
        state.log.add(id, descriptor.clone(), chunks);
        if operations.is_empty() {
            state.log.ended(id);
            let outcome = Outcome { missed, ..Outcome::default() };
            state.complete(client, op, outcome, ending.word);
            return Ok(());
        }
        let mut in_flight = InFlight::new(descriptor, client, op, operations.len(), missed, held);
        in_flight.ending = ending;
        state.in_flight.insert(id, in_flight);
        for (lane, operation) in operations {
            if !backend.datapath.submit(self.terms.job, lane, id.into(), operation) {
                // The fragments that the data path took end with it.
                state.in_flight.remove(&id);
                return Err(stopped());
            }
        }
        Ok(())
    }

    pub(crate) fn release(&self, backend: &Backend, name: &str) {
        let mut state = self.lock();
        let Some((prepared, next)) = state.named.release(name) else {
            return log_limited!(warn, name, "a name was released that no operation here waits for");
        };
        if let Some(next) = next {
            self.send(next.announcement());
        }
        if let Err(failure) = self.launch(backend, &mut state, prepared) {
            // The data path has stopped, so the job is about to end; its client is notified then.
            log_limited!(error, %failure, name, "cannot submit an operation to the data path");
        }
    }

    /// Records the end of a fragment, with its times on the data path's clock. `end` is called with the name of the
    /// operation's tensor. The client is notified of the operation's outcome after the last fragment.
    pub(crate) fn fragment_ended(
        &self,
        id: OperationId,
        times: FragmentTimes,
        loss: Option<Loss>,
        end: impl FnOnce(&str) -> FragmentEnd,
    ) {
        let mut state = self.lock();
        let Some(operation) = state.in_flight.get_mut(&id) else { return };
        let end = end(&operation.descriptor.tensor(id));
        operation.add_loss(loss);
        if !operation.fragment_ended(times, end) {
            return;
        }
        let Some(operation) = state.in_flight.remove(&id) else { return };
        let (end, duration_ns) = operation.end();
        let loss = operation.loss();
        let times = operation.timing();
        let InFlight { client, op, missed, descriptor, ending: Ending { word, is_timed, .. }, .. } =
            operation;
        self.spans.ended(id, descriptor, times, end.problem());
        let timing = times.filter(|_| is_timed);
        let failed = |failure| Outcome { duration_ns, error: Some(failure), ..Outcome::default() };
        if end != FragmentEnd::JobEnded {
            state.log.ended(id);
        }
        match end {
            FragmentEnd::Complete => {
                let late = loss.as_ref().map_or(Vec::new(), |loss| state.late.record(loss));
                if !late.is_empty() {
                    let job = self.terms.job;
                    log_limited!(warn, wire_job = job, ranks = ?late, "always late: left out up to the loss bound");
                }
                state.complete(client, op, Outcome { duration_ns, error: None, missed, loss, timing }, word);
            }
            FragmentEnd::SumFault(failure) => state.complete(client, op, failed(failure), word),
            FragmentEnd::OwnFault(failure) => {
                let failure = failure.ranks([self.rank]);
                let problem = bounded(failure.message.to_string());
                let fault = Fault { operation: id, index: failure.index, problem };
                self.send(JobEvent::Post(Post::Fault(fault)));
                state.complete(client, op, failed(failure), word);
            }
            FragmentEnd::PeerFault(failure) => {
                state.held_back.push(client);
                let outcome = failed(failure);
                self.send(JobEvent::Unattributed(Box::new(UnattributedFault {
                    id,
                    client,
                    op,
                    outcome,
                    word,
                })));
            }
            FragmentEnd::JobEnded => state.ended_with_job += 1,
        }
    }

    pub(crate) fn settle(&self, operation: UnattributedFault) {
        let mut state = self.lock();
        if let Some(at) = state.held_back.iter().position(|client| *client == operation.client) {
            state.held_back.swap_remove(at);
        }
        state.complete(operation.client, operation.op, operation.outcome, operation.word);
    }

    /// Returns the numbers of submitted and of ended operations, and of connections.
    pub(crate) fn counts(&self) -> (u64, u64, u32) {
        let state = self.lock();
        (state.submitted, state.ended, u32::try_from(state.clients.len()).unwrap_or(u32::MAX))
    }

    /// Adds a connection. `greeting` is its first notification of the job.
    pub(crate) fn attach(
        &self,
        client: Client,
        greeting: impl FnOnce(ClientId) -> Notification,
    ) -> Result<ClientId, Failure> {
        let mut state = self.lock();
        if let Some(failure) = &state.closed {
            return Err(failure.clone());
        }
        state.attached += 1;
        let id = ClientId(state.attached);
        // Fails when its session has ended, which detaches it.
        client.notify(greeting(id));
        state.clients.insert(id, client);
        Ok(id)
    }

    /// Removes a connection. The job fails if operations of it are outstanding: the other workers wait for them.
    pub(crate) fn detach(&self, id: ClientId, how: &str) {
        let mut state = self.lock();
        let Some(Client { credentials, .. }) = state.clients.remove(&id) else { return };
        let outstanding = state.outstanding_of(id);
        if outstanding > 0 && state.closed.is_none() {
            self.send(JobEvent::Abandon {
                reason: format!(
                    "a client of its job ({credentials}) {how}, with {outstanding} operations outstanding"
                ),
            });
        }
    }

    /// Refuses further operations, if none is outstanding; else returns their number.
    pub(crate) fn begin_close(&self) -> Result<(), usize> {
        let mut state = self.lock();
        let outstanding = state.outstanding();
        if outstanding > 0 {
            return Err(outstanding);
        }
        if state.closed.is_none() {
            let failure = Failure::new(Code::JobFailed, "the client that opened the job has closed it");
            state.closed = Some(failure.hint("open it again, on all workers"));
        }
        Ok(())
    }

    /// Refuses further operations and notifies these clients. The data path has returned all fragments.
    pub(crate) fn end(&self, failure: &Failure, notifies: impl Fn(ClientId) -> bool) {
        let mut state = self.lock();
        state.closed.get_or_insert_with(|| failure.clone());
        state.named.clear();
        state.in_flight.clear();
        state.transfers.clear();
        state.held_back.clear();
        state.ended_with_job = 0;
        for (_, client) in state.clients.iter().filter(|(id, _)| notifies(**id)) {
            client.notify(Notification::JobFailed { job: client.handle, failure: failure.clone() });
        }
    }

    /// Notifies the clients that an operation waits for these ranks; none: they are not known.
    pub(crate) fn waits(&self, message: &str, ranks: &[u16]) {
        for client in self.lock().clients.values() {
            let (job, message, ranks) = (client.handle, message.to_owned(), ranks.to_vec());
            client.notify(Notification::Waiting { job, message, ranks });
        }
    }

    pub(crate) fn cancel(&self) {
        if std::mem::replace(&mut self.lock().is_cancelled, true) {
            return;
        }
        self.send(JobEvent::Cancel { by: format!("the trainer of rank {}", self.rank) });
    }

    /// Returns this worker's operations for the comparison with other workers'. `noticed_at`: a lane and chunk that differ.
    pub(crate) fn report(&self, noticed_at: Option<(u16, u32)>) -> OperationReport {
        let state = self.lock();
        let noticed = noticed_at.and_then(|(lane, seq)| state.log.at(lane, seq)).or_else(|| state.oldest());
        OperationReport { operations: state.log.since_unended(REPORTED_OPERATIONS), noticed_at, noticed }
    }

    /// Returns the position at which a worker that replaces another one continues; `resume` is the first chunk of each
    /// lane that is not summed. `None`: this worker's log does not go back so far.
    pub(crate) fn resume_point(&self, resume: &[u32]) -> Option<ResumePoint> {
        let state = self.lock();
        state.log.resume_point(state.lanes.position(state.next), resume)
    }

    pub(crate) fn oldest(&self) -> Option<ReportedOperation> {
        self.lock().oldest()
    }
}

impl State {
    fn oldest(&self) -> Option<ReportedOperation> {
        let oldest = self.in_flight.keys().copied().max_by_key(|id| self.next.since(*id))?;
        self.log.get(oldest)
    }

    fn complete(&mut self, client: ClientId, op: u64, outcome: Outcome, word: Option<CompletionWord>) {
        self.ended += 1;
        // Without its client the word is dropped.
        if let Some(client) = self.clients.get(&client) {
            let is_complete = outcome.error.is_none();
            client.notify_end(Notification::Completed { op, outcome }, word, is_complete);
        }
    }

    fn outstanding(&self) -> usize {
        let own = self.in_flight.len() + self.transfers.len() + self.named.iter().count();
        own + self.held_back.len() + self.ended_with_job
    }

    fn outstanding_of(&self, client: ClientId) -> usize {
        let in_flight = self.in_flight.values().filter(|operation| operation.client == client).count();
        let named = self.named.iter().filter(|prepared| prepared.submission.client == client).count();
        in_flight
            + self.transfers.of_client(client)
            + named
            + self.held_back.iter().filter(|other| **other == client).count()
    }
}

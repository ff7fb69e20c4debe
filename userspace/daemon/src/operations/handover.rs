//! The handover of a job's operations to another daemon. The data path is frozen, and no client submits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use sumac_api::{Failure, Loss};
use sumac_job::{Importance, JobTerms, OperationDescriptor, OperationId};
use tokio::sync::mpsc::UnboundedSender;

use super::client::{Client, ClientId, Ending};
use super::fragment::{ElementRanges, Fragment, LeasedFragment};
use super::in_flight::{FragmentEnd, FragmentTimes, InFlight};
use super::lanes::Lanes;
use super::late::LateWorkers;
use super::log::Log;
use super::transfer::{Posted, Posting, Transfer, Transfers};
use super::{JobOperations, Prepared, State, Submission};
use crate::job::JobEvent;
use crate::quotas::{Quotas, Reservation};
use crate::session::{BufferPlace, CompletionWord, LeasedBuffer, Region, WordPlace};
use crate::spans::JobSpans;
use crate::sync::{from_monotonic, to_monotonic};

/// The parts of this daemon that another one's state refers to.
pub(crate) struct Restored<'a> {
    pub(crate) quotas: &'a Quotas,
    /// The clients by the numbers of their connections and their handles of jobs.
    pub(crate) client: &'a dyn Fn(u64, u64) -> Option<Client>,
    /// The regions by their numbers in the other daemon.
    pub(crate) regions: &'a HashMap<u64, Arc<Region>>,
}

impl Restored<'_> {
    pub(crate) fn lease(&self, place: &BufferPlace) -> Result<LeasedBuffer, String> {
        LeasedBuffer::again(place, |number| self.regions.get(&number).cloned())
    }

    fn ending(&self, ending: EndingState) -> Result<Ending, String> {
        let EndingState { word, received_ns, is_timed } = ending;
        let word = word.map(|place| CompletionWord::again(&place, self.regions)).transpose()?;
        Ok(Ending { word, received_ns, is_timed })
    }

    fn reserve(&self, HeldState { uid, amount }: HeldState) -> Result<Reservation, String> {
        self.quotas.held.reserve(uid, amount).map_err(|failure: Failure| failure.to_string())
    }
}

/// A part of a user's share of the daemon's memory.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct HeldState {
    uid: u32,
    amount: u64,
}

impl From<&Reservation> for HeldState {
    fn from(reservation: &Reservation) -> HeldState {
        let (uid, amount) = reservation.share();
        HeldState { uid, amount }
    }
}

#[derive(Serialize, Deserialize)]
struct EndingState {
    word: Option<WordPlace>,
    received_ns: Option<u64>,
    is_timed: bool,
}

impl From<&Ending> for EndingState {
    fn from(ending: &Ending) -> EndingState {
        let word = ending.word.as_ref().and_then(CompletionWord::place);
        EndingState { word, received_ns: ending.received_ns, is_timed: ending.is_timed }
    }
}

#[derive(Serialize, Deserialize)]
struct InFlightState {
    id: OperationId,
    descriptor: OperationDescriptor,
    client: ClientId,
    op: u64,
    missed: Vec<(u64, u64)>,
    loss: Option<Loss>,
    fragments_left: usize,
    times: FragmentTimes,
    end: FragmentEnd,
    ending: EndingState,
    held: Option<HeldState>,
}

#[derive(Serialize, Deserialize)]
struct FragmentState {
    fragment: Fragment,
    ranges: ElementRanges,
    memory: BufferPlace,
}

/// An operation that waits for its name.
#[derive(Serialize, Deserialize)]
struct PreparedState {
    descriptor: OperationDescriptor,
    priority: u8,
    importance: Importance,
    client: ClientId,
    op: u64,
    ranges: ElementRanges,
    ending: EndingState,
    held: HeldState,
    fragments: Vec<FragmentState>,
}

#[derive(Serialize, Deserialize)]
struct TransferState {
    key: u64,
    transfer: Transfer,
    client: ClientId,
    op: u64,
    since_ns: u64,
    held: HeldState,
}

#[derive(Serialize, Deserialize)]
struct ClientState {
    id: ClientId,
    connection: u64,
    handle: u64,
}

/// The operations of a job, and its clients.
#[derive(Serialize, Deserialize)]
pub(crate) struct OperationsState {
    next: OperationId,
    lanes: Lanes,
    log: Log,
    in_flight: Vec<InFlightState>,
    transfers: Vec<TransferState>,
    posted: u64,
    next_transfers: Vec<((bool, u16), u32)>,
    named: Vec<PreparedState>,
    attached: u64,
    clients: Vec<ClientState>,
    late: LateWorkers,
    submitted: u64,
    ended: u64,
}

impl JobOperations {
    /// Returns the state for another daemon; an error names what has to end first.
    pub(crate) fn snapshot(&self) -> Result<OperationsState, String> {
        let state = self.lock();
        let problem = match () {
            () if !state.held_back.is_empty() => "waits for the report of another worker's faulty value",
            () if state.ended_with_job > 0 || state.closed.is_some() => "is ending",
            () if state.is_cancelled => "was cancelled",
            () => "",
        };
        if !problem.is_empty() {
            return Err(problem.to_owned());
        }
        let in_flight = state.in_flight.iter().map(|(id, operation)| operation.snapshot(*id));
        let transfers = state.transfers.outstanding.iter().map(|(key, posted)| posted.snapshot(*key));
        let clients = state.clients.iter().map(|(id, client)| {
            let Client { connection, handle, .. } = *client;
            ClientState { id: *id, connection, handle }
        });
        Ok(OperationsState {
            next: state.next,
            lanes: state.lanes.clone(),
            log: state.log.clone(),
            in_flight: in_flight.collect(),
            transfers: transfers.collect(),
            posted: state.transfers.posted,
            next_transfers: state.transfers.next.iter().map(|(to, next)| (*to, *next)).collect(),
            named: state.named.iter().map(Prepared::snapshot).collect(),
            attached: state.attached,
            clients: clients.collect(),
            late: state.late.clone(),
            submitted: state.submitted,
            ended: state.ended,
        })
    }

    /// Forgets the operations, which go on in another daemon: their clients are not notified.
    pub(crate) fn hand_over(&self) {
        let mut state = self.lock();
        let words = state.in_flight.values_mut().map(|operation| &mut operation.ending);
        words.for_each(|ending| ending.word.take().into_iter().for_each(CompletionWord::hand_over));
        for prepared in state.named.iter_mut() {
            prepared.submission.ending.word.take().into_iter().for_each(CompletionWord::hand_over);
        }
        *state = State::default();
    }

    /// Continues the operations of another daemon.
    pub(crate) fn resume(
        state: OperationsState,
        terms: JobTerms,
        rank: u16,
        events: UnboundedSender<JobEvent>,
        spans: JobSpans,
        restored: &Restored<'_>,
    ) -> Result<JobOperations, String> {
        let mut clients = std::collections::BTreeMap::new();
        for ClientState { id, connection, handle } in state.clients {
            let client = (restored.client)(connection, handle);
            clients.insert(id, client.ok_or_else(|| format!("no connection {connection}"))?);
        }
        let mut resumed = State {
            next: state.next,
            lanes: state.lanes,
            log: state.log,
            attached: state.attached,
            clients,
            late: state.late,
            submitted: state.submitted,
            ended: state.ended,
            ..State::default()
        };
        for operation in state.in_flight {
            let id = operation.id;
            resumed.in_flight.insert(id, InFlight::resume(operation, restored)?);
        }
        resumed.transfers = Transfers {
            posted: state.posted,
            next: state.next_transfers.into_iter().collect(),
            ..Transfers::default()
        };
        for transfer in state.transfers {
            let key = transfer.key;
            resumed.transfers.outstanding.insert(key, Posted::resume(transfer, restored)?);
        }
        for prepared in state.named {
            let prepared = Prepared::resume(prepared, restored)?;
            // It was announced by the other daemon.
            let _ = resumed.named.add(&prepared.name(), prepared);
        }
        Ok(JobOperations { terms, rank, spans, events, state: Mutex::new(resumed) })
    }
}

impl InFlight {
    fn snapshot(&self, id: OperationId) -> InFlightState {
        InFlightState {
            id,
            descriptor: self.descriptor.clone(),
            client: self.client,
            op: self.op,
            missed: self.missed.clone(),
            loss: self.loss.clone(),
            fragments_left: self.fragments_left,
            times: self.times,
            end: self.end.clone(),
            ending: (&self.ending).into(),
            held: self.held.as_ref().map(HeldState::from),
        }
    }

    fn resume(state: InFlightState, restored: &Restored<'_>) -> Result<InFlight, String> {
        let InFlightState { descriptor, client, op, missed, loss, fragments_left, times, end, .. } = state;
        let held = state.held.map(|held| restored.reserve(held)).transpose()?;
        let ending = restored.ending(state.ending)?;
        Ok(InFlight { descriptor, client, op, missed, loss, fragments_left, times, end, ending, held })
    }
}

impl Posted {
    fn snapshot(&self, key: u64) -> TransferState {
        let Posting { transfer, client, op } = &self.posting;
        let (client, op) = (*client, *op);
        let since_ns = to_monotonic(self.since);
        TransferState { key, transfer: transfer.clone(), client, op, since_ns, held: (&self.held).into() }
    }

    fn resume(state: TransferState, restored: &Restored<'_>) -> Result<Posted, String> {
        let TransferState { transfer, client, op, since_ns, held, .. } = state;
        let since: Instant = from_monotonic(since_ns);
        Ok(Posted { posting: Posting { transfer, client, op }, since, held: restored.reserve(held)? })
    }
}

impl Prepared {
    fn snapshot(&self) -> PreparedState {
        let Submission { descriptor, priority, importance, client, op, ranges, ending, held } =
            &self.submission;
        let fragments = self.fragments.iter().map(|LeasedFragment { fragment, ranges, buffer }| {
            FragmentState { fragment: fragment.clone(), ranges: ranges.clone(), memory: buffer.place() }
        });
        PreparedState {
            descriptor: descriptor.clone(),
            priority: *priority,
            importance: *importance,
            client: *client,
            op: *op,
            ranges: ranges.clone(),
            ending: ending.into(),
            held: held.into(),
            fragments: fragments.collect(),
        }
    }

    fn resume(state: PreparedState, restored: &Restored<'_>) -> Result<Prepared, String> {
        let PreparedState { descriptor, priority, importance, client, op, ranges, .. } = state;
        let fragments = state.fragments.into_iter().map(|FragmentState { fragment, ranges, memory }| {
            Ok::<_, String>(LeasedFragment { fragment, ranges, buffer: restored.lease(&memory)? })
        });
        let fragments = fragments.collect::<Result<_, _>>()?;
        let (ending, held) = (restored.ending(state.ending)?, restored.reserve(state.held)?);
        let submission = Submission { descriptor, priority, importance, client, op, ranges, ending, held };
        Ok(Prepared { submission, fragments })
    }
}

//! Transfers between two workers of a direct job: those that one sends to another are matched with those that the other receives
//! from it, in the order in which each has posted them.
//!
//! Only two workers know of a transfer, so it has no [`OperationId`](sumac_job::OperationId), and the control plane does not wait
//! for it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sumac_api::{Code, Failure, Loss};
use sumac_job::{DType, Importance};
use sumac_transport::{Arithmetic, Exchange, Operation, Pattern};

use super::fragment::ElementRanges;
use super::in_flight::{FragmentEnd, FragmentTimes, joined};
use super::{ClientId, JobOperations, MAX_OUTSTANDING, State};
use crate::backend::{Backend, stopped};
use crate::datapath::OperationKey;
use crate::explain::bounded;
use crate::quotas::Reservation;
use crate::session::{LeasedBuffer, Outcome};

/// The transfers' signature in agreements: type and count are compared by themselves.
const SIGNATURE: u32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Direction {
    Send {
        priority: u8,
        importance: Importance,
    },
    /// `keeps`: missing elements stay as they were, rather than become zero.
    Receive {
        loss_bound: f32,
        keeps: bool,
    },
}

/// One end of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Transfer {
    pub(crate) direction: Direction,
    /// The rank of the other end.
    pub(crate) peer: u16,
    pub(crate) dtype: DType,
    pub(crate) count: u64,
}

impl Transfer {
    pub(crate) fn command(&self) -> &'static str {
        if self.sends() { "post_send" } else { "post_recv" }
    }

    fn sends(&self) -> bool {
        matches!(self.direction, Direction::Send { .. })
    }

    /// Returns the elements that are read and written.
    pub(crate) fn ranges(&self) -> ElementRanges {
        let (all, none) = (0..self.count, 0..0);
        if self.sends() {
            ElementRanges { input: all, output: none }
        } else {
            ElementRanges { input: none, output: all }
        }
    }

    /// Returns the engine's operation. `number`: the transfer's among those of the pair of workers.
    fn into_operation(self, number: u32, buffer: LeasedBuffer) -> Operation {
        let Transfer { direction, peer, dtype, count } = self;
        // A tensor has at most 2^32 - 1 elements.
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let whole = Operation::allreduce(SIGNATURE, dtype, Arithmetic::Bits, count, Box::new(buffer));
        match direction {
            Direction::Send { priority, importance } => {
                let exchange = Exchange { number, pattern: Pattern::Send { to: peer } };
                let exchange = Some(Box::new(exchange));
                Operation { takes: 0..0, priority, importance, exchange, ..whole }
            }
            Direction::Receive { loss_bound, keeps } => {
                let exchange = Exchange { number, pattern: Pattern::Receive { from: peer, keeps } };
                Operation { gives: 0..0, loss_bound, exchange: Some(Box::new(exchange)), ..whole }
            }
        }
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Transfer { peer, dtype, count, .. } = self;
        let way = if self.sends() { "to" } else { "from" };
        write!(f, "{} {}[{count}] {way} rank {peer}", self.command(), dtype.name())
    }
}

/// The transfer of a connection.
#[derive(Debug)]
pub(crate) struct Posting {
    pub(crate) transfer: Transfer,
    pub(crate) client: ClientId,
    pub(crate) op: u64,
}

#[derive(Debug)]
pub(super) struct Posted {
    pub(super) posting: Posting,
    pub(super) since: Instant,
    /// Dropped with the transfer.
    pub(super) held: Reservation,
}

/// The outstanding transfers of a job.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    /// The number of those that were ever posted.
    pub(super) posted: u64,
    pub(super) outstanding: BTreeMap<u64, Posted>,
    /// The number of the next transfer to (`true`) or from a rank.
    pub(super) next: HashMap<(bool, u16), u32>,
}

impl Transfers {
    fn add(&mut self, posting: Posting, held: Reservation) -> (u64, u32) {
        let next = self.next.entry((posting.transfer.sends(), posting.transfer.peer)).or_default();
        let number = *next;
        *next = number.wrapping_add(1);
        let key = self.posted;
        self.posted += 1;
        self.outstanding.insert(key, Posted { posting, since: Instant::now(), held });
        (key, number)
    }

    pub(super) fn len(&self) -> usize {
        self.outstanding.len()
    }

    pub(super) fn of_client(&self, client: ClientId) -> usize {
        self.outstanding.values().filter(|posted| posted.posting.client == client).count()
    }

    pub(super) fn clear(&mut self) {
        self.outstanding.clear();
    }

    /// Returns the first of these ranks that has not ended its part of a transfer.
    pub(super) fn awaited(&self, ranks: &[u16]) -> Option<u16> {
        self.outstanding.values().map(|posted| posted.posting.transfer.peer).find(|peer| ranks.contains(peer))
    }
}

/// Transfers whose other end was not posted for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnpostedTransfers {
    /// Their numbers on this host.
    pub(crate) keys: Vec<u64>,
    /// The ranks that have not posted them.
    pub(crate) ranks: Vec<u16>,
    pub(crate) message: String,
}

impl JobOperations {
    /// Submits a transfer as a whole to one lane. `held`: its part of its user's share of the daemon's memory. Both workers spread their transfers over the shards by their numbers.
    pub(crate) fn post(
        &self,
        backend: &Backend,
        posting: Posting,
        held: Reservation,
        lease: impl FnOnce(&Range<u64>, &ElementRanges) -> Result<LeasedBuffer, Failure>,
    ) -> Result<(), Failure> {
        let mut state = self.lock();
        state.check_outstanding()?;
        let transfer = posting.transfer.clone();
        let buffer = lease(&(0..transfer.count), &transfer.ranges())?;
        let (key, number) = state.transfers.add(posting, held);
        state.submitted += 1;
        let shard = number % u32::from(self.terms.shards.max(1));
        // The lanes of the class that is not urgent come first: the receiver does not know the priority.
        let lane = u16::try_from(shard).unwrap_or(0);
        let operation = transfer.into_operation(number, buffer);
        if backend.datapath.submit(self.terms.job, lane, OperationKey::Transfer(key), operation) {
            Ok(())
        } else {
            state.transfers.outstanding.remove(&key);
            Err(stopped())
        }
    }

    /// Records the end of a transfer, with its times on the data path's clock, and notifies its client.
    pub(crate) fn transfer_ended(
        &self,
        key: u64,
        times: FragmentTimes,
        loss: Option<sumac_transport::Loss>,
        end: FragmentEnd,
    ) {
        let mut state = self.lock();
        let Some(Posted { posting, .. }) = state.transfers.outstanding.remove(&key) else { return };
        let duration_ns = times.arrived.saturating_sub(times.taken);
        let outcome = |error, loss| Outcome { duration_ns, error, loss, ..Outcome::default() };
        let Posting { transfer, client, op, .. } = posting;
        match end {
            FragmentEnd::Complete => {
                state.complete(client, op, outcome(None, loss.map(|loss| loss_of(&transfer, &loss))), None);
            }
            // Only the two ends have a transfer, so the other ranks need not know its error.
            FragmentEnd::OwnFault(failure)
            | FragmentEnd::PeerFault(failure)
            | FragmentEnd::SumFault(failure) => {
                let message = bounded(format!("{transfer}: {}", failure.message));
                let ranks = [self.rank.min(transfer.peer), self.rank.max(transfer.peer)];
                let failure = Failure { message: message.into(), ..failure }.ranks(ranks);
                state.complete(client, op, outcome(Some(failure), None), None);
            }
            FragmentEnd::JobEnded => state.ended_with_job += 1,
        }
    }

    /// Returns the time since which the oldest transfer is outstanding.
    pub(crate) fn oldest_transfer(&self) -> Option<Instant> {
        self.lock().transfers.outstanding.values().next().map(|posted| posted.since)
    }

    /// Returns those of these transfers, whose other end was not posted, that are older than `age`.
    pub(crate) fn unposted(&self, keys: &[u64], age: Duration) -> Option<UnpostedTransfers> {
        let state = self.lock();
        let old = state.transfers.outstanding.iter().filter(|(_, posted)| posted.since.elapsed() >= age);
        let old: Vec<_> = old.filter(|(key, _)| keys.contains(key)).collect();
        let Posted { posting: Posting { transfer, .. }, since, .. } = old.first()?.1;
        let mut ranks: Vec<u16> = old.iter().map(|(_, posted)| posted.posting.transfer.peer).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let other = if transfer.sends() { "post_recv" } else { "post_send" };
        let more = match old.len() - 1 {
            0 => String::new(),
            more => format!("; {more} more transfers wait likewise, for ranks {ranks:?} in all"),
        };
        let waited = since.elapsed().as_secs();
        let message =
            format!("{transfer} has waited for {waited} s for the {other} of rank {}{more}", transfer.peer);
        let keys = old.iter().map(|(key, _)| **key).collect();
        Some(UnpostedTransfers { keys, ranks, message })
    }

    /// Returns one of the ranks that have left whose part in an outstanding operation is missing.
    pub(crate) fn awaited(&self, departed: &[u16]) -> Option<u16> {
        let state = self.lock();
        if state.outstanding() > state.transfers.len() {
            return departed.first().copied();
        }
        state.transfers.awaited(departed)
    }
}

impl State {
    /// Refuses a further operation of a job that has ended, or has the most.
    pub(super) fn check_outstanding(&self) -> Result<(), Failure> {
        if let Some(failure) = &self.closed {
            return Err(failure.clone());
        }
        if self.submitted.saturating_sub(self.ended) >= MAX_OUTSTANDING {
            let message =
                format!("{MAX_OUTSTANDING} operations of this job are outstanding, the most it may have");
            return Err(Failure::new(Code::Limit, message).hint("wait for one first"));
        }
        Ok(())
    }
}

/// Returns the elements that a received tensor lacks, all of them of the one worker that sent it.
fn loss_of(transfer: &Transfer, loss: &sumac_transport::Loss) -> Loss {
    let ranges = loss.missing.iter().map(|range| (range.start as u64, range.end as u64)).collect();
    Loss {
        elements: transfer.count,
        budget: loss.budget,
        by_worker: vec![loss.by_worker.iter().sum()],
        own: Vec::new(),
        missing: joined(ranges),
    }
}

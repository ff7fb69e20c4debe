//! Transfers between two workers of a direct job: those that one sends to another are matched with those that
//! the other receives from it, in the order in which each has posted them.
//!
//! Only two workers know of a transfer, so it has no [`OperationId`](sumac_job::OperationId), and the control
//! plane does not wait for it.

use std::fmt;

use serde::{Deserialize, Serialize};
use sumac_api::{Code, Failure, Loss};
use sumac_job::{DType, Importance, JobTerms};
use sumac_transport::{Arithmetic, Exchange, Operation, Pattern};

use crate::fragment::ElementRanges;
use crate::ranges::joined;

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

    pub(crate) fn sends(&self) -> bool {
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

    /// Returns the engine's operation, with a placeholder for its buffer. `before`: the transfers of the pair
    /// of ranks in this direction before it.
    pub(crate) fn operation(&self, before: u32, rank: u16, terms: &JobTerms) -> Operation {
        let Transfer { direction, peer, dtype, count } = *self;
        let local = terms.local_world.max(1);
        let (from, to) = if self.sends() { (rank, peer) } else { (peer, rank) };
        // Each pair of ranks has numbers of its own among those of its workers.
        let pair = u32::from(from % local) * u32::from(local) + u32::from(to % local);
        let number = before.wrapping_mul(u32::from(local).pow(2)).wrapping_add(pair);
        let peer = terms.worker_of(peer);
        // A tensor has at most 2^32 - 1 elements.
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let whole = Operation::allreduce(SIGNATURE, dtype, Arithmetic::Bits, count, Box::new(Vec::new()));
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

/// Checks a transfer before its memory is leased.
pub(crate) fn check(transfer: &Transfer, job: &JobTerms, rank: u16) -> Result<(), Failure> {
    let command = transfer.command();
    check_mode(command, job)?;
    let bad = |problem: String| Failure::new(Code::BadField, format!("{command}: {problem}"));
    let Transfer { direction, peer, dtype, count } = *transfer;
    let role = match direction {
        Direction::Send { .. } => "destination",
        Direction::Receive { .. } => "source",
    };
    match () {
        () if peer >= job.ranks() => {
            return Err(bad(format!("{role} {peer} is not below world {}", job.ranks())).ranks([peer]));
        }
        () if peer == rank => return Err(bad(format!("{role} {peer} is this worker itself")).ranks([peer])),
        () if count == 0 => return Err(bad("a transfer has at least one element".into())),
        () if count > u64::from(u32::MAX) => {
            let problem = format!("{count} elements; packets can address {} of a tensor", u32::MAX);
            return Err(bad(problem).hint("split the tensor"));
        }
        () => {}
    }
    match direction {
        Direction::Send { priority, .. } if priority > 7 => {
            Err(bad(format!("priority {priority} is not between 0 and 7")))
        }
        Direction::Send { .. } => Ok(()),
        Direction::Receive { loss_bound, .. } => check_bound(command, loss_bound, dtype),
    }
}

/// Refuses a command of direct jobs in a job of another mode.
pub(crate) fn check_mode(command: &str, job: &JobTerms) -> Result<(), Failure> {
    if job.is_direct() {
        return Ok(());
    }
    let mode = if job.is_dynamic() { "dynamic" } else { "static" };
    let message =
        format!("{command}: the job is {mode}, and only workers of a direct job send to each other");
    Err(Failure::new(Code::Unsupported, message).hint(r#"open the job with mode "direct""#))
}

/// Checks that a loss bound is a fraction.
pub(crate) fn check_fraction(command: &str, bound: f32) -> Result<(), Failure> {
    if (0.0..=1.0).contains(&bound) {
        return Ok(());
    }
    Err(Failure::new(Code::BadField, format!("{command}: loss_bound {bound} is not between 0 and 1")))
}

fn check_bound(command: &str, bound: f32, dtype: DType) -> Result<(), Failure> {
    check_fraction(command, bound)?;
    let problem = match () {
        () if bound == 1.0 => "something must arrive",
        () if bound > 0.0 && dtype == DType::Int32 => "a tensor of int32 may lack nothing",
        () => return Ok(()),
    };
    let message = format!("{command}: loss_bound {bound}: {problem}");
    Err(Failure::new(Code::Unsupported, message).hint("leave loss_bound out, or give 0"))
}

/// Returns the elements that a received tensor lacks, all of them of the one worker that sent it.
pub(crate) fn loss_of(transfer: &Transfer, loss: &sumac_transport::Loss) -> Loss {
    let ranges = loss.missing.iter().map(|range| (range.start as u64, range.end as u64)).collect();
    Loss {
        elements: transfer.count,
        budget: loss.budget,
        by_worker: vec![loss.by_worker.iter().sum()],
        own: Vec::new(),
        missing: joined(ranges),
    }
}

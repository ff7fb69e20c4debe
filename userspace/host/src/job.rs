//! A job on this host.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use sumac_api::{Failure, Open, OpenReply};
use sumac_control::events::{Fault, Post};
use sumac_job::{DType, JobTerms, OperationDescriptor, OperationId, OperationOrder, ResumePoint};
use sumac_transport::Arithmetic;
use sumac_transport::convert::Codec;
use sumac_wire::CLASSES;

use crate::fragment::arithmetic;
use crate::job_end::{JobEnd, Undiagnosed};
use crate::lanes::Lanes;
use crate::late::LateWorkers;
use crate::log::Log;
use crate::named::Named;
use crate::watch::Watch;
use crate::{ConnectionId, JobId, Nanos, Output};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum JobPhase {
    /// Another job of this host has its name.
    AwaitsName,
    /// It joins, is probed and measured.
    Starting,
    Open,
    /// Its end is reported to the control plane; then it is removed.
    Leaving,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) rank: u16,
    pub(crate) order: OperationOrder,
    /// The user that has opened it.
    pub(crate) uid: u32,
    /// The connection that has opened it, its handle there, and the request.
    pub(crate) opener: (ConnectionId, u64),
    pub(crate) request: u64,
    /// The time of the request.
    pub(crate) asked: Nanos,
    /// The trainer's request, from which another daemon makes the control plane's address and the secret
    /// again.
    pub(crate) open: Open,
    pub(crate) phase: JobPhase,
    /// Whether the opener still has its handle.
    pub(crate) has_handle: bool,
    /// Whether the control plane answers.
    pub(crate) is_connected: bool,
    /// Reports for the control plane.
    pub(crate) posts: VecDeque<Post>,
    pub(crate) end: Option<JobEnd>,
    /// Once all workers have joined.
    pub(crate) running: Option<Box<RunningJob>>,
}

/// A job whose workers have joined.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunningJob {
    pub(crate) terms: JobTerms,
    /// The reply to its clients; the handle is each one's own.
    pub(crate) reply: OpenReply,
    /// Bytes of the daemon's memory.
    pub(crate) held: u64,
    pub(crate) next: OperationId,
    pub(crate) lanes: Lanes,
    pub(crate) log: Log,
    pub(crate) named: Named,
    /// The number of the next transfer to (`true`) or from a rank.
    pub(crate) next_transfers: BTreeMap<(bool, u16), u32>,
    pub(crate) clients: BTreeSet<(ConnectionId, u64)>,
    pub(crate) late: LateWorkers,
    pub(crate) submitted: u64,
    pub(crate) ended: u64,
    /// One cancellation ends the job.
    pub(crate) is_cancelled: bool,
    /// The reason for which it takes no further operation.
    pub(crate) closed: Option<Failure>,
    /// The last reports of values that could not be sent, with their ranks.
    pub(crate) faults: VecDeque<(u16, Fault)>,
    pub(crate) undiagnosed: Option<Undiagnosed>,
    pub(crate) watch: Watch,
}

impl RunningJob {
    /// A job without clients. `point`: the position at which it continues.
    pub(crate) fn new(terms: JobTerms, reply: OpenReply, held: u64, point: &ResumePoint) -> RunningJob {
        let mut lanes = Lanes::new(CLASSES, terms.shards, &terms.resume);
        lanes.begin_at(point);
        RunningJob {
            terms,
            reply,
            held,
            next: point.operation,
            lanes,
            log: Log::default(),
            named: Named::default(),
            next_transfers: BTreeMap::new(),
            clients: BTreeSet::new(),
            late: LateWorkers::default(),
            submitted: 0,
            ended: 0,
            is_cancelled: false,
            closed: None,
            faults: VecDeque::new(),
            undiagnosed: None,
            watch: Watch::default(),
        }
    }

    /// Returns the elements of an operation's tensor in a full packet.
    pub(crate) fn per_chunk(&self, dtype: DType, arithmetic: Arithmetic) -> u64 {
        let codec = Codec::new(self.terms.world, self.terms.wire, self.terms.scale);
        let per_word = codec.values_per_word(dtype, arithmetic);
        u64::from(self.terms.elements) * per_word as u64
    }

    /// Returns whether the engine may send exponents before the operation's values.
    pub(crate) fn is_block_scaled(&self, descriptor: &OperationDescriptor) -> bool {
        let JobTerms { world, wire, scale, elements, .. } = self.terms;
        let (codec, arithmetic) = (Codec::new(world, wire, scale), arithmetic(descriptor));
        // A barrier is one value.
        let count = usize::try_from(descriptor.count.max(1)).unwrap_or(usize::MAX);
        let is_exact = || {
            !self.terms.is_dynamic()
                && descriptor.loss_bound.fraction() == 0.0
                && codec.exact(descriptor.dtype, arithmetic, count, elements.into()).is_some()
        };
        !self.terms.is_direct() && codec.needs_exponent(descriptor.dtype, arithmetic) && !is_exact()
    }
}

/// A job as `stats` and the metrics describe it.
#[derive(Clone, Debug)]
pub struct JobSummary {
    pub name: String,
    pub is_connected: bool,
    pub reply: OpenReply,
    /// Operations that were submitted, and those of them that have ended.
    pub submitted: u64,
    pub ended: u64,
    pub clients: u32,
}

impl Job {
    /// Whether all ranks of the job are on this host.
    pub(crate) fn is_local(&self) -> bool {
        self.open.spec.is_local()
    }

    /// Whether other ranks of the job are on this host too, or may be.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_local() || self.open.spec.ranks_per_worker() > 1
    }

    /// Whether another rank is on this host too.
    pub(crate) fn is_shared_with(&self, rank: u16) -> bool {
        let local = self.open.spec.ranks_per_worker();
        self.is_local() || rank / local == self.rank / local
    }

    /// Whether another rank's job on this host has the membership and the data path.
    pub(crate) fn is_follower(&self) -> bool {
        self.open.spec.is_follower()
    }

    /// The queue in which a host's ranks match an operation: its name's, where the job is in order of names.
    pub(crate) fn queue<'a>(&self, descriptor: &'a OperationDescriptor) -> &'a str {
        match self.order {
            OperationOrder::Submission => "",
            OperationOrder::Name => descriptor.name.as_deref().unwrap_or_default(),
        }
    }

    /// Returns whether it waits for its name or for its workers: nothing is begun.
    pub(crate) fn is_joining(&self) -> bool {
        let is_begun = matches!(self.phase, JobPhase::Open | JobPhase::Leaving) || self.running.is_some();
        !is_begun && self.end.is_none()
    }

    /// Sets its end, unless it has one.
    pub(crate) fn end_with(&mut self, job: JobId, end: JobEnd, out: &mut Vec<Output>) {
        if self.end.is_none() && self.phase != JobPhase::Leaving {
            self.end = Some(end);
            out.push(Output::Wake { job });
        }
    }

    /// Queues a report for the control plane.
    pub(crate) fn post(&mut self, job: JobId, post: Post, out: &mut Vec<Output>) {
        self.posts.push_back(post);
        out.push(Output::Wake { job });
    }
}

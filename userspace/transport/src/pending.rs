//! An operation in its lane's stream of chunks.

use serde::{Deserialize, Serialize};

use crate::{
    bounded_loss::{Ledger, Terms},
    chunk::Span,
    error::{JobError, OpError},
    importance::ImportanceRule,
    operation::{Completion, Loss, OpId, Operation},
    time::Time,
};

/// An operation in progress, or one that has ended and waits to be collected.
#[derive(Serialize, Deserialize)]
pub(crate) struct Pending {
    pub operation: Operation,
    /// Of an operation with a loss bound.
    pub ledger: Option<Ledger>,
    pub importance: ImportanceRule,
    pub chunk: usize,
    /// The first chunk of its values. Its exponent chunk, if it has one, is the one before.
    pub first_seq: u64,
    pub has_exponents: bool,
    /// Chunks of values.
    pub chunks: u64,
    pub remaining: u64,
    pub fault: Option<OpError>,
    /// Chunks of its values that the client is to sum as floats, a bit for each up to the last of them.
    pub left: Vec<u8>,
    /// Of a direct job.
    pub lost: Option<Loss>,
    pub started: Time,
    pub finished: Time,
}

impl Pending {
    /// The operation's first chunk.
    pub fn first_seq(&self) -> u64 {
        self.first_seq
    }

    /// Records a fault unless there is one already.
    pub fn fault_unless(&mut self, fault: OpError) {
        self.fault.get_or_insert(fault);
    }

    /// The index of the first value of chunk `seq`, which must be one of this operation's; 0 for its exponent
    /// chunk.
    pub fn first(&self, seq: u64) -> usize {
        seq.saturating_sub(self.first_seq) as usize * self.chunk
    }

    /// Whether chunk `seq`, one of this operation's, is its exponent chunk.
    pub fn is_exponents(&self, seq: u64) -> bool {
        seq < self.first_seq
    }

    /// Its first chunk, of whichever kind.
    pub fn start(&self) -> u64 {
        self.first_seq - u64::from(self.has_exponents)
    }

    pub fn end(&self) -> u64 {
        self.first_seq + self.chunks
    }

    /// The terms that go with the contribution to chunk `seq`: to the first one, if it has a loss bound.
    pub fn terms(&self, seq: u64) -> Option<Terms> {
        let limit = self.ledger.as_ref().filter(|_| seq == self.start())?.stated_limit()?;
        Some(Terms { limit, end: self.end() })
    }

    /// Whether chunk `seq` is one of this operation's.
    pub fn holds(&self, seq: u64) -> bool {
        (self.start()..self.end()).contains(&seq)
    }

    /// Records a fault of one of this worker's own values. The first in the tensor is kept.
    pub fn own_fault(&mut self, fault: OpError) {
        let keep = match (&self.fault, &fault) {
            (Some(kept), new) => own_index(kept).is_some_and(|kept| own_index(new) >= Some(kept)),
            (None, _) => false,
        };
        if !keep {
            self.fault = Some(fault);
        }
    }

    /// Records a fault of another worker's value in this span, unless there is one already.
    pub fn peer_fault(&mut self, span: Span) {
        let (first, last) = self.elements(span);
        self.fault.get_or_insert(OpError::Peer { first, last });
    }

    /// Records a sum in this span that does not fit, unless there is a fault already.
    pub fn sum_fault(&mut self, span: Span) {
        let (first, last) = self.elements(span);
        self.fault.get_or_insert(OpError::SumTooLarge { first, last });
    }

    /// Leaves chunk `seq`, one of this operation's values, to the client.
    pub fn leave(&mut self, seq: u64) {
        let chunk = seq.saturating_sub(self.first_seq) as usize;
        if chunk / 8 >= self.left.len() {
            self.left.resize(chunk / 8 + 1, 0);
        }
        self.left[chunk / 8] |= 1 << (chunk % 8);
    }

    fn elements(&self, span: Span) -> (usize, usize) {
        let first = self.operation.base as usize + span.first;
        (first, first + span.values - 1)
    }

    pub fn fail(&mut self, why: &JobError) {
        self.remaining = 0;
        self.fault = Some(OpError::Job(why.clone()));
    }

    pub fn complete(self, number: u64) -> Completion {
        let chunks = self.operation.skip.saturating_sub(u64::from(self.has_exponents));
        let skipped = self.chunk.saturating_mul(chunks as usize);
        Completion {
            id: OpId(number),
            from: skipped.min(self.operation.count),
            loss: self.lost.or(self.ledger.map(Ledger::close)),
            result: self.fault.map_or(Ok(()), Err),
            left: self.left,
            buffer: self.operation.buffer,
            started: self.started,
            finished: self.finished,
        }
    }
}

/// The element that a fault of this worker's own values names.
fn own_index(fault: &OpError) -> Option<usize> {
    match fault {
        OpError::Saturated { index, .. }
        | OpError::IntegerTooLarge { index, .. }
        | OpError::NotFinite { index, .. }
        | OpError::ShortBuffer { index, .. } => Some(*index),
        OpError::Peer { .. } | OpError::Disagrees { .. } | OpError::SumTooLarge { .. } | OpError::Job(_) => {
            None
        }
    }
}

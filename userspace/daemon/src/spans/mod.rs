//! OpenTelemetry spans of operations and their steps, off unless configured.
//!
//! ```text
//!  data path threads --- queue, bounded, without locks ---> a task: spans, batches ---> collector (OTLP over HTTP)
//! ```
//!
//! The data path neither waits nor wakes the task: what finds the queue full is dropped and counted.

mod export;
mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use sumac_api::Timing;
use sumac_host::Span;
use sumac_job::{JobTerms, OperationDescriptor, OperationId};

pub use self::export::SpansError;
pub(crate) use self::export::{Collector, SpansTask};

/// The most operations that wait for the task.
const QUEUE: usize = 16_384;

/// Counts of operations.
#[derive(Debug, Default)]
pub(crate) struct SpanCounters {
    pub(crate) exported: AtomicU64,
    /// Dropped because the queue was full.
    pub(crate) overflowed: AtomicU64,
    /// Refused by the collector.
    pub(crate) refused: AtomicU64,
}

/// The queue of ended operations; none when spans are off.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    queue: Option<Arc<ArrayQueue<EndedOperation>>>,
    pub(crate) counters: Arc<SpanCounters>,
}

impl Spans {
    fn on() -> Spans {
        Spans { queue: Some(Arc::new(ArrayQueue::new(QUEUE))), counters: Arc::default() }
    }
}

/// A job, as the spans of its operations describe it.
#[derive(Debug)]
struct TracedJob {
    name: String,
    number: u16,
    epoch: u16,
    /// Equal on all workers, and secret.
    token: u64,
    mode: &'static str,
    world: u16,
    rank: u16,
}

/// An operation with the times of its steps.
#[derive(Debug)]
struct EndedOperation {
    job: Arc<TracedJob>,
    id: OperationId,
    descriptor: OperationDescriptor,
    timing: Timing,
    error: Option<String>,
}

/// The spans of one job's operations.
#[derive(Debug)]
pub(crate) struct JobSpans {
    spans: Arc<Spans>,
    job: Arc<TracedJob>,
}

impl JobSpans {
    pub(crate) fn new(spans: &Arc<Spans>, name: &str, rank: u16, terms: &JobTerms) -> JobSpans {
        let job = TracedJob {
            name: name.to_owned(),
            number: terms.job,
            epoch: terms.epoch,
            token: terms.token,
            mode: terms.mode.name(),
            world: terms.world,
            rank,
        };
        JobSpans { spans: spans.clone(), job: Arc::new(job) }
    }

    /// Records an operation's end. It does not block.
    pub(crate) fn ended(&self, span: Span) {
        let Some(queue) = &self.spans.queue else { return };
        let Span { id, descriptor, timing, error } = span;
        let ended = EndedOperation { job: self.job.clone(), id, descriptor, timing, error };
        if queue.push(ended).is_err() {
            self.spans.counters.overflowed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

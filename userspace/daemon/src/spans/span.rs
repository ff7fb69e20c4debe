//! The spans of one operation: one of the whole, and one of each step below it.
//!
//! All workers of a job give an operation the same trace: its number is derived from the job's token, which
//! they share, and the operation's id. So the spans of all ranks lie side by side.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use sha2::{Digest as _, Sha256};
use sumac_api::Timing;
use sumac_datapath::monotonic_ns;

use super::EndedOperation;

/// The numbers of an operation's trace, and of its first span.
pub(super) fn numbers(operation: &EndedOperation) -> (TraceId, u64) {
    let job = &operation.job;
    let hash = Sha256::new()
        .chain_update(b"sumac operation")
        .chain_update(job.token.to_be_bytes())
        .chain_update(job.number.to_be_bytes())
        .chain_update(job.epoch.to_be_bytes())
        .chain_update(operation.id.0.to_be_bytes())
        .finalize();
    let first = |bytes: &[u8]| bytes.iter().take(8).fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let trace = u128::from(first(&hash)) << 64 | u128::from(first(&hash[8..]));
    let rank = Sha256::new().chain_update(hash).chain_update(job.rank.to_be_bytes()).finalize();
    (TraceId::from(trace), first(&rank))
}

/// Returns whether a trace is among the part of all that `ratio` says: the same ones on all workers.
pub(super) fn is_sampled(trace: TraceId, ratio: f64) -> bool {
    let high = u128::from_be_bytes(trace.to_bytes()) >> 64;
    (high as f64) < ratio * 2f64.powi(64)
}

/// The clock of the spans: the time of day at a moment of the monotonic clock.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    now: SystemTime,
    monotonic: u64,
}

impl Clock {
    pub(super) fn read() -> Clock {
        Clock { now: SystemTime::now(), monotonic: monotonic_ns() }
    }

    fn at(self, monotonic: u64) -> SystemTime {
        let ago = Duration::from_nanos(self.monotonic.saturating_sub(monotonic));
        self.now.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// Returns the steps with their beginnings and ends. A step that was not reached, of an operation that
/// failed, is left out.
fn steps(timing: &Timing) -> Vec<(&'static str, u64, u64)> {
    let Timing { received_ns, taken_ns, sent_ns, arrived_ns, ended_ns } = *timing;
    let ends =
        [("queued", taken_ns), ("first packets", sent_ns), ("network", arrived_ns), ("result", ended_ns)];
    let (mut steps, mut from) = (Vec::new(), received_ns);
    for (name, end) in ends.into_iter().filter(|(_, end)| *end > 0) {
        // A small operation's result may arrive in the round in which its packets left, whose end is `sent`.
        let end = end.clamp(from, ended_ns.max(from));
        steps.push((name, from, end));
        from = end;
    }
    steps
}

/// Returns the operation's spans: the whole first, then the steps in their order.
pub(super) fn spans(operation: &EndedOperation, clock: Clock, scope: &InstrumentationScope) -> Vec<SpanData> {
    let (trace, number) = numbers(operation);
    let id = |step: usize| SpanId::from(number.wrapping_add(step as u64));
    let span = |step: usize, name: &'static str, from, to| SpanData {
        span_context: SpanContext::new(trace, id(step), TraceFlags::SAMPLED, false, TraceState::default()),
        parent_span_id: if step == 0 { SpanId::INVALID } else { id(0) },
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: clock.at(from),
        end_time: clock.at(to),
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: scope.clone(),
    };
    let timing = &operation.timing;
    let status = operation.error.clone().map_or(Status::Unset, Status::error);
    let whole = span(0, operation.descriptor.kind.name(), timing.received_ns, timing.ended_ns);
    let whole = SpanData { attributes: attributes(operation), status, ..whole };
    let steps = (1..).zip(steps(timing)).map(|(step, (name, from, to))| span(step, name, from, to));
    std::iter::once(whole).chain(steps).collect()
}

fn attributes(operation: &EndedOperation) -> Vec<KeyValue> {
    let EndedOperation { job, id, descriptor, .. } = operation;
    let mut attributes = vec![
        KeyValue::new("sumac.job", job.name.clone()),
        KeyValue::new("sumac.job.number", i64::from(job.number)),
        KeyValue::new("sumac.job.epoch", i64::from(job.epoch)),
        KeyValue::new("sumac.mode", job.mode),
        KeyValue::new("sumac.rank", i64::from(job.rank)),
        KeyValue::new("sumac.world", i64::from(job.world)),
        KeyValue::new("sumac.operation", i64::from(id.0)),
        KeyValue::new("sumac.dtype", descriptor.dtype.name()),
        KeyValue::new("sumac.elements", i64::try_from(descriptor.count).unwrap_or(i64::MAX)),
    ];
    if let Some(name) = &descriptor.name {
        attributes.push(KeyValue::new("sumac.operation.name", name.clone()));
    }
    attributes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sumac_job::{CollectiveKind, DType, LossBound, OperationDescriptor, OperationId, Reduction};

    use super::super::TracedJob;
    use super::*;

    fn operation(rank: u16, id: u32, token: u64) -> EndedOperation {
        let job = TracedJob { name: "a".into(), number: 1, epoch: 2, token, mode: "static", world: 2, rank };
        let descriptor = OperationDescriptor {
            kind: CollectiveKind::Allreduce,
            reduction: Reduction::Sum,
            dtype: DType::Float32,
            count: 1,
            root: None,
            name: None,
            is_urgent: false,
            loss_bound: LossBound::default(),
        };
        let timing = Timing { received_ns: 10, taken_ns: 20, sent_ns: 40, arrived_ns: 30, ended_ns: 50 };
        EndedOperation { job: Arc::new(job), id: OperationId(id), descriptor, timing, error: None }
    }

    #[test]
    fn ranks_share_an_operations_trace_and_no_span() {
        let of = |rank, id, token| numbers(&operation(rank, id, token));
        let ((trace, first), (same, second)) = (of(0, 7, 99), of(1, 7, 99));
        assert_eq!(trace, same);
        assert_ne!(first, second);
        assert!(trace != of(0, 8, 99).0 && trace != of(0, 7, 98).0);
        assert_eq!((first, trace), (of(0, 7, 99).1, of(0, 7, 99).0));
    }

    #[test]
    fn a_part_of_the_traces_is_sampled() {
        let sampled =
            |ratio| (0..1000).filter(|id| is_sampled(numbers(&operation(0, *id, 5)).0, ratio)).count();
        assert_eq!((sampled(0.0), sampled(1.0)), (0, 1000));
        assert!((150..350).contains(&sampled(0.25)), "{}", sampled(0.25));
    }

    #[test]
    fn steps_follow_each_other_from_the_command_to_the_end() {
        let steps_of = |timing| steps(&timing);
        let steps = steps_of(operation(0, 1, 1).timing);
        let expected =
            [("queued", 10, 20), ("first packets", 20, 40), ("network", 40, 40), ("result", 40, 50)];
        assert_eq!(steps, expected);
        let rejected = Timing { received_ns: 10, ended_ns: 15, ..Timing::default() };
        assert_eq!(steps_of(rejected), [("result", 10, 15)]);
    }
}

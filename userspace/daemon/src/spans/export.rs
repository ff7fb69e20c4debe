//! The task that makes spans of ended operations and sends them to the collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::span::{Clock, is_sampled, numbers, spans};
use super::{EndedOperation, Spans};
use crate::config::TracingConfig;

/// The time between two looks at the queue.
const INTERVAL: Duration = Duration::from_millis(200);
/// The most operations of one request to the collector.
const BATCH: usize = 512;
/// The time for one request.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for the last requests when the daemon stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
#[error("cannot send spans to {endpoint}: {source}; correct `otlp` in [tracing]")]
pub struct SpansError {
    endpoint: String,
    source: ExporterBuildError,
}

/// The collector that takes the spans.
#[derive(Debug)]
pub(crate) struct Collector {
    exporter: SpanExporter,
    endpoint: String,
    sample_ratio: f64,
}

impl Collector {
    pub(crate) fn new(config: &TracingConfig) -> Result<Collector, SpansError> {
        let endpoint = config.endpoint();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(HyperClient::with_default_connector(EXPORT_TIMEOUT, None))
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build();
        let mut exporter = exporter.map_err(|source| SpansError { endpoint: endpoint.clone(), source })?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let about =
            [KeyValue::new("service.version", env!("CARGO_PKG_VERSION")), KeyValue::new("host.name", host)];
        let resource = Resource::builder_empty().with_service_name("sumac-daemon").with_attributes(about);
        exporter.set_resource(&resource.build());
        Ok(Collector { exporter, endpoint, sample_ratio: config.sample_ratio })
    }
}

/// The running task.
#[derive(Debug)]
pub(crate) struct SpansTask {
    task: JoinHandle<()>,
    closing: Arc<Notify>,
}

impl SpansTask {
    /// Starts the task, and returns the queue that it empties.
    pub(crate) fn start(collector: Collector, runtime: &Handle) -> (Spans, SpansTask) {
        tracing::info!(endpoint = collector.endpoint, "sending spans of operations");
        let (spans, closing) = (Spans::on(), Arc::new(Notify::new()));
        let queue = Spans { queue: spans.queue.clone(), counters: spans.counters.clone() };
        let task = runtime.spawn(run(collector, queue, closing.clone()));
        (spans, SpansTask { task, closing })
    }

    /// Sends what is in the queue, and ends the task.
    pub(crate) fn close(self, runtime: &Runtime) {
        self.closing.notify_one();
        // What the collector does not take in time is lost.
        drop(runtime.block_on(async { tokio::time::timeout(CLOSE_TIMEOUT, self.task).await }));
    }
}

async fn run(collector: Collector, spans: Spans, closing: Arc<Notify>) {
    let Some(queue) = &spans.queue else { return };
    let scope = InstrumentationScope::builder("sumac").with_version(env!("CARGO_PKG_VERSION")).build();
    loop {
        let is_closing = tokio::select! {
            () = closing.notified() => true,
            () = tokio::time::sleep(INTERVAL) => false,
        };
        while !queue.is_empty() {
            let batch: Vec<EndedOperation> = std::iter::from_fn(|| queue.pop()).take(BATCH).collect();
            export(&collector, &spans, &batch, &scope).await;
        }
        if is_closing {
            return;
        }
    }
}

async fn export(collector: &Collector, all: &Spans, batch: &[EndedOperation], scope: &InstrumentationScope) {
    let is_traced = |operation: &&EndedOperation| is_sampled(numbers(operation).0, collector.sample_ratio);
    let traced: Vec<&EndedOperation> = batch.iter().filter(is_traced).collect();
    if traced.is_empty() {
        return;
    }
    let clock = Clock::read();
    let made: Vec<SpanData> = traced.iter().flat_map(|operation| spans(operation, clock, scope)).collect();
    let add = |counter: &AtomicU64| {
        counter.fetch_add(traced.len() as u64, Ordering::Relaxed);
    };
    match collector.exporter.export(made).await {
        Ok(()) => add(&all.counters.exported),
        Err(error) => {
            add(&all.counters.refused);
            let (operations, endpoint) = (traced.len(), &collector.endpoint);
            log_limited!(warn, operations, endpoint, %error, "the collector did not take spans");
        }
    }
}

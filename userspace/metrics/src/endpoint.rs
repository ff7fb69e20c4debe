//! The endpoint: `GET /metrics` over HTTP, in the OpenMetrics format for scrapers that accept it, else in
//! Prometheus' own.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::group::{Encode, Source};
use crate::text;

const OPEN_METRICS: &str = "application/openmetrics-text";
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Connections at one time. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 16;
/// The time for a request's header. A connection that sends none ends.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after an accept that failed, mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for scrapes of metrics: {source}; choose another address for `metrics` (sumac-agg: --metrics)"
)]
pub struct MetricsError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Listens for scrapes.
pub fn listen(address: SocketAddr) -> Result<TcpListener, MetricsError> {
    let bind = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|source| MetricsError { address, source })
}

/// Answers scrapes until the runtime ends.
pub fn serve(listener: TcpListener, program: impl Encode, runtime: &Handle) -> std::io::Result<()> {
    let _context = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    tracing::info!(address = %listener.local_addr()?, "listening for scrapes of metrics");
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Source(program)));
    runtime.spawn(accept(listener, Arc::new(registry)));
    Ok(())
}

async fn accept(listener: tokio::net::TcpListener, registry: Arc<Registry>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // The semaphore is never closed.
    while let Ok(place) = places.clone().acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("cannot accept a scrape of metrics: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let registry = registry.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(request, registry.clone()));
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            // A scraper that goes away or speaks no HTTP is its own loss.
            drop(http.serve_connection(TokioIo::new(stream), answer).await);
            drop(place);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    registry: Arc<Registry>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let refusal = |status, why: &'static str| {
        let mut response = Response::new(Full::from(why));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/metrics" {
        return Ok(refusal(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"));
    }
    if request.method() != Method::GET {
        let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return Ok(response);
    }
    // The program may take some time to read its statistics.
    let encoded = spawn_blocking(move || {
        let mut text = String::new();
        encode(&mut text, &registry).map(|()| text)
    });
    let Ok(Ok(open_metrics)) = encoded.await else {
        return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, "the statistics cannot be read\n"));
    };
    let (format, text) = match accepts_open_metrics(&request) {
        true => (OPEN_METRICS_TYPE, open_metrics),
        false => (PROMETHEUS_TYPE, text::prometheus(&open_metrics)),
    };
    let mut response = Response::new(Full::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format));
    Ok(response)
}

fn accepts_open_metrics(request: &Request<Incoming>) -> bool {
    let accepted = request.headers().get_all(ACCEPT).iter();
    accepted.filter_map(|value| value.to_str().ok()).any(|value| value.contains(OPEN_METRICS))
}

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
use prometheus_client::registry::Registry;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::cache::Cache;
use crate::connections::Connections;
use crate::group::{Encode, Source};

const OPEN_METRICS: &str = "application/openmetrics-text";
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The time for a request's header. A connection that sends none ends.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// The time of a connection, which has one request, up to the last byte of the answer. Prometheus gives up
/// after 10 seconds by default.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause after an accept that failed, mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for scrapes of metrics: {source}; choose another address for `metrics` \
    (sumac-agg: --metrics)"
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
    runtime.spawn(accept(listener, Arc::new(Cache::new(registry)), CONNECTION_TIMEOUT));
    Ok(())
}

async fn accept(listener: tokio::net::TcpListener, cache: Arc<Cache>, time: Duration) {
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                // A scraper that goes away, speaks no HTTP, or does not read is its own loss.
                let connection = timeout(time, converse(stream, cache.clone()));
                connections.add(client.ip(), tokio::spawn(connection).abort_handle());
            }
            Err(error) => {
                tracing::warn!("cannot accept a scrape of metrics: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers one request.
async fn converse(stream: TcpStream, cache: Arc<Cache>) -> hyper::Result<()> {
    let answer = service_fn(|request| answer(request, cache.clone()));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
    http.serve_connection(TokioIo::new(stream), answer).await
}

async fn answer(request: Request<Incoming>, cache: Arc<Cache>) -> Result<Response<Full<Bytes>>, Infallible> {
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
    let Some(rendering) = cache.get().await else {
        return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, "the statistics cannot be read\n"));
    };
    let (format, text) = match accepts_open_metrics(&request) {
        true => (OPEN_METRICS_TYPE, rendering.open_metrics),
        false => (PROMETHEUS_TYPE, rendering.prometheus),
    };
    let mut response = Response::new(Full::new(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format));
    Ok(response)
}

fn accepts_open_metrics(request: &Request<Incoming>) -> bool {
    let accepted = request.headers().get_all(ACCEPT).iter();
    accepted.filter_map(|value| value.to_str().ok()).any(|value| value.contains(OPEN_METRICS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;
    use std::io::{Read as _, Write as _};

    use crate::group::{Encoder, Group, Metric, Unit};

    /// More than the buffers of a connection's sockets hold.
    const LEN: usize = 64 << 20;

    const LABELED: Group<u64> = Group {
        labels: &["label"],
        metrics: &[Metric::counter("labeled", Unit::None, "A long label", |it| *it)],
    };

    #[derive(Debug)]
    struct Long;

    impl Encode for Long {
        fn encode(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
            LABELED.encode(encoder, &[(vec!["x".repeat(LEN)], 1)])
        }
    }

    #[tokio::test]
    async fn a_scraper_that_does_not_read_is_disconnected() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Source(Long)));
        let cache = Arc::new(Cache::new(registry));
        cache.get().await.unwrap();
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        timeout(Duration::from_secs(1), converse(stream, cache)).await.unwrap_err();
        let mut answer = Vec::new();
        // The connection may also be reset.
        let _ = client.read_to_end(&mut answer);
        assert!(answer.len() < LEN, "{} bytes", answer.len());
    }
}

//! The metrics endpoint of `sumac-agg serve`: the statuses that a scrape reads.

use std::{net::TcpListener, sync::Arc};

use anyhow::Context as _;
use sumac_agg::metrics::AggregatorMetrics;
use sumac_agg_job::plane::AggregatorPlane;
use sumac_control::{coordinator::overview::Overview, plane::PlaneKind, server::Monitor};
use tokio::runtime::Runtime;

use super::answers::Deciding;

/// Answers scrapes, if there is a listener.
pub fn serve_metrics(
    listener: Option<TcpListener>,
    runtime: &Runtime,
    metrics: AggregatorMetrics,
) -> anyhow::Result<()> {
    let Some(listener) = listener else { return Ok(()) };
    sumac_metrics::serve(listener, metrics, runtime.handle()).context("cannot answer scrapes of metrics")
}

pub fn of_plane<P: AggregatorPlane>(plane: &Arc<P>, deciding: &Deciding) -> AggregatorMetrics {
    let plane = plane.clone();
    let status = move || plane.status().map_err(|error| error.to_string());
    AggregatorMetrics::new(P::KIND, Some(Box::new(status)), overview(deciding))
}

pub fn without_plane(deciding: &Deciding) -> AggregatorMetrics {
    AggregatorMetrics::new(PlaneKind::None, None, overview(deciding))
}

fn overview(deciding: &Deciding) -> Box<dyn Fn() -> Option<Overview> + Send + Sync> {
    let deciding = deciding.clone();
    Box::new(move || deciding.get().and_then(Monitor::overview))
}

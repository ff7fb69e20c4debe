//! The metrics endpoint of `sumac-agg serve`: the statuses that a scrape reads.

use std::{net::TcpListener, sync::Arc};

use anyhow::Context as _;
use sumac_agg::{
    SwitchPlane,
    metrics::AggregatorMetrics,
    plane::EbpfPlane,
    status::{host as host_status, switch as switch_status},
};
use sumac_agg_host::HostDataPlane;
use sumac_control::server::Monitor;
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

pub fn for_ebpf(plane: &Arc<EbpfPlane>, deciding: &Deciding) -> AggregatorMetrics {
    let plane = plane.clone();
    let status = move || plane.aggregator.status().map_err(|error| error.to_string());
    AggregatorMetrics::new("ebpf", Some(Box::new(status)), overview(deciding))
}

pub fn for_host(plane: &Arc<HostDataPlane>, deciding: &Deciding) -> AggregatorMetrics {
    let plane = plane.clone();
    let status = move || host_status::status(&plane).map_err(|error| error.to_string());
    AggregatorMetrics::new("host", Some(Box::new(status)), overview(deciding))
}

pub fn for_switch(plane: &Arc<SwitchPlane>, deciding: &Deciding) -> AggregatorMetrics {
    let plane = plane.clone();
    let status = move || switch_status::status(&plane).map_err(|error| error.to_string());
    AggregatorMetrics::new("p4", Some(Box::new(status)), overview(deciding))
}

pub fn without_plane(deciding: &Deciding) -> AggregatorMetrics {
    AggregatorMetrics::new("none", None, overview(deciding))
}

fn overview(
    deciding: &Deciding,
) -> Box<dyn Fn() -> Option<sumac_control::coordinator::overview::Overview> + Send + Sync> {
    let deciding = deciding.clone();
    Box::new(move || deciding.get().and_then(Monitor::overview))
}

//! The metrics of `sumac-agg serve` for Prometheus, and the list of them: the fields of its two statuses.

mod control;
mod data;

use std::{collections::BTreeMap, fmt};

use sumac_control::{coordinator::overview::Overview, plane::PlaneKind};
use sumac_metrics::{Description, Encode, Encoder, Group, Metric, Unit, process};

use sumac_agg_job::status::Status;

const INFO: Group<()> = Group {
    labels: &["version", "plane"],
    metrics: &[Metric::info(
        "sumac_aggregator",
        "The version and the data plane of `sumac-agg serve`: `ebpf`, `host`, `p4` or `none`",
    )],
};

const ATTACHED: Group<bool> = Group {
    labels: &[],
    metrics: &[Metric::gauge(
        "sumac_aggregator_attached",
        Unit::None,
        "1: the data plane answers; 0: its programs are detached, or its threads have ended",
        |it| f64::from(u8::from(*it)),
    )],
};

type Read<T> = Box<dyn Fn() -> T + Send + Sync>;

/// A scraped `sumac-agg serve`.
pub struct AggregatorMetrics {
    plane: PlaneKind,
    /// The status of the data plane, where there is one.
    status: Option<Read<Result<Status, String>>>,
    /// The state of the control plane; none of a rack, or before it listens.
    overview: Read<Option<Overview>>,
}

impl fmt::Debug for AggregatorMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AggregatorMetrics").field("plane", &self.plane).finish_non_exhaustive()
    }
}

impl AggregatorMetrics {
    pub fn new(
        plane: PlaneKind,
        status: Option<Read<Result<Status, String>>>,
        overview: Read<Option<Overview>>,
    ) -> AggregatorMetrics {
        AggregatorMetrics { plane, status, overview }
    }
}

impl Encode for AggregatorMetrics {
    fn encode(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let about = vec![env!("CARGO_PKG_VERSION").to_owned(), self.plane.name().to_owned()];
        INFO.encode(encoder, &[(about, ())])?;
        let overview = (self.overview)();
        if let Some(status) = &self.status {
            let status = status().inspect_err(|error| {
                tracing::warn!(error, "a scrape cannot read the data plane");
            });
            let is_attached = status.as_ref().is_ok_and(Status::is_attached);
            ATTACHED.encode(encoder, &[(Vec::new(), is_attached)])?;
            if let Ok(status) = status {
                data::encode(encoder, status, &names(overview.as_ref()))?;
            }
        }
        if let Some(overview) = &overview {
            control::encode(encoder, overview)?;
        }
        process::encode(encoder)
    }
}

/// Returns the names of the jobs, by number.
fn names(overview: Option<&Overview>) -> BTreeMap<u16, String> {
    let jobs = overview.into_iter().flat_map(|overview| &overview.jobs);
    jobs.map(|job| (job.job, job.name.clone())).collect()
}

/// Returns the descriptions of all metrics, in the order of a scrape.
pub fn describe() -> Vec<Description> {
    let data = INFO.describe().chain(ATTACHED.describe()).chain(data::describe());
    data.chain(control::describe()).chain(process::describe()).collect()
}

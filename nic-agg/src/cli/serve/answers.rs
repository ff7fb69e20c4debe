//! Answers to the command line, about the data plane and the control plane.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use serde::Serialize;
use sumac_agg::{
    control_status,
    local::{self, Question},
    status::text as status_text,
};
use sumac_agg_job::{drops::numbers, plane::AggregatorPlane, status::with_rates};
use sumac_agg_layout::Drops;
use sumac_control::server::Monitor;

type Answer = Result<String, String>;

/// Answers `sumac-agg status`, `control` and `drop`; jobs do not need it.
pub fn answer_questions(name: &str, answer: impl Fn(Question) -> Answer + Send + 'static) {
    if let Err(error) = local::serve(name, answer) {
        tracing::warn!(%error, "cannot listen as @{name}: `sumac-agg status` cannot ask this process");
    }
}

/// The control plane of this process, once it listens; a rack's has none that decides.
pub type Deciding = Arc<OnceLock<Monitor>>;

/// Returns the names of the jobs, by number.
fn names(deciding: &Deciding) -> BTreeMap<u16, String> {
    let overview = deciding.get().and_then(Monitor::overview);
    let jobs = overview.into_iter().flat_map(|overview| overview.jobs);
    jobs.map(|job| (job.job, job.name)).collect()
}

/// Returns the function that answers about a data plane and its jobs.
pub fn about_plane<P: AggregatorPlane>(
    plane: &Arc<P>,
    deciding: &Deciding,
) -> impl Fn(Question) -> Answer + Send + use<P> {
    let (plane, deciding) = (plane.clone(), deciding.clone());
    move |question| match question {
        Question::Status { json } => {
            let mut status = with_rates(|| plane.status()).map_err(text)?;
            status.set_notes(names(&deciding), plane.slots_reasons().all());
            status_text::text(&status, json).map_err(text)
        }
        Question::Drop { job, up, down } => {
            tracing::warn!(job, up, down, "dropping packets on purpose: so many in 2^32");
            let jobs = numbers(job).map_err(text)?;
            plane.set_drops(jobs, Drops { up, down }).map(|()| String::new()).map_err(text)
        }
        Question::SlotsReasons => json(&plane.slots_reasons().all()),
        Question::JobNames => json(&names(&deciding)),
        Question::Ping => Ok(String::new()),
        Question::Control { .. } => Err("its control plane tells that, by its TCP port".into()),
    }
}

/// Returns the function that answers about a control plane. `monitor`: none of a rack's.
pub fn about_control(monitor: Option<Monitor>) -> impl Fn(Question) -> Answer + Send {
    move |question| match question {
        Question::Ping => Ok(String::new()),
        Question::Control { json: is_json } => {
            let monitor =
                monitor.as_ref().ok_or("a rack's control plane decides nothing: ask at its root")?;
            let overview = monitor.overview().ok_or("it is being started; ask again")?;
            if is_json { Ok(json(&overview)? + "\n") } else { Ok(control_status::text(&overview)) }
        }
        _ => Err("the aggregator tells that, and not its control plane".into()),
    }
}

fn json(value: &impl Serialize) -> Answer {
    serde_json::to_string(value).map_err(text)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

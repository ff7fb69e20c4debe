//! The counters of the data path and the host program, as the local API reports them.

use serde_json::{Map, Value};

use crate::datapath::DatapathStats;

/// The counters of the data path and the host program.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) jobs: Vec<MeasuredJob>,
    /// The jobs that this host is a parameter host of.
    pub(crate) hosted: Vec<Value>,
    pub(crate) ports: Vec<Value>,
    pub(crate) threads: Vec<Value>,
    pub(crate) frames: Value,
    pub(crate) host_program: Map<String, Value>,
}

/// The counters of a job.
#[derive(Debug)]
pub(crate) struct MeasuredJob {
    pub(crate) job: u16,
    pub(crate) state: String,
    pub(crate) error: String,
    pub(crate) engine: Value,
    pub(crate) lanes: Vec<Value>,
}

/// Returns the data path's report as the local API's.
pub(super) fn measured(
    threads: &[DatapathStats],
    host_program: Map<String, Value>,
) -> Result<Measured, serde_json::Error> {
    let jobs = DatapathStats::merge_jobs(threads).into_iter().map(|(job, lanes)| {
        Ok(MeasuredJob {
            job: job.job,
            state: job.state.to_owned(),
            error: job.error.unwrap_or_default(),
            engine: serde_json::to_value(&job.engine)?,
            lanes: lanes.into_iter().map(serde_json::to_value).collect::<Result<_, _>>()?,
        })
    });
    let reports = threads.iter().map(|thread| {
        let mut report = serde_json::to_value(thread)?;
        if let Value::Object(report) = &mut report {
            // These are reported elsewhere.
            report.retain(|key, _| key != "jobs" && key != "hosted" && key != "port");
        }
        Ok(report)
    });
    let hosted = DatapathStats::merge_hosted(threads);
    Ok(Measured {
        jobs: jobs.collect::<Result<_, serde_json::Error>>()?,
        hosted: hosted.jobs.iter().map(serde_json::to_value).collect::<Result<_, _>>()?,
        ports: threads.iter().map(|thread| serde_json::to_value(&thread.port)).collect::<Result<_, _>>()?,
        threads: reports.collect::<Result<_, serde_json::Error>>()?,
        frames: serde_json::to_value(DatapathStats::frames(threads))?,
        host_program,
    })
}

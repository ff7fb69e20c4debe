//! The state of a job whose lanes are on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use sumac_host::JobId;
use sumac_job::PathMeasure;
use sumac_transport::JobError;

use super::handoff::HandoffQueue;
use super::job::{Event, EventSink};

/// Combines the states of a job's lanes into one event. It changes with a lane's state, never with a packet.
pub(super) struct Progress {
    pub(super) job: JobId,
    pub(super) shards: u16,
    /// Whether UDP is measured for a choice: silence is a measure, and no failure.
    is_trial: bool,
    /// The measure of a trial.
    measure: OnceLock<PathMeasure>,
    lanes_not_ready: AtomicUsize,
    /// The error of the first lane that failed. Each thread fails its lanes with it.
    failure: OnceLock<JobError>,
    /// The queues of all threads, which wake them.
    handoffs: Arc<[HandoffQueue]>,
    sink: EventSink,
}

impl Progress {
    /// Returns the state of a job of which this many lanes are not ready.
    pub(super) fn new(
        job: JobId,
        shards: u16,
        is_trial: bool,
        lanes: usize,
        handoffs: Arc<[HandoffQueue]>,
        sink: EventSink,
    ) -> Progress {
        Progress {
            job,
            shards,
            is_trial,
            measure: OnceLock::new(),
            lanes_not_ready: lanes.into(),
            failure: OnceLock::new(),
            handoffs,
            sink,
        }
    }

    pub(super) fn report(&self, event: Event) {
        (self.sink)(event);
    }

    /// Counts a lane as ready, and reports the job once all its lanes are: in a trial what was measured.
    pub(super) fn lane_ready(&self) {
        if self.lanes_not_ready.fetch_sub(1, Ordering::AcqRel) == 1 && self.failure.get().is_none() {
            let (job, measure) = (self.job, self.measure.get().copied());
            self.report(
                measure.map_or(Event::JobReady { job }, |measure| Event::JobMeasured { job, measure }),
            );
        }
    }

    /// Reports the measure of the lane that measures; of a trial once all lanes have had an answer.
    pub(super) fn lane_measured(&self, measure: PathMeasure) {
        if self.is_trial {
            // One lane measures, once.
            let _ = self.measure.set(measure);
            return self.lane_ready();
        }
        self.report(Event::JobMeasured { job: self.job, measure });
    }

    /// Fails the job, and its other lanes in the next round of their threads, with the first lane's error.
    pub(super) fn lane_failed(&self, error: &JobError) {
        let is_measured = self.is_trial && self.lanes_not_ready.load(Ordering::Acquire) == 0;
        if is_measured || self.failure.set(error.clone()).is_err() {
            return;
        }
        self.handoffs.iter().for_each(HandoffQueue::job_failed);
        self.report(match error {
            JobError::NoReply { .. } | JobError::MtuTooSmall { .. } if self.is_trial => {
                Event::JobMeasured { job: self.job, measure: PathMeasure::default() }
            }
            error => Event::JobFailed { job: self.job, error: error.clone() },
        });
    }

    pub(super) fn failure(&self) -> Option<&JobError> {
        self.failure.get()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const MEASURE: PathMeasure = PathMeasure { rtt_ns: 1, shortest_ns: 1, bytes_per_s: 1 };

    /// Returns what a job of two lanes reports, of which one measures.
    fn reports(is_trial: bool, act: impl Fn(&Progress)) -> Vec<String> {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let to = reports.clone();
        let sink: EventSink = Arc::new(move |event| {
            to.lock().unwrap().push(match event {
                Event::JobMeasured { measure, .. } => format!("measured {}", measure.bytes_per_s),
                Event::JobReady { .. } => "ready".to_owned(),
                Event::JobFailed { error, .. } => error.to_string(),
                other => format!("{other:?}"),
            });
        });
        act(&Progress::new(7, 2, is_trial, 2, Arc::new([]), sink));
        std::mem::take(&mut *reports.lock().unwrap())
    }

    #[test]
    fn a_trial_has_one_measure_which_is_of_all_lanes() {
        let silent = JobError::NoReply { probes: 5, waited_ms: 500 };
        let ended = JobError::Ended { reason: "it ends".to_owned() };
        let measured = |job: &Progress| job.lane_measured(MEASURE);
        assert_eq!(reports(true, measured), [""; 0], "the other lane has no answer yet");
        let both = |job: &Progress| [measured, Progress::lane_ready].iter().for_each(|step| step(job));
        assert_eq!(reports(true, both), ["measured 1"]);
        let fails = |error: &JobError, job: &Progress| {
            measured(job);
            job.lane_failed(error);
            job.lane_failed(error);
        };
        assert_eq!(reports(true, |job| fails(&silent, job)), ["measured 0"], "a silent lane is no failure");
        assert_eq!(reports(true, |job| fails(&ended, job)), ["the job was ended: it ends"]);
        let late = |job: &Progress| {
            both(job);
            job.lane_failed(&silent);
        };
        assert_eq!(reports(true, late), ["measured 1"]);
        assert_eq!(reports(false, |job| fails(&ended, job)), ["measured 1", "the job was ended: it ends"]);
    }
}

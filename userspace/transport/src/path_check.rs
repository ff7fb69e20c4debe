//! Checks the path of a running job when no result has come for long, with the probes of the handshake. So a
//! path that no longer carries the job's packets ends the job with the same named errors, and a path that
//! does not answer is distinguished from workers that are late.
//!
//! A check of a static job whose first probe is not answered sends a survey: a probe without elements on each
//! path. If most paths are dead, a query and the elements after it mostly go by dead ones, and no result
//! comes for seconds.

use serde::{Deserialize, Serialize};
use sumac_wire::Header;

use crate::{
    error::JobError,
    handshake::{Handshake, Outcome},
    params::{JobParams, Tuning},
    time::Time,
};

/// Nanoseconds without a result after which the path is checked, and after which it is checked again.
const IDLE: u64 = 1_000_000_000;
/// Nanoseconds for which the aggregator may say that it does not have the job. Mostly the job has ended, and
/// the control plane is about to say why.
const UNKNOWN_TIMEOUT: u64 = 2_000_000_000;
/// Nanoseconds in which the probes of a survey are answered.
const SURVEY_TIMEOUT: u64 = 200_000_000;
/// Marks the numbers of a survey's probes; the rest is the path.
const SURVEY: u32 = 1 << 30;
/// The numbers with which checks begin.
const FIRST: u32 = 0xffff;

/// Probes without elements on all paths.
#[derive(Debug, Serialize, Deserialize)]
struct Survey {
    answered: Box<[bool]>,
    /// Paths that were probed.
    sent: usize,
    until: Time,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PathCheck {
    /// The start of the wait: the last result or answer, or the first packet after a time without packets in
    /// flight.
    since: Time,
    handshake: Option<Handshake>,
    /// The number of the latest check's first probe.
    first: u32,
    survey: Option<Survey>,
    unknown_since: Option<Time>,
}

impl PathCheck {
    /// Begins a wait for results.
    pub fn restart(&mut self, now: Time) {
        let PathCheck { first, .. } = *self;
        *self = PathCheck { since: now, first, survey: self.survey.take(), ..PathCheck::default() };
    }

    /// The time at which [`PathCheck::on_timeout`] is to be called, as long as chunks are in flight.
    pub fn deadline(&self) -> Option<Time> {
        let check = match &self.handshake {
            Some(handshake) => handshake.deadline(),
            None => Some(self.since.plus(IDLE)),
        };
        let unknown = self.unknown_since.map(|since| since.plus(UNKNOWN_TIMEOUT));
        let survey = self.survey.as_ref().map(|survey| survey.until);
        check.into_iter().chain(unknown).chain(survey).min()
    }

    /// Begins or continues a check that is due. Returns the reason for which the path is lost.
    pub fn on_timeout(&mut self, now: Time, tuning: &Tuning, params: &JobParams) -> Option<JobError> {
        if self.unknown_since.is_some_and(|since| now.since(since) >= UNKNOWN_TIMEOUT) {
            return Some(JobError::UnknownJob { job: params.job, epoch: params.epoch });
        }
        match &mut self.handshake {
            Some(handshake) => {
                let outcome = handshake.on_timeout(now, params);
                let is_static = params.dynamic.is_none() && params.direct.is_none();
                if handshake.number() > self.first && is_static && tuning.paths > 1 && self.survey.is_none() {
                    let answered = vec![false; usize::from(tuning.paths)].into();
                    self.survey = Some(Survey { answered, sent: 0, until: now.plus(SURVEY_TIMEOUT) });
                }
                match outcome {
                    Some(Outcome::Failed(why)) => Some(why),
                    Some(Outcome::Ready(_)) | None => None,
                }
            }
            None => {
                if now.since(self.since) >= IDLE {
                    // Each check begins on another path.
                    self.first = self.first.wrapping_add(1) & FIRST;
                    self.handshake =
                        Some(Handshake::of_running_job(self.first, tuning, params.longest_outage));
                }
                None
            }
        }
    }

    /// The next probe to send: its elements and its number.
    pub fn poll(&mut self, now: Time, chunk: u16) -> Option<(u16, u32)> {
        if let Some(survey) = self.survey.as_mut().filter(|survey| survey.sent < survey.answered.len()) {
            survey.sent += 1;
            return Some((0, SURVEY | (survey.sent - 1) as u32));
        }
        self.handshake.as_mut()?.poll(now, chunk)
    }

    /// Processes the answer to a probe. Returns the reason for which the job cannot go on.
    pub fn on_report(&mut self, now: Time, report: &Header, params: &JobParams) -> Option<JobError> {
        self.unknown_since = None;
        match self.handshake.as_mut()?.on_report(now, report, params)? {
            Outcome::Ready(_) => {
                self.restart(now);
                None
            }
            Outcome::Failed(why) => Some(why),
        }
    }

    /// The path of a survey's probe that a report answers.
    pub fn on_survey_report(&mut self, report: &Header) -> Option<u16> {
        let path = (report.seq & SURVEY != 0 && report.elements == 0).then_some(report.seq as u16)?;
        let answered = self.survey.as_mut().and_then(|survey| survey.answered.get_mut(usize::from(path)));
        answered.into_iter().for_each(|answered| *answered = true);
        Some(path)
    }

    /// The outcome of a survey that is over: whether each path has answered.
    pub fn surveyed(&mut self, now: Time) -> Option<Box<[bool]>> {
        self.survey.take_if(|survey| now >= survey.until).map(|survey| survey.answered)
    }

    /// Records that the aggregator does not have the job.
    pub fn on_unknown_job(&mut self, now: Time) {
        self.unknown_since.get_or_insert(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::probe;

    const MS: u64 = 1_000_000;

    fn params() -> JobParams {
        JobParams::new(1, 2, 8, 256)
    }

    /// No survey: it is the engine that concludes one.
    fn one_path() -> Tuning {
        Tuning { paths: 1, ..Tuning::default() }
    }

    /// Lets time pass from deadline to deadline until `end`. `answers` says which probes are answered, by
    /// their elements.
    fn run(
        check: &mut PathCheck,
        end: u64,
        answers: impl Fn(u16) -> bool,
    ) -> Result<Vec<(u64, u16)>, (u64, JobError)> {
        let mut sent = Vec::new();
        loop {
            let Some(now) = check.deadline().filter(|at| at.0 <= end * MS) else { return Ok(sent) };
            if let Some(error) = check.on_timeout(now, &one_path(), &params()) {
                return Err((now.0 / MS, error));
            }
            while let Some((elements, number)) = check.poll(now, 256) {
                sent.push((now.0 / MS, elements));
                if answers(elements) {
                    let report = probe(&params(), now, elements, number);
                    assert_eq!(check.on_report(now, &report, &params()), None);
                }
            }
        }
    }

    #[test]
    fn a_path_that_answers_is_probed_once_a_second() {
        let mut check = PathCheck::default();
        check.restart(Time(500 * MS));
        let sent = run(&mut check, 4_600, |_| true);
        assert_eq!(sent, Ok(vec![(1_500, 256), (2_500, 256), (3_500, 256), (4_500, 256)]));
        check.restart(Time(4_600 * MS));
        assert_eq!(check.deadline(), Some(Time(5_600 * MS)), "a result came");
    }

    #[test]
    fn a_path_that_is_lost_is_named() {
        let error = run(&mut PathCheck::default(), 60_000, |_| false).unwrap_err();
        assert!(matches!(error, (11_000, JobError::NoReply { waited_ms: 10_000, .. })), "{error:?}");
        let error = run(&mut PathCheck::default(), 60_000, |elements| elements == 0).unwrap_err();
        assert!(matches!(error, (11_000, JobError::MtuTooSmall { elements: 256, .. })), "{error:?}");
    }

    #[test]
    fn a_job_that_stays_unknown_ends_and_one_that_returns_goes_on() {
        let mut check = PathCheck::default();
        check.on_unknown_job(Time(100 * MS));
        check.on_unknown_job(Time(900 * MS));
        let error = run(&mut check, 60_000, |_| false).unwrap_err();
        assert_eq!(error, (2_100, JobError::UnknownJob { job: 1, epoch: 1 }));
        let mut check = PathCheck::default();
        check.on_unknown_job(Time(100 * MS));
        assert!(run(&mut check, 60_000, |_| true).is_ok());
    }
}

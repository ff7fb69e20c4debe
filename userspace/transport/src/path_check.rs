//! Checks the path of a running job when no result has come for long, with the probes of the handshake. So a
//! path that no longer carries the job's packets ends the job with the same named errors, and a path that
//! does not answer is distinguished from workers that are late.

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

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PathCheck {
    /// The start of the wait: the last result or answer, or the first packet after a time without packets in
    /// flight.
    since: Time,
    handshake: Option<Handshake>,
    unknown_since: Option<Time>,
}

impl PathCheck {
    /// Begins a wait for results.
    pub fn restart(&mut self, now: Time) {
        *self = PathCheck { since: now, ..PathCheck::default() };
    }

    /// The time at which [`PathCheck::on_timeout`] is to be called, as long as chunks are in flight.
    pub fn deadline(&self) -> Option<Time> {
        let check = match &self.handshake {
            Some(handshake) => handshake.deadline(),
            None => Some(self.since.plus(IDLE)),
        };
        let unknown = self.unknown_since.map(|since| since.plus(UNKNOWN_TIMEOUT));
        check.into_iter().chain(unknown).min()
    }

    /// Begins or continues a check that is due. Returns the reason for which the path is lost.
    pub fn on_timeout(&mut self, now: Time, tuning: &Tuning, params: &JobParams) -> Option<JobError> {
        if self.unknown_since.is_some_and(|since| now.since(since) >= UNKNOWN_TIMEOUT) {
            return Some(JobError::UnknownJob { job: params.job, epoch: params.epoch });
        }
        match &mut self.handshake {
            Some(handshake) => match handshake.on_timeout(now, params) {
                Some(Outcome::Failed(why)) => Some(why),
                Some(Outcome::Ready(_)) | None => None,
            },
            None => {
                if now.since(self.since) >= IDLE {
                    self.handshake = Some(Handshake::new(tuning));
                }
                None
            }
        }
    }

    /// The next probe to send: its elements and its number.
    pub fn poll(&mut self, now: Time, chunk: u16) -> Option<(u16, u32)> {
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
            if let Some(error) = check.on_timeout(now, &Tuning::default(), &params()) {
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
        assert!(matches!(error, (4_000, JobError::NoReply { waited_ms: 3_000, .. })), "{error:?}");
        let error = run(&mut PathCheck::default(), 60_000, |elements| elements == 0).unwrap_err();
        assert!(matches!(error, (4_000, JobError::MtuTooSmall { elements: 256, .. })), "{error:?}");
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

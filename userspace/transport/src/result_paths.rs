//! The paths by which an aggregator's results come to this worker (`sumac_wire::result_paths`): a survey
//! finds those that lose them, and the aggregator avoids them.
//!
//! A lost result and a lost contribution look alike, and a result that is late is asked for as well. So a
//! suspected loss begins a survey: probes without elements, answered by each of the paths. Paths without an
//! answer are avoided, if any path has one. The next survey, which follows at once when the outcome is
//! another than before, carries that to the aggregator. While paths are avoided, surveys follow after 100 ms,
//! then after twice that, up to 3.2 s.

use serde::{Deserialize, Serialize};
use sumac_wire::{Header, result_paths};

use crate::time::Time;

/// Probes of a survey that are answered by the same path: one may be lost.
const PROBES: u16 = 2;
/// The pause after a survey, in nanoseconds.
const PAUSE: u64 = 100_000_000;
/// The number of times that the pause doubles while the same paths are avoided.
const MAX_BACKOFF: u8 = 5;
/// The shortest and the longest time in which probes are answered, in nanoseconds.
const TIMEOUT: (u64, u64) = (10_000_000, 200_000_000);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResultPaths {
    /// 1: the aggregator's own port alone.
    count: u16,
    /// A bit for each path.
    avoided: u16,
    survey: Option<Survey>,
    /// The next survey, while paths are avoided; else none begins before.
    next: Time,
    backoff: u8,
}

#[derive(Debug, Serialize, Deserialize)]
struct Survey {
    sent: u16,
    /// A bit for each path.
    answered: u16,
    /// The time in which the last probe is answered.
    timeout: u64,
    until: Time,
}

impl ResultPaths {
    /// So many paths, of which results take up to 16.
    pub fn new(count: u16) -> ResultPaths {
        let count = count.clamp(1, result_paths::RESULT_PATHS as u16);
        ResultPaths { count, avoided: 0, survey: None, next: Time(0), backoff: 0 }
    }

    /// Records that a result may have been lost. `timeout`: the retransmission timeout.
    pub fn on_suspected_loss(&mut self, now: Time, timeout: u64) {
        if self.count > 1 && self.survey.is_none() && now >= self.next {
            self.begin(now, timeout.clamp(TIMEOUT.0, TIMEOUT.1));
        }
    }

    fn begin(&mut self, now: Time, timeout: u64) {
        self.survey = Some(Survey { sent: 0, answered: 0, timeout, until: now.plus(timeout) });
    }

    /// The next probe to send: its number, the path of its answer, and the paths to avoid.
    pub fn poll(&mut self, now: Time) -> Option<(u32, u16, u16)> {
        let survey = self.survey.as_mut().filter(|survey| survey.sent < PROBES * self.count)?;
        let path = survey.sent % self.count;
        survey.sent += 1;
        survey.until = now.plus(survey.timeout);
        Some((result_paths::SURVEY | u32::from(path), path, self.avoided))
    }

    /// Takes the answer to a survey's probe. Returns whether it is one.
    pub fn on_report(&mut self, report: &Header) -> bool {
        let is_survey = result_paths::avoided(report).is_some() && report.elements == 0;
        if let Some(survey) = self.survey.as_mut().filter(|_| is_survey) {
            survey.answered |= 1 << (report.seq & 15);
        }
        is_survey
    }

    /// The time at which [`ResultPaths::on_timeout`] is to be called.
    pub fn deadline(&self) -> Option<Time> {
        match &self.survey {
            // Until all probes have found room there is none.
            Some(survey) => (survey.sent >= PROBES * self.count).then_some(survey.until),
            None => (self.avoided != 0).then_some(self.next),
        }
    }

    /// Ends the survey that is over, or begins the next one.
    pub fn on_timeout(&mut self, now: Time, timeout: u64) {
        let all_sent = PROBES * self.count;
        if let Some(Survey { answered, timeout, .. }) =
            self.survey.take_if(|survey| survey.sent >= all_sent && now >= survey.until)
        {
            let all = (u32::MAX >> (32 - self.count)) as u16;
            let avoided = if answered == 0 { self.avoided } else { all & !answered };
            if avoided == self.avoided {
                self.next = now.plus(PAUSE << self.backoff);
                self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
            } else {
                (self.avoided, self.backoff) = (avoided, 0);
                self.begin(now, timeout);
            }
        } else if self.avoided != 0 && now >= self.next {
            self.on_suspected_loss(now, timeout);
        }
        if self.avoided == 0 {
            self.backoff = 0;
        }
    }

    /// A path whose answers arrive, as far as is known.
    pub fn usable(&self) -> u16 {
        (0..self.count).find(|path| self.avoided & 1 << path == 0).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Lets time pass until `end` in milliseconds; the aggregator's answers arrive by the paths that are not
    /// in `dead`. Returns the probes, and what the aggregator is to avoid.
    fn run(paths: &mut ResultPaths, from: u64, end: u64, dead: u16) -> (usize, u16) {
        let (mut sent, mut told) = (0, 0);
        for now in (from..end).map(|ms| Time(ms * MS)) {
            while let Some((number, path, avoided)) = paths.poll(now) {
                (sent, told) = (sent + 1, avoided);
                let header = Header { seq: number, ..Header::default() };
                let report = result_paths::probe(header, path, avoided);
                if dead >> result_paths::of_report(&report, 16) & 1 == 0 {
                    assert!(paths.on_report(&report));
                }
            }
            if paths.deadline().is_some_and(|at| at <= now) {
                paths.on_timeout(now, 20 * MS);
            }
        }
        (sent, told)
    }

    #[test]
    fn a_survey_follows_a_loss_and_finds_the_dead_paths() {
        let mut paths = ResultPaths::new(64);
        assert_eq!((run(&mut paths, 0, 100, 0), paths.deadline()), ((0, 0), None), "no loss");
        paths.on_suspected_loss(Time(100 * MS), 20 * MS);
        // A second one at once, with what the aggregator is to avoid; then one after each pause.
        assert_eq!(run(&mut paths, 100, 160, 0xf0), (64, 0xf0));
        assert_eq!((paths.avoided, paths.usable()), (0xf0, 0));
        let (sent, told) = run(&mut paths, 160, 5_000, 0xf0);
        assert!((32 * 4..=32 * 7).contains(&sent) && told == 0xf0, "{sent}");
        // They work again.
        assert_eq!(run(&mut paths, 5_000, 10_000, 0).1, 0);
        assert_eq!((paths.avoided, paths.deadline()), (0, None));
    }

    #[test]
    fn losses_without_a_dead_path_cost_a_survey_in_100_ms() {
        let mut paths = ResultPaths::new(16);
        let mut sent = 0;
        for ms in 0..1_000 {
            paths.on_suspected_loss(Time(ms * MS), 20 * MS);
            sent += run(&mut paths, ms, ms + 1, 0).0;
        }
        assert!(sent <= 32 * 10, "{sent}");
        assert_eq!(paths.avoided, 0);
    }

    #[test]
    fn silence_on_all_paths_changes_nothing() {
        let mut paths = ResultPaths::new(16);
        paths.on_suspected_loss(Time(0), 20 * MS);
        assert_eq!(run(&mut paths, 0, 90, 0xffff), (32, 0));
        assert_eq!((paths.avoided, paths.deadline()), (0, None));
        let mut one = ResultPaths::new(1);
        one.on_suspected_loss(Time(0), 20 * MS);
        assert_eq!((one.poll(Time(0)), one.usable()), (None, 0));
    }
}

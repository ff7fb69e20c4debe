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
/// The number of times that the pause doubles while surveys have the same outcome.
const MAX_BACKOFF: u8 = 5;
/// The longest pause before a survey for a suspected loss, in nanoseconds.
const LONGEST_PAUSE: u64 = 800_000_000;
/// The shortest and the longest time in which probes are answered, in nanoseconds.
const TIMEOUT: (u64, u64) = (10_000_000, 200_000_000);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResultPaths {
    /// 1: the aggregator's own port alone.
    count: u16,
    /// A bit for each path.
    avoided: u16,
    /// The avoided paths of the last survey that had an answer: the aggregator avoids these.
    reported: u16,
    survey: Option<Survey>,
    /// The number of the last survey.
    number: u8,
    /// The time of the next survey without a suspected loss.
    next: Time,
    /// The earliest time of a survey for a suspected loss.
    earliest: Time,
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
    /// Whether it follows another one without a pause.
    is_second: bool,
}

impl ResultPaths {
    /// So many paths, of which results take up to 16.
    pub fn new(count: u16) -> ResultPaths {
        ResultPaths {
            count: count.clamp(1, result_paths::RESULT_PATHS as u16),
            avoided: 0,
            reported: 0,
            survey: None,
            number: 0,
            next: Time(0),
            earliest: Time(0),
            backoff: 0,
        }
    }

    /// Records that a result may have been lost. `timeout`: the retransmission timeout.
    pub fn on_suspected_loss(&mut self, now: Time, timeout: u64) {
        if self.count > 1 && self.survey.is_none() && now >= self.earliest {
            if now.since(self.next) >= PAUSE << MAX_BACKOFF {
                self.backoff = 0;
            }
            self.begin(now, timeout, false);
        }
    }

    fn begin(&mut self, now: Time, timeout: u64, is_second: bool) {
        self.number = self.number.wrapping_add(1);
        let timeout = timeout.clamp(TIMEOUT.0, TIMEOUT.1);
        self.survey = Some(Survey { sent: 0, answered: 0, timeout, until: now.plus(timeout), is_second });
    }

    /// The next probe to send: its number, the path of its answer, and the paths to avoid.
    pub fn poll(&mut self, now: Time) -> Option<(u32, u16, u16)> {
        let survey = self.survey.as_mut().filter(|survey| survey.sent < PROBES * self.count)?;
        // Probes leave by the worker's own paths in turn: the second goes another way than the first.
        let path = (survey.sent + survey.sent / self.count) % self.count;
        survey.sent += 1;
        survey.until = now.plus(survey.timeout);
        Some((result_paths::number(self.number, path), path, self.avoided))
    }

    /// Takes the answer to a survey's probe. Returns whether it is one; one that is later than its survey has
    /// no effect.
    pub fn on_report(&mut self, report: &Header) -> bool {
        let is_survey = result_paths::is_of_survey(report) && report.elements == 0;
        if let Some(survey) = self.survey.as_mut().filter(|_| is_survey)
            && let Some(path) = result_paths::answered(report, self.number)
        {
            survey.answered |= 1 << path;
        }
        is_survey
    }

    /// Whether surveys follow by themselves: paths are avoided, or the aggregator may still avoid some.
    fn is_pending(&self) -> bool {
        self.avoided | self.reported != 0
    }

    /// The time at which [`ResultPaths::on_timeout`] is to be called.
    pub fn deadline(&self) -> Option<Time> {
        match &self.survey {
            // Until all probes have found room there is none.
            Some(survey) => (survey.sent >= PROBES * self.count).then_some(survey.until),
            None => self.is_pending().then_some(self.next),
        }
    }

    /// Ends the survey that is over, or begins the next one.
    pub fn on_timeout(&mut self, now: Time, timeout: u64) {
        let all_sent = PROBES * self.count;
        let is_over = |survey: &mut Survey| survey.sent >= all_sent && now >= survey.until;
        if let Some(survey) = self.survey.take_if(is_over) {
            self.end(&survey, now, timeout);
        } else if self.survey.is_none() && self.is_pending() && now >= self.next {
            self.begin(now, timeout, false);
        }
    }

    fn end(&mut self, survey: &Survey, now: Time, timeout: u64) {
        let is_another = match survey.answered & result_paths::all(self.count) {
            0 => false,
            answered => {
                self.reported = self.avoided;
                self.avoided = result_paths::all(self.count) & !answered;
                self.avoided != self.reported
            }
        };
        if is_another {
            self.backoff = 0;
        }
        // One that had another outcome again waits: paths that lose many packets have one each time.
        if is_another && !survey.is_second {
            return self.begin(now, timeout, true);
        }
        let pause = PAUSE << self.backoff;
        (self.next, self.earliest) = (now.plus(pause), now.plus(pause.min(LONGEST_PAUSE)));
        self.backoff = (self.backoff + u8::from(!is_another)).min(MAX_BACKOFF);
    }

    /// The path of the answer to a probe of another purpose: one that is not avoided. A handshake's probes
    /// are answered by another one each time.
    pub fn of_probe(&self, number: u32) -> u16 {
        match number {
            1..result_paths::SURVEY => result_paths::of_reply(self.avoided, self.count, number),
            _ => (0..self.count).find(|path| self.avoided & 1 << path == 0).unwrap_or(0),
        }
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
        assert_eq!((paths.avoided, paths.of_probe(0)), (0xf0, 0));
        let (sent, told) = run(&mut paths, 160, 5_000, 0xf0);
        assert!((32 * 4..=32 * 7).contains(&sent) && told == 0xf0, "{sent}");
        // They work again.
        assert_eq!(run(&mut paths, 5_000, 10_000, 0).1, 0);
        assert_eq!((paths.avoided, paths.reported, paths.deadline()), (0, 0, None));
    }

    #[test]
    fn losses_without_a_dead_path_cost_few_surveys() {
        let mut paths = ResultPaths::new(16);
        let mut sent = 0;
        for ms in 0..10_000 {
            paths.on_suspected_loss(Time(ms * MS), 20 * MS);
            sent += run(&mut paths, ms, ms + 1, 0).0;
        }
        assert!((32 * 12..=32 * 16).contains(&sent), "{sent}");
        assert_eq!(paths.avoided, 0);
    }

    /// Answers that come after their survey count for no other one, and outcomes that change each time are
    /// followed by a pause.
    #[test]
    fn a_path_that_answers_late_is_avoided() {
        let mut paths = ResultPaths::new(16);
        paths.on_suspected_loss(Time(0), 20 * MS);
        let (mut sent, mut late) = (0, Vec::new());
        for now in (0..1_000).map(|ms| Time(ms * MS)) {
            late.retain(|(at, report): &(Time, Header)| *at > now || !paths.on_report(report));
            while let Some((number, path, avoided)) = paths.poll(now) {
                sent += 1;
                let report = result_paths::probe(Header { seq: number, ..Header::default() }, path, avoided);
                late.push((now.plus(if path == 5 { 30 * MS } else { 0 }), report));
            }
            late.retain(|(at, report)| *at > now || !paths.on_report(report));
            if paths.deadline().is_some_and(|at| at <= now) {
                paths.on_timeout(now, 20 * MS);
            }
        }
        assert_eq!(paths.avoided, 1 << 5);
        assert!(sent <= 32 * 6, "{sent}");
    }

    #[test]
    fn a_change_each_time_is_no_reason_for_a_survey_without_pause() {
        let mut paths = ResultPaths::new(16);
        paths.on_suspected_loss(Time(0), 20 * MS);
        let sent: usize = (0..1_000).map(|ms| run(&mut paths, ms, ms + 1, 1 << (ms / 10 % 16)).0).sum();
        assert!((32 * 6..=32 * 18).contains(&sent), "{sent}");
    }

    /// The aggregator avoids paths until a survey that names none has an answer.
    #[test]
    fn that_all_paths_work_is_said_until_it_is_answered() {
        let mut paths = ResultPaths::new(16);
        paths.on_suspected_loss(Time(0), 20 * MS);
        run(&mut paths, 0, 1_000, 0xff);
        (paths.avoided, paths.survey) = (0, None);
        run(&mut paths, 1_000, 20_000, 0xffff);
        assert_eq!((paths.reported, paths.deadline().is_some()), (0xff, true));
        run(&mut paths, 20_000, 30_000, 0);
        assert_eq!((paths.reported, paths.deadline()), (0, None));
    }

    #[test]
    fn the_probes_of_a_path_leave_by_two_ways() {
        for count in 2..=16 {
            let mut paths = ResultPaths::new(count);
            paths.on_suspected_loss(Time(0), 20 * MS);
            let answers: Vec<u16> = std::iter::from_fn(|| paths.poll(Time(0)).map(|probe| probe.1)).collect();
            let (first, second) = answers.split_at(count.into());
            assert!(first.iter().zip(second).all(|(one, other)| one != other), "{answers:?}");
            assert!((0..count).all(|path| answers.iter().filter(|answer| **answer == path).count() == 2));
        }
    }

    #[test]
    fn silence_on_all_paths_changes_nothing() {
        let mut paths = ResultPaths::new(16);
        paths.on_suspected_loss(Time(0), 20 * MS);
        assert_eq!(run(&mut paths, 0, 90, 0xffff), (32, 0));
        assert_eq!((paths.avoided, paths.deadline()), (0, None));
        let mut one = ResultPaths::new(1);
        one.on_suspected_loss(Time(0), 20 * MS);
        assert_eq!((one.poll(Time(0)), one.of_probe(0), one.of_probe(7)), (None, 0, 0));
    }
}

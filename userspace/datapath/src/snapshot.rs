//! The report of a data path thread, as it last published it.
//!
//! The thread makes a report when one is wanted, at most one in [`INTERVAL`], however many ask. Those who ask
//! wait for the next one, without the thread's attention.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stats::DatapathStats;

/// The least interval between two reports of a thread: they take less than a hundredth of its time.
const INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct State {
    /// The numbers of reports that were begun and published.
    begun: u64,
    published: u64,
    report: DatapathStats,
    has_ended: bool,
}

#[derive(Debug, Default)]
pub(super) struct Snapshot {
    is_wanted: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// A report that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    number: u64,
    /// Whether the thread is to be woken for it.
    pub(super) is_first: bool,
}

impl Snapshot {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every statement leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a report that is begun after this call.
    pub(super) fn ask(&self) -> Wanted {
        let number = self.lock().begun + 1;
        Wanted { number, is_first: !self.is_wanted.swap(true, Ordering::AcqRel) }
    }

    /// Waits for a report, and returns what `read` takes from it; `None` when the thread has ended.
    pub(super) fn wait<R>(&self, wanted: Wanted, read: impl FnOnce(&DatapathStats) -> R) -> Option<R> {
        let is_pending = |state: &mut State| state.published < wanted.number && !state.has_ended;
        let state = self.changed.wait_while(self.lock(), is_pending).unwrap_or_else(PoisonError::into_inner);
        (state.published >= wanted.number).then(|| read(&state.report))
    }

    /// Returns the time from which the thread is to publish a report, if one is wanted. `last`: that of the
    /// last one.
    pub(super) fn due(&self, last: Option<Instant>) -> Option<Instant> {
        let due = || last.map_or_else(Instant::now, |last| last + INTERVAL);
        self.is_wanted.load(Ordering::Acquire).then(due)
    }

    /// Publishes the thread's report.
    pub(super) fn publish(&self, report: impl FnOnce() -> DatapathStats) {
        self.is_wanted.store(false, Ordering::Release);
        let number = {
            let mut state = self.lock();
            state.begun += 1;
            state.begun
        };
        let report = report();
        let mut state = self.lock();
        (state.report, state.published) = (report, number);
        self.changed.notify_all();
    }

    /// Answers those who wait when the thread has ended, by a panic too.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_report_answers_all_who_asked_before_it_was_begun() {
        let snapshot = Snapshot::default();
        let report = |rounds| DatapathStats { rounds, ..DatapathStats::default() };
        let asked = [snapshot.ask(), snapshot.ask()];
        assert!(asked[0].is_first && !asked[1].is_first);
        let mut during = None;
        snapshot.publish(|| {
            during = Some(snapshot.ask());
            report(1)
        });
        assert_eq!(asked.map(|wanted| snapshot.wait(wanted, |report| report.rounds)), [Some(1); 2]);
        assert!(during.is_some_and(|wanted| wanted.is_first), "it may lack what happened before");
        snapshot.publish(|| report(2));
        assert_eq!(during.and_then(|wanted| snapshot.wait(wanted, |report| report.rounds)), Some(2));
    }

    #[test]
    fn reports_are_published_at_intervals() {
        let (snapshot, last) = (Snapshot::default(), Instant::now());
        assert_eq!(snapshot.due(Some(last)), None);
        snapshot.ask();
        assert_eq!(snapshot.due(Some(last)), Some(last + INTERVAL));
        assert!(snapshot.due(None).is_some_and(|due| due <= Instant::now()));
    }

    #[test]
    fn a_thread_that_has_ended_has_no_report() {
        let snapshot = Snapshot::default();
        let wanted = snapshot.ask();
        snapshot.end();
        assert!(snapshot.wait(wanted, |_| ()).is_none());
    }
}

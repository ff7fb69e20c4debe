//! The CPU time that each user's commands may take, operations aside, so that a flood of them delays no other work.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A user's commands take at most one part in this many of a CPU's time: 5 %.
const DIVISOR: u32 = 20;
/// The CPU time that a user may take at once: some thousand registrations of small regions.
const BURST: Duration = Duration::from_millis(250);
/// Users above this number are looked through for those that owe nothing.
const USERS: usize = 64;

/// The virtual scheduling algorithm (GCRA, ITU-T I.371) for each user: the time at which its commands are paid for.
#[derive(Debug, Default)]
pub(crate) struct CommandPace(Mutex<HashMap<u32, Instant>>);

impl CommandPace {
    /// Charges a user. Returns the time until which the connection that caused it reads no further command; `None`
    /// while the user is within its burst. Connections that are charged together get times one after another.
    pub(crate) fn charge(&self, uid: u32, cost: Duration, now: Instant) -> Option<Instant> {
        // Every statement leaves the map whole.
        let mut paid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if paid.len() > USERS {
            paid.retain(|_, until| *until > now);
        }
        let until = paid.entry(uid).or_insert(now);
        *until = (*until).max(now) + cost * DIVISOR;
        let resume = now + until.saturating_duration_since(now).saturating_sub(BURST * DIVISOR);
        (resume > now).then_some(resume)
    }
}

/// Returns the CPU time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_beyond_its_burst_is_delayed_by_what_it_took() {
        let (pace, start) = (CommandPace::default(), Instant::now());
        assert_eq!(pace.charge(1, BURST, start), None);
        let cost = Duration::from_millis(1);
        for number in 1..=100 {
            assert_eq!(pace.charge(1, cost, start), Some(start + cost * DIVISOR * number));
        }
        assert_eq!(pace.charge(2, cost, start), None, "another user");
        let later = start + (BURST + cost * 100) * DIVISOR;
        assert_eq!(pace.charge(1, BURST, later), None, "all is paid for");
        assert_eq!(pace.charge(1, cost, later), Some(later + cost * DIVISOR));
    }

    #[test]
    fn users_without_debt_are_forgotten() {
        let (pace, start) = (CommandPace::default(), Instant::now());
        for uid in 0..1000 {
            pace.charge(uid, Duration::from_micros(1), start + Duration::from_secs(uid.into()));
        }
        assert!(pace.0.lock().unwrap().len() <= USERS + 1);
    }
}

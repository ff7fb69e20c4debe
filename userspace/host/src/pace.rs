//! The CPU time that each user's commands may take, operations aside, so that a flood of them delays no other
//! work.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{MILLISECOND, Nanos};

/// A user's commands take at most one part in this many of a CPU's time: 5 %.
const DIVISOR: Nanos = 20;
/// The CPU time that a user may take at once: some thousand registrations of small regions.
const BURST: Nanos = 250 * MILLISECOND;
/// Users above this number are looked through for those that owe nothing.
const USERS: usize = 64;

/// The virtual scheduling algorithm (GCRA, ITU-T I.371) for each user: the time at which its commands are
/// paid for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CommandPace(BTreeMap<u32, Nanos>);

impl CommandPace {
    /// Charges a user. Returns the time until which the connection that caused it reads no further command;
    /// `None` while the user is within its burst. Connections that are charged together get times one after
    /// another.
    pub(crate) fn charge(&mut self, uid: u32, cost: Nanos, now: Nanos) -> Option<Nanos> {
        if self.0.len() > USERS {
            self.0.retain(|_, until| *until > now);
        }
        let until = self.0.entry(uid).or_insert(now);
        *until = (*until).max(now).saturating_add(cost.saturating_mul(DIVISOR));
        let resume = until.saturating_sub(BURST * DIVISOR).max(now);
        (resume > now).then_some(resume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    #[test]
    fn a_user_beyond_its_burst_is_delayed_by_what_it_took() {
        let (mut pace, start) = (CommandPace::default(), 1000 * SECOND);
        assert_eq!(pace.charge(1, BURST, start), None);
        let cost = MILLISECOND;
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
        let (mut pace, start) = (CommandPace::default(), 1000 * SECOND);
        for uid in 0..1000 {
            pace.charge(uid, 1000, start + SECOND * Nanos::from(uid));
        }
        assert!(pace.0.len() <= USERS + 1);
    }
}

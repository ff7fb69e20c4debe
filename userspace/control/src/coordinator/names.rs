//! The job number of each name, and the next incarnation of each number.
//!
//! Slots remember `(job, epoch)` as their owner, so no pair may ever be used twice on one plane: the epoch
//! counts on with the job's *number*, also when the number goes to another name, and a number without further
//! epochs is not given any more.

use std::collections::{HashMap, HashSet};

use sumac_wire::MAX_JOBS;

use super::ids::RunId;
use crate::{failure::Refusal, plane::LastEpoch};

#[derive(Debug)]
pub(super) struct Name {
    pub job: u16,
    pub current: Option<RunId>,
    /// The run that the planes have.
    pub on_plane: Option<RunId>,
    /// When it was last used, as a count.
    used: u64,
}

impl Name {
    fn is_idle(&self) -> bool {
        self.current.is_none() && self.on_plane.is_none()
    }
}

#[derive(Debug)]
pub(super) struct Names {
    names: HashMap<String, Name>,
    epochs: [u16; MAX_JOBS],
    clock: u64,
}

impl Names {
    pub fn new(last: &[LastEpoch]) -> Names {
        let mut names = Names { names: HashMap::new(), epochs: [0; MAX_JOBS], clock: 0 };
        names.raise(last);
        names
    }

    pub fn epochs(&self) -> Vec<LastEpoch> {
        let known = (0..).zip(self.epochs).filter(|(_, epoch)| *epoch > 0);
        known.map(|(job, epoch)| LastEpoch { job, epoch }).collect()
    }

    /// Another plane remembers these incarnations.
    pub fn raise(&mut self, last: &[LastEpoch]) {
        for last in last {
            if let Some(epoch) = self.epochs.get_mut(usize::from(last.job)) {
                *epoch = last.epoch.max(*epoch);
            }
        }
    }

    /// The next incarnation of a job number that is not spent.
    pub fn next_epoch(&mut self, job: u16) -> u16 {
        let Some(epoch) = self.epochs.get_mut(usize::from(job)) else { return 1 };
        *epoch = epoch.saturating_add(1);
        *epoch
    }

    /// Whether a job number has had all incarnations that slots can tell apart.
    pub fn is_spent(&self, job: u16) -> bool {
        self.epochs.get(usize::from(job)).is_none_or(|epoch| *epoch == u16::MAX)
    }

    pub fn spent() -> Refusal {
        let what = "its slots have seen as many jobs as they can tell apart; `sumac-agg detach` and attach it anew, or \
                    restart the switch, then start `sumac-agg serve` again";
        Refusal::plane(what)
    }

    pub fn get(&self, name: &str) -> Option<&Name> {
        self.names.get(name)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Name> {
        self.names.get_mut(name)
    }

    /// Makes `run` the latest of `name`: returns its job number, none of those that parameter hosts have
    /// `kept`. An idle name loses its number when all are taken.
    pub fn begin(&mut self, name: &str, run: RunId, kept: &HashSet<u16>) -> Result<u16, Refusal> {
        let job = match self.names.get(name) {
            Some(name) if !self.is_spent(name.job) && !kept.contains(&name.job) => name.job,
            _ => self.number(kept)?,
        };
        self.clock += 1;
        let on_plane = self.names.get(name).and_then(|name| name.on_plane);
        self.names.insert(name.into(), Name { job, current: Some(run), on_plane, used: self.clock });
        Ok(job)
    }

    pub fn restore(&mut self, name: &str, job: u16, run: RunId) {
        self.clock += 1;
        let known = Name { job, current: Some(run), on_plane: Some(run), used: self.clock };
        self.names.insert(name.into(), known);
    }

    fn number(&mut self, kept: &HashSet<u16>) -> Result<u16, Refusal> {
        let usable = |job: u16| !self.is_spent(job) && !kept.contains(&job);
        let free =
            (1..MAX_JOBS as u16).find(|job| usable(*job) && self.names.values().all(|name| name.job != *job));
        if let Some(job) = free {
            return Ok(job);
        }
        if (1..MAX_JOBS as u16).all(|job| self.is_spent(job)) {
            return Err(Names::spent());
        }
        let idle = self.names.iter().filter(|(_, name)| name.is_idle() && usable(name.job));
        let oldest = idle.min_by_key(|(_, name)| name.used).map(|(name, _)| name.clone());
        let freed = oldest.and_then(|name| self.names.remove(&name));
        freed.map(|name| name.job).ok_or_else(|| Refusal::too_many_jobs(MAX_JOBS - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_go_on_with_the_number() {
        let mut names = Names::new(&[LastEpoch { job: 1, epoch: 7 }, LastEpoch { job: 9999, epoch: 1 }]);
        assert_eq!((names.begin("a", RunId(0), &HashSet::new()), names.next_epoch(1)), (Ok(1), 8));
        assert_eq!((names.begin("a", RunId(1), &HashSet::new()), names.next_epoch(1)), (Ok(1), 9));
        assert_eq!((names.begin("b", RunId(2), &HashSet::new()), names.next_epoch(2)), (Ok(2), 1));
        names.raise(&[LastEpoch { job: 1, epoch: 4 }, LastEpoch { job: 2, epoch: 20 }]);
        assert_eq!((names.next_epoch(1), names.next_epoch(2)), (10, 21), "another plane's memory");
    }

    #[test]
    fn no_incarnation_comes_twice() {
        let spent = |job| LastEpoch { job, epoch: u16::MAX };
        let mut names = Names::new(&[LastEpoch { job: 1, epoch: u16::MAX - 1 }]);
        assert_eq!((names.begin("a", RunId(0), &HashSet::new()), names.next_epoch(1)), (Ok(1), u16::MAX));
        assert_eq!(
            names.begin("a", RunId(1), &HashSet::new()),
            Ok(2),
            "the name goes on under another number"
        );
        assert_eq!(names.begin("b", RunId(2), &HashSet::new()), Ok(3), "and nobody gets the spent one");
        names.raise(&(1..MAX_JOBS as u16).map(spent).collect::<Vec<_>>());
        assert_eq!(names.begin("c", RunId(3), &HashSet::new()), Err(Names::spent()));
    }

    #[test]
    fn the_longest_idle_name_loses_its_number() {
        let mut names = Names::new(&[]);
        for index in 1..MAX_JOBS {
            assert_eq!(names.begin(&index.to_string(), RunId(0), &HashSet::new()), Ok(index as u16));
        }
        assert_eq!(
            names.begin("one more", RunId(0), &HashSet::new()),
            Err(Refusal::too_many_jobs(MAX_JOBS - 1))
        );
        for idle in ["5", "3"] {
            names.get_mut(idle).unwrap().current = None;
        }
        assert_eq!(names.begin("one more", RunId(0), &HashSet::new()), Ok(3));
    }
}

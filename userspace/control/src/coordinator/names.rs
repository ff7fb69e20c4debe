//! The job number of each name, and the next incarnation of each number.
//!
//! Slots remember `(job, epoch)` as their owner, so no pair may ever be used twice on one plane: the epoch
//! counts on with the job's *number*, also when the number goes to another name, and a number without further
//! epochs is not given any more.
//!
//! A run holds its name's number from its installation until the planes have removed it. While it waits for
//! ranks it holds none.

use std::collections::{HashMap, HashSet};

use sumac_wire::MAX_JOBS;

use super::ids::RunId;
use crate::plane::LastEpoch;

/// The reason that a run gets no job number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoNumber {
    /// All have had all incarnations that slots can tell apart.
    Spent,
    Taken,
}

#[derive(Debug, Default)]
pub(super) struct Name {
    /// The job number of its last run, until another name needs it.
    pub job: Option<u16>,
    pub current: Option<RunId>,
    /// The run that the planes have. Only such a run holds the number.
    pub on_plane: Option<RunId>,
    /// When its number was last assigned, as a count.
    used: u64,
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

    pub fn get(&self, name: &str) -> Option<&Name> {
        self.names.get(name)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Name> {
        self.names.get_mut(name)
    }

    /// Makes `run` the latest of `name`. It has no number before [`Names::assign`].
    pub fn begin(&mut self, name: &str, run: RunId) {
        self.names.entry(name.into()).or_default().current = Some(run);
    }

    /// The latest run of `name` is over, if it is this one.
    pub fn end(&mut self, name: &str, run: RunId) {
        if let Some(known) = self.names.get_mut(name).filter(|known| known.current == Some(run)) {
            known.current = None;
            self.forget(name);
        }
    }

    /// The planes have no run of `name` any more. Returns the latest, which may have waited for that.
    pub fn removed(&mut self, name: &str) -> Option<RunId> {
        let known = self.names.get_mut(name)?;
        known.on_plane = None;
        let current = known.current;
        self.forget(name);
        current
    }

    /// Forgets a name that means nothing any more.
    fn forget(&mut self, name: &str) {
        let is_empty = |name: &Name| (name.job, name.current, name.on_plane) == (None, None, None);
        if self.names.get(name).is_some_and(is_empty) {
            self.names.remove(name);
        }
    }

    pub fn restore(&mut self, name: &str, job: u16, run: RunId) {
        self.clock += 1;
        let known = Name { job: Some(job), current: Some(run), on_plane: Some(run), used: self.clock };
        self.names.insert(name.into(), known);
    }

    /// Refuses a run of `name` that would have no number even if all of its ranks were there.
    pub fn check_free(&self, name: &str, withheld: &HashSet<u16>) -> Result<(), NoNumber> {
        let others = self.names.iter().filter(|(other, _)| *other != name).map(|(_, other)| other);
        let held = others.filter(|other| other.on_plane.is_some()).filter_map(|other| other.job);
        let held: HashSet<u16> = held.collect();
        if self.usable(withheld).any(|job| !held.contains(&job)) { Ok(()) } else { Err(self.no_number()) }
    }

    /// Returns the job number of a run of `name` that is about to be installed, none of those that
    /// are `withheld`: that of the name's last run, else a free one, else that of the longest idle name.
    pub fn assign(&mut self, name: &str, withheld: &HashSet<u16>) -> Result<u16, NoNumber> {
        let own = self.names.get(name).and_then(|name| name.job);
        let job = match own.filter(|own| self.usable(withheld).any(|job| job == *own)) {
            Some(own) => own,
            None => {
                self.free(withheld).or_else(|| self.take_idle(withheld)).ok_or_else(|| self.no_number())?
            }
        };
        self.clock += 1;
        let known = self.names.entry(name.into()).or_default();
        (known.job, known.used) = (Some(job), self.clock);
        Ok(job)
    }

    fn usable(&self, withheld: &HashSet<u16>) -> impl Iterator<Item = u16> {
        (1..MAX_JOBS as u16).filter(|job| !self.is_spent(*job) && !withheld.contains(job))
    }

    fn free(&self, withheld: &HashSet<u16>) -> Option<u16> {
        let taken: HashSet<u16> = self.names.values().filter_map(|name| name.job).collect();
        self.usable(withheld).find(|job| !taken.contains(job))
    }

    fn take_idle(&mut self, withheld: &HashSet<u16>) -> Option<u16> {
        let usable: HashSet<u16> = self.usable(withheld).collect();
        let idle = self.names.iter().filter(|(_, name)| name.on_plane.is_none());
        let idle = idle.filter(|(_, name)| name.job.is_some_and(|job| usable.contains(&job)));
        let oldest = idle.min_by_key(|(_, name)| name.used).map(|(name, _)| name.clone())?;
        let job = self.names.get_mut(&oldest)?.job.take();
        self.forget(&oldest);
        job
    }

    fn no_number(&self) -> NoNumber {
        match (1..MAX_JOBS as u16).all(|job| self.is_spent(job)) {
            true => NoNumber::Spent,
            false => NoNumber::Taken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(names: &mut Names, name: &str, run: u64) -> Result<u16, NoNumber> {
        names.begin(name, RunId(run));
        names.check_free(name, &HashSet::new())?;
        let job = names.assign(name, &HashSet::new())?;
        names.get_mut(name).unwrap().on_plane = Some(RunId(run));
        Ok(job)
    }

    fn end(names: &mut Names, name: &str, run: u64) {
        names.end(name, RunId(run));
        names.removed(name);
    }

    #[test]
    fn epochs_go_on_with_the_number() {
        let mut names = Names::new(&[LastEpoch { job: 1, epoch: 7 }, LastEpoch { job: 9999, epoch: 1 }]);
        assert_eq!((start(&mut names, "a", 0), names.next_epoch(1)), (Ok(1), 8));
        end(&mut names, "a", 0);
        assert_eq!((start(&mut names, "a", 1), names.next_epoch(1)), (Ok(1), 9));
        assert_eq!((start(&mut names, "b", 2), names.next_epoch(2)), (Ok(2), 1));
        names.raise(&[LastEpoch { job: 1, epoch: 4 }, LastEpoch { job: 2, epoch: 20 }]);
        assert_eq!((names.next_epoch(1), names.next_epoch(2)), (10, 21), "another plane's memory");
    }

    #[test]
    fn no_incarnation_comes_twice() {
        let spent = |job| LastEpoch { job, epoch: u16::MAX };
        let mut names = Names::new(&[LastEpoch { job: 1, epoch: u16::MAX - 1 }]);
        assert_eq!((start(&mut names, "a", 0), names.next_epoch(1)), (Ok(1), u16::MAX));
        end(&mut names, "a", 0);
        assert_eq!(start(&mut names, "a", 1), Ok(2), "the name goes on under another number");
        assert_eq!(start(&mut names, "b", 2), Ok(3), "and nobody gets the spent one");
        names.raise(&(1..MAX_JOBS as u16).map(spent).collect::<Vec<_>>());
        assert_eq!(start(&mut names, "c", 3), Err(NoNumber::Spent));
    }

    #[test]
    fn the_longest_idle_name_loses_its_number() {
        let mut names = Names::new(&[]);
        for index in 1..MAX_JOBS {
            assert_eq!(start(&mut names, &index.to_string(), 0), Ok(index as u16));
        }
        assert_eq!(start(&mut names, "one more", 0), Err(NoNumber::Taken));
        assert_eq!(names.check_free("7", &HashSet::new()), Ok(()), "its own will be free");
        for idle in ["5", "3"] {
            end(&mut names, idle, 0);
        }
        assert_eq!(start(&mut names, "one more", 0), Ok(3));
    }

    #[test]
    fn a_name_that_waits_holds_no_number() {
        let mut names = Names::new(&[]);
        for index in 0..2 * MAX_JOBS {
            names.begin(&format!("waits {index}"), RunId(index as u64));
        }
        for index in 1..MAX_JOBS {
            assert_eq!(start(&mut names, &index.to_string(), 0), Ok(index as u16));
        }
        for index in 0..2 * MAX_JOBS {
            names.end(&format!("waits {index}"), RunId(index as u64));
        }
        assert_eq!(names.names.len(), MAX_JOBS - 1, "nor is it remembered");
    }
}

//! Drops on purpose: how a job is tried out on a lossy network without one.

use std::{ops::Range, str::FromStr};

use serde::Serialize;
use sumac_agg_layout::{Drops, State, state_flag};
use sumac_wire::MAX_JOBS;
use thiserror::Error;

use crate::{
    aggregator::{Aggregator, OpenError},
    tables::{TableError, Tables},
};

/// A part of all frames, from none to all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part(f64);

/// Not a part.
#[derive(Debug, Error)]
#[error("{0:?}: give a percentage from 0% to 100%, such as 0.1%")]
pub struct NoPart(String);

impl FromStr for Part {
    type Err = NoPart;

    fn from_str(text: &str) -> Result<Part, NoPart> {
        let percent = text.strip_suffix('%').or((text == "0").then_some(text));
        let percent = percent.and_then(|number| number.parse::<f64>().ok());
        percent
            .filter(|percent| (0.0..=100.0).contains(percent))
            .map(|percent| Part(percent / 100.0))
            .ok_or_else(|| NoPart(text.to_owned()))
    }
}

const WHOLE: f64 = 4_294_967_296.0;

impl Part {
    /// As the programs compare it with a random number.
    fn of_all(self) -> u32 {
        (self.0 * WHOLE).min(f64::from(u32::MAX)).round() as u32
    }
}

/// In percent, to seven decimals: what a part of 2^32 can tell.
#[must_use]
pub fn percent(part: u32) -> f64 {
    (f64::from(part) / WHOLE * 1e9).round() / 1e7
}

/// How much of what arrives and of what leaves.
#[must_use]
pub fn drops(up: Part, down: Part) -> Drops {
    Drops { up: up.of_all(), down: down.of_all() }
}

/// What is dropped of the jobs of some numbers, whether there are such jobs or not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DropRule {
    /// The first number.
    pub first_job: u16,
    /// The last.
    pub last_job: u16,
    /// Percent of what arrives.
    pub up_percent: f64,
    /// Percent of what leaves.
    pub down_percent: f64,
}

impl DropRule {
    /// Those that drop anything, of job numbers in their order.
    #[must_use]
    pub fn of(all: impl IntoIterator<Item = (u16, Drops)>) -> Vec<DropRule> {
        let mut rules: Vec<(Drops, DropRule)> = Vec::new();
        for (job, drops) in all.into_iter().filter(|(_, drops)| *drops != Drops::default()) {
            match rules.last_mut() {
                Some((same, rule)) if *same == drops && rule.last_job + 1 == job => rule.last_job = job,
                _ => {
                    let (up_percent, down_percent) = (percent(drops.up), percent(drops.down));
                    rules.push((drops, DropRule { first_job: job, last_job: job, up_percent, down_percent }));
                }
            }
        }
        rules.into_iter().map(|(_, rule)| rule).collect()
    }
}

/// A number outside of the table.
#[derive(Debug, Error)]
#[error("job number {0}: must be 1 to {max}", max = MAX_JOBS - 1)]
pub struct NoSuchJob(u16);

/// The numbers of a job, or of all.
///
/// # Errors
/// When no job can have the number.
pub fn numbers(job: Option<u16>) -> Result<Range<u16>, NoSuchJob> {
    match job {
        None => Ok(1..MAX_JOBS as u16),
        Some(job) if job > 0 && usize::from(job) < MAX_JOBS => Ok(job..job + 1),
        Some(job) => Err(NoSuchJob(job)),
    }
}

/// Why nothing is dropped.
#[derive(Debug, Error)]
pub enum DropsError {
    /// There is no aggregator.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A number outside of the table.
    #[error(transparent)]
    Number(#[from] NoSuchJob),
}

impl From<TableError> for DropsError {
    fn from(error: TableError) -> DropsError {
        DropsError::Open(error.into())
    }
}

impl Aggregator {
    /// Drops parts of what arrives and of what leaves from now on: of one job, or of all, also of those that come.
    ///
    /// # Errors
    /// When it is not attached any more, or there is no such job number.
    pub fn set_drops(&self, job: Option<u16>, drops: Drops) -> Result<(), DropsError> {
        let numbers = numbers(job)?;
        let _lock = self.lock()?;
        let mut tables = self.tables()?;
        for job in numbers {
            tables.set_drops(job, drops)?;
        }
        Ok(flag(&mut tables)?)
    }
}

/// Tells the programs whether there is anything to look up.
fn flag(tables: &mut Tables) -> Result<(), TableError> {
    let mut any = false;
    for job in 1..MAX_JOBS as u16 {
        any |= tables.drops(job)? != Drops::default();
    }
    let state = tables.state()?;
    let flags = if any { state.flags | state_flag::DROPS } else { state.flags & !state_flag::DROPS };
    tables.set_state(State { flags, ..state })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages() {
        let parts = [("0", 0), ("0%", 0), ("50%", 1 << 31), ("100%", u32::MAX), ("0.01%", 429_497)];
        for (text, expected) in parts {
            assert_eq!(text.parse::<Part>().unwrap().of_all(), expected, "{text}");
        }
        for text in ["", "1", "0.5", "-1%", "101%", "%", "nan%", "1 %%"] {
            assert!(text.parse::<Part>().is_err(), "{text}");
        }
        for text in ["1%", "0.1%", "0.0001%", "33.3%", "100%"] {
            let shown = format!("{}%", percent(text.parse::<Part>().unwrap().of_all()));
            assert_eq!(shown, text);
        }
    }

    #[test]
    fn equal_neighbours_are_one_rule() {
        let (none, half) = (Drops::default(), Drops { up: 1 << 31, down: 0 });
        let other = Drops { up: 0, down: 1 << 30 };
        let rules = |all: &[Drops]| {
            let rules = DropRule::of((1..).zip(all.iter().copied()));
            let brief = |r: &DropRule| (r.first_job, r.last_job, r.up_percent, r.down_percent);
            rules.iter().map(brief).collect::<Vec<_>>()
        };
        assert_eq!(rules(&[none, none]), []);
        assert_eq!(rules(&[half; 63]), [(1, 63, 50.0, 0.0)]);
        let expected = [(1, 1, 50.0, 0.0), (3, 4, 50.0, 0.0), (5, 5, 0.0, 25.0)];
        assert_eq!(rules(&[half, none, half, half, other]), expected);
    }

    #[test]
    fn numbers_outside_of_the_table_are_refused() {
        assert_eq!(numbers(None).unwrap(), 1..64);
        assert_eq!(numbers(Some(63)).unwrap(), 63..64);
        assert!(numbers(Some(0)).is_err() && numbers(Some(64)).is_err());
    }
}

//! Drops on purpose: how a job is tried out on a lossy network without one.

use std::str::FromStr;

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

/// In percent.
#[must_use]
pub fn percent(part: u32) -> f64 {
    f64::from(part) / WHOLE * 100.0
}

/// Why nothing is dropped.
#[derive(Debug, Error)]
pub enum DropsError {
    /// There is no aggregator.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A number outside of the table.
    #[error("job number {job}: must be 1 to {}", MAX_JOBS - 1)]
    Number {
        /// The number asked for.
        job: u16,
    },
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
    pub fn set_drops(&self, job: Option<u16>, up: Part, down: Part) -> Result<(), DropsError> {
        let numbers = match job {
            None => 0..MAX_JOBS as u16,
            Some(job) if job > 0 && usize::from(job) < MAX_JOBS => job..job + 1,
            Some(job) => return Err(DropsError::Number { job }),
        };
        let _lock = self.lock()?;
        let mut tables = self.tables()?;
        for job in numbers {
            tables.set_drops(job, Drops { up: up.of_all(), down: down.of_all() })?;
        }
        Ok(flag(&mut tables)?)
    }
}

/// Tells the programs whether there is anything to look up.
fn flag(tables: &mut Tables) -> Result<(), TableError> {
    let mut any = false;
    for job in 0..MAX_JOBS as u16 {
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
        assert!((percent("1%".parse::<Part>().unwrap().of_all()) - 1.0).abs() < 1e-6);
    }
}

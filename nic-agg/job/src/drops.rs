//! Intentional drops, to test a job on a lossy network.

use std::{ops::Range, str::FromStr};

use serde::Serialize;
use sumac_agg_layout::Drops;
use sumac_wire::MAX_JOBS;
use thiserror::Error;

use crate::JobError;

/// A fraction of frames, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropRate(f64);

#[derive(Debug, Error)]
#[error("{0:?}: give a percentage from 0% to 100%, such as 0.1%")]
pub struct InvalidRate(String);

impl FromStr for DropRate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<DropRate, InvalidRate> {
        let percent = text.strip_suffix('%').or((text == "0").then_some(text));
        let percent = percent.and_then(|number| number.parse::<f64>().ok());
        percent
            .filter(|percent| (0.0..=100.0).contains(percent))
            .map(|percent| DropRate(percent / 100.0))
            .ok_or_else(|| InvalidRate(text.to_owned()))
    }
}

const THRESHOLDS: f64 = 4_294_967_296.0;

impl DropRate {
    /// Returns the threshold that the programs compare with a random number.
    fn threshold(self) -> u32 {
        (self.0 * THRESHOLDS).min(f64::from(u32::MAX)).round() as u32
    }
}

/// Returns a threshold in percent, to seven decimals: its resolution.
pub fn percent(threshold: u32) -> f64 {
    (f64::from(threshold) / THRESHOLDS * 1e9).round() / 1e7
}

pub fn drops(up: DropRate, down: DropRate) -> Drops {
    Drops { up: up.threshold(), down: down.threshold() }
}

/// The drops of a range of job numbers, present or not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DropRule {
    pub first_job: u16,
    pub last_job: u16,
    pub up_percent: f64,
    pub down_percent: f64,
}

impl DropRule {
    /// Returns the rules that drop anything; the job numbers must ascend.
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

/// Returns the numbers of one job, or of all, present and future.
pub fn numbers(job: Option<u16>) -> Result<Range<u16>, JobError> {
    match job {
        None => Ok(1..MAX_JOBS as u16),
        Some(job) if job > 0 && usize::from(job) < MAX_JOBS => Ok(job..job + 1),
        Some(job) => Err(JobError::Number(job)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages() {
        let rates = [("0", 0), ("0%", 0), ("50%", 1 << 31), ("100%", u32::MAX), ("0.01%", 429_497)];
        for (text, expected) in rates {
            assert_eq!(text.parse::<DropRate>().unwrap().threshold(), expected, "{text}");
        }
        for text in ["", "1", "0.5", "-1%", "101%", "%", "nan%", "1 %%"] {
            assert!(text.parse::<DropRate>().is_err(), "{text}");
        }
        for text in ["1%", "0.1%", "0.0001%", "33.3%", "100%"] {
            let shown = format!("{}%", percent(text.parse::<DropRate>().unwrap().threshold()));
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
        assert_eq!(rules(&[half; 255]), [(1, 255, 50.0, 0.0)]);
        let expected = [(1, 1, 50.0, 0.0), (3, 4, 50.0, 0.0), (5, 5, 0.0, 25.0)];
        assert_eq!(rules(&[half, none, half, half, other]), expected);
    }

    #[test]
    fn numbers_outside_of_the_table_are_refused() {
        assert_eq!(numbers(None).unwrap(), 1..1024);
        assert_eq!(numbers(Some(1023)).unwrap(), 1023..1024);
        assert!(numbers(Some(0)).is_err() && numbers(Some(1024)).is_err());
    }
}

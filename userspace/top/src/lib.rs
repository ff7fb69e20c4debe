//! The live terminal view of jobs, of `sumac top` and `sumac-agg top`: both give samples, and share the
//! screen and its keys.
//!
//! | module | content |
//! | --- | --- |
//! | [`sample`] | a sample: facts, the table of jobs, and a table of each job's parts |
//! | [`counters`] | rates between two readings of statistics |
//! | [`error`] | the reasons for which nothing is shown |
//! | [`view`] | the screen, its selection and order |
//! | [`text`] | a sample as text or JSON, for scripts |
//! | [`terminal`] | the loop: keys, signals, samples from a thread of their own |
#![forbid(unsafe_code)]

pub mod counters;
mod error;
pub mod sample;
mod terminal;
mod text;
mod view;

use std::io::Write as _;
use std::time::Duration;

pub use error::TopError;
pub use sample::{Cell, Column, Sample, Source, Table, Unit};

/// The options of `top`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Print one sample as text, and exit
    #[arg(long)]
    once: bool,
    /// Print one sample as a JSON object, and exit
    #[arg(long, conflicts_with = "once")]
    json: bool,
}

/// The keys, for help texts.
#[macro_export]
macro_rules! keys {
    () => {
        "Keys:\n  q, Esc, Ctrl-C   quit\n  Up, Down         select a job, whose parts are shown below\n  \
        s                sort by the next column\n  r                reverse the order\n"
    };
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.1 to 3600".to_owned()),
    }
}

/// Shows samples until a key or a signal ends it; with `once` and `json` prints one, whose rates are those of
/// an interval.
pub fn run(options: &Options, source: impl Source) -> Result<(), TopError> {
    let interval = Duration::from_secs_f64(options.interval);
    if !options.once && !options.json {
        return terminal::show(source, interval);
    }
    let sample = sample_once(source, interval).map_err(TopError::Sample)?;
    let text = if options.json { text::json(&sample).to_string() + "\n" } else { text::plain(&sample) };
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

fn sample_once(mut source: impl Source, interval: Duration) -> Result<Sample, String> {
    source.sample()?;
    std::thread::sleep(interval);
    source.sample()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_of_seconds() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert!(["0", "-1", "nan", "x", "1e9"].iter().all(|bad| seconds(bad).is_err()));
    }
}

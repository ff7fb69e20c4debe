//! The figures of ATP's evaluation, over the real engine, aggregator and parameter host.
//!
//! Bytes per second on cables are simulated; what decides who sends what is not. So curves and ratios can be held against the
//! paper's, absolute numbers cannot.

pub mod congestion;
pub mod lab;
pub mod loss;
pub mod many;
pub mod neighbours;
pub mod racks;
pub mod report;
pub mod sharing;

pub use report::Report;

use crate::job::SetupError;

/// How much is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Seeds, from 0; tables hold medians.
    pub seeds: u64,
    /// A tenth of the work, for a look.
    pub quick: bool,
}

impl Effort {
    /// The words of a command line that make the same.
    fn command(self, figure: &str) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        format!("sumac-sim {figure} --seeds {}{quick}", self.seeds)
    }

    /// `full`, or a part of it.
    fn of(self, full: usize) -> usize {
        if self.quick { full.div_ceil(8) } else { full }
    }
}

/// All results, or the first error.
fn all<R>(results: Vec<Vec<Result<R, SetupError>>>) -> Result<Vec<Vec<R>>, SetupError> {
    results.into_iter().map(|seeds| seeds.into_iter().collect()).collect()
}

//! Figures of the papers' evaluations, over the real engine, aggregator and parameter host on a simulated
//! network.
//!
//! Cables and their rates are simulated; the protocol is not. Curves and ratios are comparable with the
//! papers', absolute numbers are not.

pub mod congestion;
pub mod figure;
pub mod loss;
pub mod many;
pub mod mlt;
pub mod neighbours;
pub mod racks;
pub mod sharing;
pub mod tail;
pub mod testbed;

pub use figure::Figure;

/// The amount of simulation.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Number of seeds, from 0; tables hold medians.
    pub seeds: u64,
    /// An eighth of the work.
    pub quick: bool,
}

impl Effort {
    /// The command line that reproduces a figure.
    pub fn command(self, figure: &str) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        format!("sumac-figures {figure} --seeds {}{quick}", self.seeds)
    }

    /// `full`, or an eighth of it.
    fn of(self, full: usize) -> usize {
        if self.quick { full.div_ceil(8) } else { full }
    }
}

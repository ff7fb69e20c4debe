//! The options of a run.

use clap::{Args, value_parser};
use sumac_client::Mode;

use crate::options::by_name;

/// The options of a run.
#[derive(Clone, Debug, Args)]
pub struct ChaosOptions {
    /// Processes to kill
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u32).range(1..))]
    pub kills: u32,
    /// The seed of victims and pauses; by default from the clock
    #[arg(long, default_value_t = seed(), hide_default_value = true)]
    pub seed: u64,
    /// The mode of the job: static, dynamic or direct
    #[arg(long, value_parser = by_name::<Mode>, default_value = "static")]
    pub mode: Mode,
    /// Elements of each worker's tensor
    #[arg(long, default_value_t = 50_000, value_parser = value_parser!(u32).range(1..))]
    pub elements: u32,
    /// Seconds after a kill by which every operation has ended
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u64).range(1..))]
    pub limit: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| u64::from(now.subsec_nanos()) ^ now.as_secs() << 8) % 1_000_000
}

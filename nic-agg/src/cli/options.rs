//! Options and output that several verbs have.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use serde::Serialize;
use sumac_agg::local;
use sumac_loader::DEFAULT_PIN_ROOT;

/// The option for the directory of pins.
#[derive(Clone, Debug, clap::Args)]
pub struct PinRoot {
    /// The directory of the aggregator's pins; must be on a bpffs
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_ROOT)]
    pub pin_root: PathBuf,
}

/// The aggregator that a verb is for.
#[derive(Clone, Debug, clap::Args)]
pub struct Target {
    #[command(flatten)]
    pub pins: PinRoot,
    /// The aggregator of `sumac-agg serve --plane host` on this UDP port, in place of the attached one
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "48700",
        conflicts_with = "pin_root")]
    pub host: Option<u16>,
    /// The switch of `sumac-agg serve --plane p4runtime` or bfrt with this UDP port, in place of the attached
    /// aggregator
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "48700",
        conflicts_with_all = ["pin_root", "host"])]
    pub switch: Option<u16>,
}

impl Target {
    /// Returns the name of the process that has the aggregator; none: it is attached.
    pub fn process(&self) -> Option<String> {
        let host = self.host.map(local::host_name);
        host.or_else(|| self.switch.map(local::switch_name))
    }
}

pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    Ok(io::stdout().lock().write_all(&text)?)
}

//! The options that choose how a job uses its aggregators.

use sumac_client::JobOptions;

/// How a job uses its aggregators.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Mode {
    /// With slots of its own.
    Static,
    /// With what is free of the slots that jobs share; the rest goes to the job's parameter hosts.
    Dynamic,
}

/// The mode, and what only the dynamic one has.
#[derive(Debug, clap::Args)]
pub(super) struct ModeArgs {
    /// How the job uses its aggregators, the same on all workers.
    #[arg(long, value_enum, default_value_t = Mode::Static)]
    mode: Mode,
    /// Packets that a lane may be ahead of its oldest without result, a power of two (dynamic).
    #[arg(long, value_name = "PACKETS")]
    window: Option<u32>,
    /// Shared slots of each shard that the job may take; without it all (dynamic).
    #[arg(long, value_name = "SLOTS", conflicts_with = "slots")]
    dynamic_slots: Option<u32>,
    /// Parameter hosts that the shards are spread over, 1 to 4; without it as many as there are (dynamic).
    #[arg(long, value_name = "HOSTS")]
    parameter_hosts: Option<u16>,
    /// Do not yield to congestion (dynamic).
    #[arg(long)]
    no_congestion_control: bool,
}

impl ModeArgs {
    /// Puts them into a job's options. What does not fit the mode is the daemon's to refuse.
    pub(super) fn apply(&self, mut options: JobOptions) -> JobOptions {
        options = options.mode(match self.mode {
            Mode::Static => sumac_client::Mode::Static,
            Mode::Dynamic => sumac_client::Mode::Dynamic,
        });
        if let Some(window) = self.window {
            options = options.window(window);
        }
        if let Some(slots) = self.dynamic_slots {
            options = options.dynamic_slots(slots);
        }
        if let Some(hosts) = self.parameter_hosts {
            options = options.parameter_hosts(hosts);
        }
        if self.no_congestion_control {
            options = options.congestion_control(false);
        }
        options
    }
}

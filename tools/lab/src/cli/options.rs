//! Options that describe a lab, shared by the verbs that build one.

use clap::Args;
use sumac_lab::spec::Faults;
use sumac_lab::units::{Probability, Rate};
use sumac_lab::{LabSpec, Topology};

/// What the lab looks like.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Lab")]
pub struct LabOptions {
    /// Name of the lab and prefix of its namespaces; by default from this process's number
    #[arg(long)]
    pub name: Option<String>,
    /// Number of worker hosts, 2 to 16
    #[arg(long, default_value_t = 4)]
    pub workers: u16,
    /// How workers and aggregator are joined
    #[arg(long, value_enum, default_value_t)]
    pub topology: Topology,
    /// Rate of every cable, each way, such as 1gbit; by default as fast as the machine can
    #[arg(long)]
    pub rate: Option<Rate>,
    /// Part of the frames that vanish, per direction of every cable
    #[arg(long, default_value = "0", value_name = "PROBABILITY")]
    pub loss: Probability,
    /// Part of the frames that arrive twice, per direction of every cable
    #[arg(long, default_value = "0", value_name = "PROBABILITY")]
    pub duplicate: Probability,
    /// Part of the frames that later ones overtake, per direction of every cable
    #[arg(long, default_value = "0", value_name = "PROBABILITY")]
    pub reorder: Probability,
    /// MTU of every interface, at most 3506
    #[arg(long, default_value_t = 1500)]
    pub mtu: u32,
}

impl LabOptions {
    /// The lab that these options ask for.
    pub fn spec(&self) -> LabSpec {
        let base = LabSpec::new(self.workers);
        LabSpec {
            name: self.name.clone().unwrap_or(base.name),
            workers: self.workers,
            topology: self.topology,
            mtu: self.mtu,
            rate: self.rate,
            faults: Faults { loss: self.loss, duplicate: self.duplicate, reorder: self.reorder },
        }
    }
}

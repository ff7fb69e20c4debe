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
    /// Two levels: this many racks, each with an aggregator, below a root
    #[arg(long, requires = "workers_per_rack", conflicts_with = "workers")]
    pub racks: Option<u16>,
    /// Number of worker hosts in each rack
    #[arg(long, requires = "racks")]
    pub workers_per_rack: Option<u16>,
    /// Queues of every interface; a job has a shard of its slots on each
    #[arg(long, visible_alias = "shards", default_value_t = 1)]
    pub queues: u16,
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
    /// MTU of every interface, at most 9000
    #[arg(long, default_value_t = 1500)]
    pub mtu: u32,
}

impl LabOptions {
    /// The lab that these options ask for.
    pub fn spec(&self) -> LabSpec {
        let workers = match (self.racks, self.workers_per_rack) {
            // More than there can be is told when the specification is checked.
            (Some(racks), Some(each)) => racks.saturating_mul(each),
            _ => self.workers,
        };
        let base = LabSpec::new(workers);
        LabSpec {
            name: self.name.clone().unwrap_or(base.name),
            workers,
            racks: self.racks.unwrap_or(0),
            queues: self.queues,
            topology: self.topology,
            mtu: self.mtu,
            rate: self.rate,
            faults: Faults { loss: self.loss, duplicate: self.duplicate, reorder: self.reorder },
        }
    }
}

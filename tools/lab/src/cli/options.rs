//! Options that describe a lab, shared by the verbs that build one.

use clap::Args;
use sumac_client::{DType, Reduction, Wire};
use sumac_lab::deployment::{Backend, SumacOptions};
use sumac_lab::spec::{Faults, Napi};
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
    /// Where received frames are worked on
    #[arg(long, value_enum, default_value_t)]
    pub napi: Napi,
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
            napi: self.napi,
            rate: self.rate,
            faults: Faults { loss: self.loss, duplicate: self.duplicate, reorder: self.reorder },
        }
    }
}

/// How Sumac is to run in it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sumac")]
pub struct SumacArguments {
    /// 32-bit words per packet; by default what the MTU allows
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=2224))]
    pub chunk: Option<u16>,
    /// Slots of each lane of the job, a power of two; by default what the measured path needs
    #[arg(long)]
    pub slots: Option<u32>,
    /// Multiply floats with this number before they are rounded; by default block floating point
    #[arg(long)]
    pub scale: Option<f32>,
    /// How floats travel: int32, or int16 for half the bytes and a larger error
    #[arg(long, value_parser = wire, default_value = "int32")]
    pub wire: Wire,
    /// Send contributions without UDP checksum
    #[arg(long)]
    pub no_checksum: bool,
    /// Fix which chunks a slot takes, whatever was lost
    #[arg(long)]
    pub no_stealing: bool,
    /// Part of the frames that the aggregators drop on purpose, each way
    #[arg(long, default_value = "0", value_name = "PROBABILITY")]
    pub aggregator_drop: Probability,
}

impl SumacArguments {
    /// Sumac as these options ask for.
    pub fn sumac(&self, backend: Backend) -> SumacOptions {
        SumacOptions {
            backend,
            chunk: self.chunk,
            slots: self.slots,
            scale: self.scale,
            checksum: !self.no_checksum,
            stealing: !self.no_stealing,
            drop: self.aggregator_drop,
        }
    }
}

/// A type of elements by its name.
pub fn dtype(name: &str) -> Result<DType, String> {
    by_name(name, &[DType::Float32, DType::Float16, DType::Bfloat16, DType::Int32], |dtype| dtype.name())
}

/// A reduction by its name.
pub fn reduction(name: &str) -> Result<Reduction, String> {
    let all = [Reduction::Sum, Reduction::Mean, Reduction::Min, Reduction::Max];
    by_name(name, &all, |reduction| reduction.name())
}

fn wire(name: &str) -> Result<Wire, String> {
    by_name(name, &[Wire::Int32, Wire::Int16], |wire| match wire {
        Wire::Int32 => "int32",
        Wire::Int16 => "int16",
    })
}

fn by_name<T: Copy>(name: &str, all: &[T], name_of: impl Fn(T) -> &'static str) -> Result<T, String> {
    let names = || all.iter().map(|one| name_of(*one)).collect::<Vec<_>>().join(", ");
    all.iter().copied().find(|one| name_of(*one) == name).ok_or_else(|| format!("one of {}", names()))
}

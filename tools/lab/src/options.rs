//! Options that describe a lab, shared by the verbs that build one.

use crate::deployment::{Backend, DynamicOptions, SumacOptions};
use crate::marking::DEFAULT_THRESHOLD_KB;
use crate::spec::{Faults, LabSpec, Napi, PARAMETER_HOSTS, Topology};
use crate::units::{Probability, Rate};
use clap::error::ErrorKind;
use clap::{Args, value_parser};
use sumac_client::{DType, Mode, Reduction, WireFormat};

/// The lab's options.
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
    /// Workers that hang on the root itself, beside the racks'; only dynamic jobs can have them
    #[arg(long, requires = "racks", default_value_t = 0, value_name = "WORKERS")]
    pub beside_root: u16,
    /// Queues of every interface; a job has a shard of its slots on each
    #[arg(long, visible_alias = "shards", default_value_t = 1)]
    pub queues: u16,
    /// The topology of workers and aggregator
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
    /// The use of the aggregator's slots: static, owned by a job, or dynamic, shared by all
    #[arg(long, value_parser = mode, default_value = "static")]
    pub mode: Mode,
    /// Parameter hosts of dynamic jobs, 1 to 4 and at most as many as queues, each a host of its own; by default 1
    #[arg(long, value_name = "HOSTS", value_parser = value_parser!(u16).range(1..=i64::from(PARAMETER_HOSTS)))]
    pub parameter_hosts: Option<u16>,
    /// Have the first workers be the parameter hosts too; with --racks the first ones beside the root
    #[arg(long)]
    pub co_located: bool,
    /// Mark congestion (ECN) above this backlog of a cable with a rate, in KB of 1024 bytes; 0: never; by default 64
    /// where there are parameter hosts
    #[arg(long, value_name = "KB", requires = "rate")]
    pub ecn_threshold: Option<u32>,
    /// MTU of every interface, at most 9000
    #[arg(long, default_value_t = 1500)]
    pub mtu: u32,
    /// The context of receive processing
    #[arg(long, value_enum, default_value_t)]
    pub napi: Napi,
}

impl LabOptions {
    /// The lab that these options ask for. One that cannot be ends the program, as clap does for wrong arguments.
    pub fn spec(&self) -> LabSpec {
        self.refuse_what_static_jobs_do_not_know();
        let workers = match (self.racks, self.workers_per_rack) {
            // More than there can be is told when the specification is checked.
            (Some(racks), Some(each)) => racks.saturating_mul(each).saturating_add(self.beside_root),
            _ => self.workers,
        };
        let base = LabSpec::new(workers);
        let spec = LabSpec {
            name: self.name.clone().unwrap_or(base.name),
            workers,
            racks: self.racks.unwrap_or(0),
            beside_root: self.beside_root,
            parameter_hosts: if self.mode == Mode::Dynamic && !self.co_located { self.hosts() } else { 0 },
            queues: self.queues,
            topology: self.topology,
            mtu: self.mtu,
            napi: self.napi,
            rate: self.rate,
            faults: Faults { loss: self.loss, duplicate: self.duplicate, reorder: self.reorder },
            ecn_threshold_kb: self.ecn_threshold_kb(),
        };
        if let Err(error) = spec.check() {
            refuse(&error.to_string());
        }
        let (hosts, beside) = (self.hosts(), spec.root_ranks().len());
        if hosts > self.queues {
            refuse(&format!(
                "--parameter-hosts {hosts}: each sums for whole shards, and there is one for each queue: add --queues {hosts}"
            ));
        }
        if self.co_located && usize::from(hosts) > beside {
            refuse(&format!(
                "--co-located: {hosts} parameter hosts, but {beside} workers on the only aggregator or the root \
                 (--workers, --beside-root)"
            ));
        }
        spec
    }

    /// Returns the number of a dynamic job's parameter hosts.
    fn hosts(&self) -> u16 {
        self.parameter_hosts.unwrap_or(1)
    }

    fn ecn_threshold_kb(&self) -> Option<u32> {
        let default = (self.mode == Mode::Dynamic).then_some(DEFAULT_THRESHOLD_KB);
        // Without a rate there is no shaper, and nothing that marks.
        self.rate.and(self.ecn_threshold.or(default)).filter(|threshold| *threshold > 0)
    }

    fn refuse_what_static_jobs_do_not_know(&self) {
        if self.mode == Mode::Static {
            refuse_what_is_dynamic(&[
                ("--parameter-hosts", self.parameter_hosts.is_some()),
                ("--co-located", self.co_located),
                ("--beside-root", self.beside_root > 0),
            ]);
        }
    }
}

/// Ends the program, as clap does for arguments that do not go together.
fn refuse(why: &str) -> ! {
    clap::Error::raw(ErrorKind::ArgumentConflict, format!("{why}\n")).exit()
}

/// The same when one of these was given to a static job.
fn refuse_what_is_dynamic(options: &[(&str, bool)]) {
    if let Some((name, _)) = options.iter().find(|(_, given)| *given) {
        refuse(&format!("{name} is for dynamic jobs: add --mode dynamic"));
    }
}

/// Sumac's options in the lab.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sumac")]
pub struct SumacArguments {
    /// 32-bit words per packet; by default what the MTU allows
    #[arg(long, value_parser = value_parser!(u16).range(1..=2224))]
    pub chunk: Option<u16>,
    /// Slots: of each lane of a static job, a power of two, by default what the measured path needs; with --mode dynamic
    /// those of each shard that all jobs share, by default 1024
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    pub slots: Option<u32>,
    /// Run dynamic jobs without an aggregator: the parameter hosts do all
    #[arg(long)]
    pub no_aggregator: bool,
    /// Packets that a lane of a dynamic job may be ahead of its oldest without result, a power of two
    #[arg(long, value_parser = power_of_two)]
    pub window: Option<u32>,
    /// Have dynamic jobs send a whole window, whatever congestion they meet
    #[arg(long)]
    pub no_congestion_control: bool,
    /// Multiply floats with this number before they are rounded; by default block floating point, and 1e8 in dynamic jobs
    #[arg(long, value_parser = scale)]
    pub scale: Option<f32>,
    /// The wire format of floats: int32, or int16 for half the bytes and a larger error
    #[arg(long, value_parser = wire, default_value = "int32")]
    pub wire: WireFormat,
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
    /// Sumac as these options ask for, in this lab.
    pub fn sumac(&self, backend: Backend, lab: &LabOptions) -> SumacOptions {
        let slots = self.slots.unwrap_or(DynamicOptions::default().slots);
        let dynamic = (lab.mode == Mode::Dynamic).then(|| DynamicOptions {
            slots,
            has_aggregator: !self.no_aggregator,
            co_located: if lab.co_located { lab.hosts() } else { 0 },
            window: self.window,
            congestion_control: !self.no_congestion_control,
            rejoin_grace: 0,
        });
        match dynamic {
            None => self.refuse_in_static_mode(),
            Some(_) => self.refuse_in_dynamic_mode(),
        }
        SumacOptions {
            backend,
            chunk: self.chunk,
            slots: if dynamic.is_some() { None } else { self.slots },
            scale: self.scale,
            checksum: !self.no_checksum,
            stealing: !self.no_stealing,
            drop: self.aggregator_drop,
            dynamic,
        }
    }

    fn refuse_in_static_mode(&self) {
        refuse_what_is_dynamic(&[
            ("--no-aggregator", self.no_aggregator),
            ("--window", self.window.is_some()),
            ("--no-congestion-control", self.no_congestion_control),
        ]);
        if self.slots.is_some_and(|slots| !slots.is_power_of_two()) {
            refuse("--slots: each lane of a static job has a power of two of them");
        }
    }

    fn refuse_in_dynamic_mode(&self) {
        if self.wire == WireFormat::Int16 {
            refuse("--wire int16 is for static jobs: leave out --mode dynamic");
        }
        if self.no_stealing {
            refuse("--no-stealing is for static jobs: the slots of dynamic ones are nobody's own");
        }
        if self.no_aggregator && !self.aggregator_drop.is_zero() {
            refuse("--aggregator-drop: with --no-aggregator there is none that could");
        }
    }
}

fn mode(name: &str) -> Result<Mode, String> {
    by_name(name, &[Mode::Static, Mode::Dynamic], |mode| match mode {
        Mode::Static => "static",
        Mode::Dynamic => "dynamic",
    })
}

fn power_of_two(text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|number| number.is_power_of_two());
    number.ok_or_else(|| "not a power of two".to_owned())
}

fn scale(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "not a positive number".to_owned())
}

/// A type of elements by its name.
pub fn dtype(name: &str) -> Result<DType, String> {
    by_name(name, &[DType::Float32, DType::Float16, DType::Bfloat16, DType::Int32], sumac_client::DType::name)
}

pub fn reduction(name: &str) -> Result<Reduction, String> {
    let all = [Reduction::Sum, Reduction::Mean, Reduction::Min, Reduction::Max];
    by_name(name, &all, sumac_client::Reduction::name)
}

fn wire(name: &str) -> Result<WireFormat, String> {
    by_name(name, &[WireFormat::Int32, WireFormat::Int16], |wire| match wire {
        WireFormat::Int32 => "int32",
        WireFormat::Int16 => "int16",
    })
}

fn by_name<T: Copy>(name: &str, all: &[T], name_of: impl Fn(T) -> &'static str) -> Result<T, String> {
    let names = || all.iter().map(|one| name_of(*one)).collect::<Vec<_>>().join(", ");
    all.iter().copied().find(|one| name_of(*one) == name).ok_or_else(|| format!("one of {}", names()))
}

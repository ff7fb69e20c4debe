//! Attaches the aggregator's programs to interfaces, or replaces them there without losing a frame.

use std::{net::Ipv4Addr, num::ParseIntError, path::PathBuf, time::Duration};

use aya::Ebpf;
use clap::value_parser;
use sumac_agg_layout::{MAX_PORTS, State, state_flag};
use sumac_loader::{
    AttachError as LoaderError, BoundXdpMode, DEFAULT_PIN_ROOT, Interface, LoadError, PinError, Variant,
    XdpAttachment, XdpMode, attach, pins::PROGRAM,
};
use sumac_netutil::{
    Steer, SteerError,
    steer::{self, Change, records::RuleRecords, report},
};
use sumac_wire::{DEFAULT_BASE_PORT, MAX_ELEMENTS, PAGE_ELEMENTS};
use thiserror::Error;

use crate::{
    aggregator::Aggregator,
    pins::{self, AggregatorPins, link_pin},
    pool::{
        self, DEFAULT_DYNAMIC_SLOTS, DEFAULT_JOBS, DEFAULT_SLOT_TIMEOUT, DEFAULT_SLOTS, MOST_JOBS, Pools,
    },
    preflight::{self, NotReady},
    program, recover,
    tables::{OpenError, TableError, Tables},
};

// No doc comment: it would be the help text of the command that contains it.
#[derive(Clone, Debug, clap::Args)]
pub struct AttachOptions {
    /// The interfaces
    #[arg(value_name = "IFACE", required = true)]
    pub interfaces: Vec<String>,
    /// Slots in the pool, which jobs share; each takes 6.6 KiB of kernel memory, or 17.4 KiB for jumbo frames
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SLOTS)]
    pub slots: u32,
    /// Slots of each shard that dynamic jobs share by hashing; each takes 3.3 KiB. 0: no dynamic jobs
    #[arg(long, value_name = "N", default_value_t = DEFAULT_DYNAMIC_SLOTS)]
    pub dynamic_slots: u32,
    /// Milliseconds after which a dynamic job that sends nothing loses its slots
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = milliseconds)]
    pub slot_timeout: Duration,
    /// Most jobs at once, up to 1023; each takes 17.5 KiB of kernel memory, and 2.4 KiB for each CPU
    #[arg(long, value_name = "N", default_value_t = DEFAULT_JOBS,
        value_parser = value_parser!(u16).range(1..=i64::from(MOST_JOBS)))]
    pub jobs: u16,
    /// Largest chunk that a job may ask for, in elements of 4 bytes [default: 832, or 2224 for jumbo frames
    /// through one interface]
    #[arg(long, value_name = "N")]
    pub elements: Option<u16>,
    /// Load the programs for frames of several buffers; an MTU above 3506 implies it
    #[arg(long)]
    pub jumbo: bool,
    /// UDP destination port of shard 0
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_BASE_PORT)]
    pub base_port: u16,
    /// UDP ports from the base port on, one for each shard of a job's slots
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub shards: u16,
    /// Reply to ARP and ping for this address, which no kernel has and which the workers use
    #[arg(long = "own", value_name = "IP")]
    pub own_ip: Option<Ipv4Addr>,
    /// XDP mode
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub mode: XdpMode,
    /// With several shards, rules in the NIC that direct each shard's port to a queue of its own
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub steer: Steer,
    /// The directory of the aggregator's pins; must be on a bpffs
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_ROOT)]
    pub pin_root: PathBuf,
}

fn milliseconds(text: &str) -> Result<Duration, ParseIntError> {
    text.parse::<u32>().map(|ms| Duration::from_millis(ms.into()))
}

impl AttachOptions {
    pub fn new(interfaces: Vec<String>) -> AttachOptions {
        AttachOptions {
            interfaces,
            slots: DEFAULT_SLOTS,
            dynamic_slots: DEFAULT_DYNAMIC_SLOTS,
            slot_timeout: DEFAULT_SLOT_TIMEOUT,
            jobs: DEFAULT_JOBS,
            elements: None,
            jumbo: false,
            base_port: DEFAULT_BASE_PORT,
            shards: 1,
            own_ip: None,
            mode: XdpMode::Auto,
            steer: Steer::Auto,
            pin_root: DEFAULT_PIN_ROOT.into(),
        }
    }

    fn pools(&self) -> Pools {
        let jobs = u32::from(self.jobs) + 1;
        Pools { slots: self.slots, dynamic_slots: self.dynamic_slots, shards: self.shards, jobs }
    }
}

#[derive(Debug, Error)]
pub enum AttachError {
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("{reason}")]
    Options { reason: String },
    /// An interface, its present program, or the driver.
    #[error(transparent)]
    Attach(#[from] sumac_loader::AttachError),
    #[error(
        "the pool of this aggregator has {have} and jobs {jobs:?} are in it; attach with the same options, \
         or remove the jobs first"
    )]
    PoolInUse { have: String, jobs: Vec<u16> },
    #[error("no room for {interface}: results leave through at most {MAX_PORTS} interfaces")]
    TooManyInterfaces { interface: String },
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Steer(#[from] SteerError),
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// An interface of the aggregator, as it was bound.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AggregatorInterface {
    pub interface: String,
    pub mode: BoundXdpMode,
    /// The reason for which `auto` fell back to generic mode, if it did.
    pub fallback: Option<String>,
    /// The choice of a queue for each shard's packets, if there are several shards.
    pub steering: Option<String>,
}

/// An aggregator that was just attached.
#[derive(Debug)]
pub struct Attachment {
    pub aggregator: Aggregator,
    pub state: State,
    pub ports: Vec<AggregatorInterface>,
}

/// Attaches the aggregator to its interfaces and pins it there.
///
/// A pool that is there already is kept, with its jobs. Programs of this aggregator are replaced in one step,
/// also on interfaces that are not named.
///
/// # Errors
/// See [`AttachError`]. Everything is then as it was before.
pub fn attach(options: &AttachOptions) -> Result<Attachment, AttachError> {
    let pins = AggregatorPins::here(&options.pin_root).map_err(PinError::at(&options.pin_root))?;
    // The lock is on a bpffs.
    sumac_loader::preflight::check(&options.pin_root).map_err(NotReady::from)?;
    let _lock = pins.directory.create_locked().map_err(PinError::at(pins.path()))?;
    let attached =
        recover::recover(&pins).map_err(AttachError::from).and_then(|()| attach_locked(options, &pins));
    if attached.is_err() {
        pins.directory.remove_if_empty();
    }
    attached.map(|(state, ports)| Attachment { aggregator: Aggregator::new(pins), state, ports })
}

/// Returns the variant that the interfaces need, and the number of interfaces.
fn variant(options: &AttachOptions, pins: &AggregatorPins) -> Result<(Variant, usize), AttachError> {
    let named = options.interfaces.iter().map(|name| {
        Interface::by_name(name)
            .map_err(|source| sumac_loader::AttachError::Interface { interface: name.clone(), source })
    });
    let mut interfaces = named.collect::<Result<Vec<_>, _>>()?;
    let bound = pins.interfaces().map_err(PinError::at(pins.path()))?;
    // The pin of an interface that is gone is removed later.
    interfaces.extend(bound.iter().filter_map(|name| Interface::by_name(name).ok()));
    interfaces.sort_by_key(|interface| interface.index);
    interfaces.dedup_by_key(|interface| interface.index);
    let largest = interfaces.iter().map(|interface| interface.mtu).max().unwrap_or(0);
    let variant = if options.jumbo { Variant::Jumbo } else { Variant::for_mtu(largest) };
    Ok((variant, interfaces.len()))
}

/// Checks the options; returns the largest chunk.
fn check(options: &AttachOptions, variant: Variant, interfaces: usize) -> Result<u16, AttachError> {
    let wrong = |reason: String| Err(AttachError::Options { reason });
    let AttachOptions { base_port, shards, slots, .. } = *options;
    if options.interfaces.is_empty() {
        return wrong("name at least one interface".into());
    }
    if shards == 0 || base_port.checked_add(shards - 1).is_none() {
        return wrong(format!(
            "the {shards} ports from {base_port} on do not fit below 65536; give at least one shard"
        ));
    }
    let most = if variant == Variant::Jumbo { MAX_ELEMENTS } else { PAGE_ELEMENTS } as u16;
    // The kernel does not copy longer results to several interfaces. With all workers behind one of several,
    // an operator may ask for more.
    let elements = options.elements.unwrap_or(if interfaces > 1 { PAGE_ELEMENTS as u16 } else { most });
    if slots == 0 || elements == 0 || elements > most {
        return wrong(format!(
            "{slots} slots of {elements} elements: at least 1 of each, and at most {most} elements; \
            {MAX_ELEMENTS} on interfaces with an MTU above {}, or with --jumbo",
            Variant::ONE_BUFFER_MTU
        ));
    }
    Ok(elements)
}

fn attach_locked(
    options: &AttachOptions,
    pins: &AggregatorPins,
) -> Result<(State, Vec<AggregatorInterface>), AttachError> {
    let (variant, interfaces) = variant(options, pins)?;
    let elements = check(options, variant, interfaces)?;
    preflight::check(&options.pin_root, options.pools(), variant)?;
    let find = |name: &String| XdpAttachment::find(name, &pins.directory, &link_pin(name));
    let mut attachments = options.interfaces.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let others = pins.interfaces().map_err(PinError::at(pins.path()))?;
    // The others keep their links, but get the new programs: one broadcast has programs of one variant only.
    for name in others.iter().filter(|name| !options.interfaces.contains(name)) {
        match find(name) {
            Ok(attachment) if attachment.bound_mode().is_some() => attachments.push(attachment),
            Ok(_) => {}
            // Its program is gone, with the interface.
            Err(error @ (LoaderError::Interface { .. } | LoaderError::Occupied { .. })) => {
                tracing::warn!("{name} is left as it is: {error}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    let wanted = wanted_state(options, variant, elements);
    let keep = keeps_pool(&wanted, pins)?;
    let changes = Vec::new();
    let mut attaching = Attaching { options, pins, variant, keep, changes };
    match attaching.run(&wanted, attachments) {
        Ok((state, bound)) => {
            for port in &bound {
                attach::verify(&port.interface, &pins.directory, &link_pin(&port.interface))?;
            }
            Ok((state, bound))
        }
        Err(error) => {
            attaching.roll_back();
            Err(error)
        }
    }
}

fn wanted_state(options: &AttachOptions, variant: Variant, elements: u16) -> State {
    State {
        instance: 0,
        slots: options.slots,
        elements,
        base_port: options.base_port,
        shards: options.shards,
        flags: if variant == Variant::Jumbo { state_flag::JUMBO } else { 0 },
        own_ip: options.own_ip.map_or(0, Ipv4Addr::to_bits),
        dynamic_slots: options.dynamic_slots,
        slot_timeout: u32::try_from(options.slot_timeout.as_millis()).unwrap_or(u32::MAX),
        jobs: options.pools().jobs,
        reserved: 0,
    }
}

struct Attaching<'a> {
    options: &'a AttachOptions,
    pins: &'a AggregatorPins,
    variant: Variant,
    /// Whether the pool that is there is kept, with its jobs.
    keep: bool,
    /// The changes to the NICs' rules so far, to be undone together.
    changes: Vec<(Interface, RuleRecords, Change)>,
}

/// The loaded programs, and the maps under them.
struct Loaded {
    ebpf: Ebpf,
    tables: Tables,
}

impl Attaching<'_> {
    fn run(
        &mut self,
        wanted: &State,
        attachments: Vec<XdpAttachment<'_>>,
    ) -> Result<(State, Vec<AggregatorInterface>), AttachError> {
        let (directory, variant) = (&self.pins.directory, self.variant);
        let ebpf = program::load_over(self.pins, variant, self.options.pools(), self.keep)?;
        let tables = Tables::open_loaded(self.pins, self.keep)?;
        let mut loaded = Loaded { ebpf, tables };
        let before = loaded.tables.state.get(0)?;
        let instance = if before.instance == 0 { rand::random_range(1..=u64::MAX) } else { before.instance };
        let state = State { instance, flags: wanted.flags | before.flags & state_flag::DROPS, ..*wanted };
        if !self.keep {
            loaded.tables.state.set(0, &state)?;
        }
        let ingress = program::ingress(&mut loaded.ebpf, variant)?;
        directory.stage(PROGRAM, |path| ingress.pin(path))?;
        let egress = program::egress(&mut loaded.ebpf, variant)?;
        directory.stage(pins::EGRESS, |path| egress.pin(path))?;
        directory.stage_abi(sumac_agg_layout::ABI)?;
        let bound = attachments.into_iter().map(|attachment| self.bind(&mut loaded, attachment));
        let bound = bound.collect::<Result<Vec<_>, _>>()?;
        // Of a pool that is kept, only the time-out may be another.
        loaded.tables.state.set(0, &state)?;
        directory.commit().inspect_err(|_| {
            if let Err(error) = loaded.tables.state.set(0, &before) {
                tracing::warn!("{error}");
            }
        })?;
        Ok((state, bound))
    }

    fn bind(
        &mut self,
        Loaded { ebpf, tables }: &mut Loaded,
        attachment: XdpAttachment<'_>,
    ) -> Result<AggregatorInterface, AttachError> {
        let interface = attachment.interface.clone();
        let former = attachment.bound_mode();
        let egress = program::egress(ebpf, self.variant)?;
        let egress = egress.fd().map_err(|source| LoadError::refused(pins::EGRESS, source))?;
        if !tables.add_port(interface.index, egress)? {
            return Err(AttachError::TooManyInterfaces { interface: interface.name });
        }
        match interface.mac() {
            Some(mac) => tables.set_own(interface.index, mac)?,
            None if self.options.own_ip.is_some() => {
                tracing::warn!("{} has no MAC address for replies to ARP", interface.name);
            }
            None => {}
        }
        let steering = self.steer(&interface)?;
        // `auto` keeps the mode of a program that is there.
        let mode = match (self.options.mode, former) {
            (XdpMode::Auto, Some(BoundXdpMode::Generic)) => XdpMode::Generic,
            (mode, _) => mode,
        };
        let bound = attachment.attach(program::ingress(ebpf, self.variant)?, mode)?;
        let (mode, fallback) = (bound.mode, bound.fallback);
        Ok(AggregatorInterface { interface: interface.name, mode, fallback, steering })
    }

    /// Directs each shard's packets to one queue by rules in the NIC, and so to one CPU: then no two CPUs
    /// wait for the same slots. One shard needs no rules: the NIC spreads its packets. Returns the choice of
    /// queues if there are several shards.
    fn steer(&mut self, interface: &Interface) -> Result<Option<String>, SteerError> {
        let ports @ (base_port, shards) = (self.options.base_port, self.options.shards);
        let queues: Vec<u32> = (0..interface.rx_queues).collect();
        let has_several = shards > 1;
        let wanted = if has_several { steer::wanted(base_port, shards, &queues) } else { Vec::new() };
        let records = self.pins.rules(&interface.name);
        let change = steer::apply(self.options.steer, interface, &wanted, &records)?;
        let report = has_several.then(|| report::examine(interface, ports, &queues, &records).to_string());
        self.changes.push((interface.clone(), records, change));
        Ok(report)
    }

    /// Restores programs, links and ports, and undoes the changes to the NICs' rules.
    fn roll_back(self) {
        if let Err(error) = recover::recover(self.pins) {
            tracing::error!("{error}; the next command tries again");
        }
        for (interface, records, change) in self.changes {
            steer::roll_back(change, &interface, &records);
        }
    }
}

/// Returns whether the pool that is there fits the options, so that it is kept with its jobs.
///
/// # Errors
/// When it does not and has jobs, is another version's, or cannot be read.
fn keeps_pool(wanted: &State, pins: &AggregatorPins) -> Result<bool, AttachError> {
    if !recover::check_abi(pins)? {
        return Ok(false);
    }
    let tables = Tables::open(pins)?;
    let state = tables.state.get(0)?;
    if fixed_part(&state) == fixed_part(wanted) {
        return Ok(true);
    }
    match &tables.active_jobs()?[..] {
        [] => Ok(false),
        jobs => Err(AttachError::PoolInUse { have: options_of(&state), jobs: jobs.to_vec() }),
    }
}

/// Returns the part of an aggregator's state that a pool with jobs must keep.
fn fixed_part(state: &State) -> State {
    State { instance: 0, flags: state.flags & state_flag::JUMBO, slot_timeout: 0, ..*state }
}

fn options_of(state: &State) -> String {
    let State { slots, elements, base_port, shards, own_ip, dynamic_slots, jobs, .. } = state;
    let jumbo = if pool::variant_of(state) == Variant::Jumbo { " --jumbo" } else { "" };
    let own = match own_ip {
        0 => String::new(),
        ip => format!(" --own {}", Ipv4Addr::from_bits(*ip)),
    };
    format!(
        "--slots {slots} --dynamic-slots {dynamic_slots} --elements {elements} --base-port {base_port} \
        --shards {shards} --jobs {}{jumbo}{own}",
        jobs.saturating_sub(1)
    )
}

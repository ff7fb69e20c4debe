//! Attaches the aggregator's programs to interfaces, or replaces them there without losing a frame.

use std::{net::Ipv4Addr, num::ParseIntError, path::PathBuf, time::Duration};

use aya::Ebpf;
use sumac_agg_layout::{MAX_PORTS, State, state_flag};
use sumac_hostprog::{
    Steer, SteerError,
    steer::{self, Change, records::RuleRecords, report},
};
use sumac_loader::{
    BoundXdpMode, DEFAULT_PIN_ROOT, Interface, LoadError, PinError, Variant, XdpAttachment, XdpMode,
    pins::PROGRAM,
};
use sumac_wire::{DEFAULT_BASE_PORT, MAX_ELEMENTS, PAGE_ELEMENTS};
use thiserror::Error;

use crate::{
    aggregator::Aggregator,
    pins::{self, AggregatorPins, link_pin},
    pool::{self, DEFAULT_DYNAMIC_SLOTS, DEFAULT_SLOT_TIMEOUT, DEFAULT_SLOTS, Pools},
    preflight::{self, NotReady},
    program,
    tables::{TableError, Tables},
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
    /// Largest chunk that a job may ask for, in elements of 4 bytes [default: 832, or 2224 for jumbo frames through one interface]
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
        Pools { slots: self.slots, dynamic_slots: self.dynamic_slots, shards: self.shards }
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

/// Attaches the aggregator to its interfaces and pins it there.
///
/// A pool that is there already is kept, with its jobs. Programs of this aggregator are replaced in one step, also on
/// interfaces that are not named.
///
/// # Errors
/// See [`AttachError`]. The interfaces that were attached before stay attached, and no others are.
pub fn attach(options: &AttachOptions) -> Result<(Aggregator, Vec<AggregatorInterface>), AttachError> {
    let pins = AggregatorPins::here(&options.pin_root).map_err(PinError::at(&options.pin_root))?;
    let (variant, interfaces) = variant(options, &pins)?;
    let elements = check(options, variant, interfaces)?;
    preflight::check(&options.pin_root, options.pools(), variant)?;
    let is_first = !pins.path().exists();
    let _lock = pins.directory.create_locked().map_err(PinError::at(pins.path()))?;
    match attach_locked(options, &pins, variant, elements) {
        Ok(bound) => Ok((Aggregator::new(pins), bound)),
        Err(error) => {
            if is_first {
                // The first error is reported; `detach --all` finds leftovers.
                let _ = pins.directory.remove_all();
            }
            Err(error)
        }
    }
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
    // The kernel does not copy longer results to several interfaces. With all workers behind one of several, an operator
    // may ask for more.
    let elements = options.elements.unwrap_or(if interfaces > 1 { PAGE_ELEMENTS as u16 } else { most });
    if slots == 0 || elements == 0 || elements > most {
        return wrong(format!(
            "{slots} slots of {elements} elements: at least 1 of each, and at most {most} elements; {MAX_ELEMENTS} on \
             interfaces with an MTU above {}, or with --jumbo",
            Variant::ONE_BUFFER_MTU
        ));
    }
    Ok(elements)
}

fn attach_locked(
    options: &AttachOptions,
    pins: &AggregatorPins,
    variant: Variant,
    elements: u16,
) -> Result<Vec<AggregatorInterface>, AttachError> {
    let find = |name: &String| XdpAttachment::find(name, &pins.directory, &link_pin(name));
    let named = options.interfaces.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let wanted = wanted_state(options, variant, elements);
    keep_or_drop_pool(&wanted, pins)?;
    let ebpf = program::load_over(pins, variant, options.pools())?;
    let mut tables = Tables::open(pins)?;
    let before = tables.state.get(0)?;
    let instance = if before.instance == 0 { rand::random_range(1..=u64::MAX) } else { before.instance };
    let flags = wanted.flags | before.flags & state_flag::DROPS;
    tables.state.set(0, &State { instance, flags, ..wanted })?;

    let others = pins.interfaces().map_err(PinError::at(pins.path()))?;
    let others = others.into_iter().filter(|name| !options.interfaces.contains(name));
    // The others keep their links, but get the new programs: one broadcast has programs of one variant only.
    let others = others.filter_map(|name| match find(&name) {
        Ok(attachment) => attachment.bound_mode().is_some().then_some(attachment),
        Err(error) => {
            tracing::warn!("{name} keeps its present program: {error}");
            None
        }
    });
    let attachments: Vec<_> = named.into_iter().chain(others).collect();
    let (changes, added) = (Vec::new(), Vec::new());
    Attaching { options, pins, variant, ebpf, tables, changes, added }.run(attachments)
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
    }
}

struct Attaching<'a> {
    options: &'a AttachOptions,
    pins: &'a AggregatorPins,
    variant: Variant,
    ebpf: Ebpf,
    tables: Tables,
    /// The changes to the NICs' rules so far, to be undone together.
    changes: Vec<(Interface, RuleRecords, Change)>,
    /// The interfaces that had no program of this aggregator before.
    added: Vec<Interface>,
}

impl Attaching<'_> {
    fn run(mut self, attachments: Vec<XdpAttachment<'_>>) -> Result<Vec<AggregatorInterface>, AttachError> {
        let directory = &self.pins.directory;
        let ingress = program::ingress(&mut self.ebpf, self.variant)?;
        let ingress = directory.stage(PROGRAM, |path| ingress.pin(path))?;
        let egress = program::egress(&mut self.ebpf, self.variant)?;
        let egress = directory.stage(pins::EGRESS, |path| egress.pin(path))?;
        let bound: Result<Vec<_>, _> =
            attachments.into_iter().map(|attachment| self.bind(attachment)).collect();
        match bound.and_then(|bound| Ok((bound, ingress.commit()?, egress.commit()?))) {
            Ok((bound, (), ())) => Ok(bound),
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    fn bind(&mut self, attachment: XdpAttachment<'_>) -> Result<AggregatorInterface, AttachError> {
        let interface = attachment.interface.clone();
        let former = attachment.bound_mode();
        if former.is_none() {
            self.added.push(interface.clone());
        }
        let egress = program::egress(&mut self.ebpf, self.variant)?;
        let egress = egress.fd().map_err(|source| LoadError::refused(pins::EGRESS, source))?;
        if !self.tables.add_port(interface.index, egress)? {
            return Err(AttachError::TooManyInterfaces { interface: interface.name });
        }
        match interface.mac() {
            Some(mac) => self.tables.set_own(interface.index, mac)?,
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
        let bound = attachment.attach(program::ingress(&mut self.ebpf, self.variant)?, mode)?;
        let (mode, fallback) = (bound.mode, bound.fallback);
        Ok(AggregatorInterface { interface: interface.name, mode, fallback, steering })
    }

    /// Directs each shard's packets to one queue by rules in the NIC, and so to one CPU: then no two CPUs wait for the same
    /// slots. One shard needs no rules: the NIC spreads its packets. Returns the choice of queues if there are several shards.
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

    /// Detaches the interfaces that were added, and undoes the changes to the NICs' rules.
    fn roll_back(mut self) {
        for Interface { name, index, .. } in &self.added {
            let removed = self.pins.directory.remove_link(&link_pin(name)).map_err(AttachError::from);
            if let Err(error) = removed.and_then(|_| Ok(self.tables.remove_port(*index)?)) {
                tracing::warn!("{name}: {error}");
            }
        }
        for (interface, records, change) in self.changes {
            steer::roll_back(change, &interface, &records);
        }
    }
}

/// Removes a pool that does not fit the options, unless it has jobs.
fn keep_or_drop_pool(wanted: &State, pins: &AggregatorPins) -> Result<(), AttachError> {
    if !pins.map(sumac_agg_layout::name::STATE).exists() {
        return Ok(());
    }
    match Tables::open(pins).and_then(|tables| Ok((tables.state.get(0)?, tables))) {
        Ok((state, _)) if fixed_part(&state) == fixed_part(wanted) => return Ok(()),
        Ok((state, tables)) => {
            let jobs = tables.active_jobs();
            if !jobs.is_empty() {
                return Err(AttachError::PoolInUse { have: options_of(&state), jobs });
            }
        }
        Err(error) => tracing::warn!("{error}: the maps of another version are replaced"),
    }
    for map in sumac_agg_layout::name::KEPT {
        pins.directory.remove(&pins::map_pin(map))?;
    }
    Ok(())
}

/// Returns the part of an aggregator's state that a pool with jobs must keep.
fn fixed_part(state: &State) -> State {
    State { instance: 0, flags: state.flags & state_flag::JUMBO, slot_timeout: 0, ..*state }
}

fn options_of(state: &State) -> String {
    let State { slots, elements, base_port, shards, own_ip, dynamic_slots, .. } = state;
    let jumbo = if pool::variant_of(state) == Variant::Jumbo { " --jumbo" } else { "" };
    let own = match own_ip {
        0 => String::new(),
        ip => format!(" --own {}", Ipv4Addr::from_bits(*ip)),
    };
    format!(
        "--slots {slots} --dynamic-slots {dynamic_slots} --elements {elements} --base-port {base_port} --shards {shards}{jumbo}{own}"
    )
}

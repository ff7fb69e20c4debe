//! Puts the programs on ports, or replaces them there without losing a frame.

use std::{
    fs, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use aya::{
    Ebpf,
    pin::PinError,
    programs::{ProgramError, links::LinkError},
};
use sumac_agg_layout::{MAX_PORTS, State, name, state_flag};
use sumac_hostprog::{Steer, SteerError, interface::Interface, mode::BoundMode};
use sumac_wire::{DEFAULT_BASE_PORT, MAX_ELEMENTS, PAGE_ELEMENTS};
use thiserror::Error;

use crate::{
    aggregator::Aggregator,
    detach::active_jobs,
    mode::Mode,
    pins::{self, DEFAULT_PIN_ROOT, PinDir},
    port::Port,
    preflight::{self, NotReady},
    program::{self, LoadError, Pools, Variant},
    steering::Steering,
    tables::{TableError, Tables},
};

/// Slots in the pool unless told otherwise: 26 MiB, or 70 MiB for jumbo frames.
pub const DEFAULT_SLOTS: u32 = 4096;

/// Slots of each shard that dynamic jobs share, unless told otherwise: 3.3 MiB.
pub const DEFAULT_DYNAMIC_SLOTS: u32 = 1024;

/// How long a dynamic job may be silent before others take its slots, unless told otherwise.
pub const DEFAULT_SLOT_TIMEOUT: Duration = Duration::from_secs(1);

/// Largest MTU at which a frame has one buffer: what a veth takes, and most drivers' page.
const ONE_BUFFER: u32 = 3506;

/// What to attach, and where.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// The ports, by name, in the calling thread's network namespace.
    pub interfaces: Vec<String>,
    /// Slots in the pool that all jobs share.
    pub slots: u32,
    /// Slots of each shard that dynamic jobs share; zero: they are not served.
    pub dynamic_slots: u32,
    /// After how long a dynamic job that sends nothing loses its slots; whole milliseconds count.
    pub slot_timeout: Duration,
    /// Largest chunk that a job may ask for, in elements. None: what the programs can.
    pub elements: Option<u16>,
    /// Whether to load the programs for frames of several buffers whatever the ports' MTU.
    pub jumbo: bool,
    /// UDP destination port of shard 0.
    pub base_port: u16,
    /// Shards, each with a port of its own; 1 or more.
    pub shards: u16,
    /// An address of the aggregator's own, that no kernel has: the programs answer ARP and ICMP echo for it.
    pub own_ip: Option<Ipv4Addr>,
    /// Where to run.
    pub mode: Mode,
    /// Whether the ports' NICs shall lead each shard's packets to one queue.
    pub steer: Steer,
    /// Where pins go; must be on a bpffs.
    pub pin_root: PathBuf,
}

impl AttachOptions {
    /// The defaults for some ports.
    #[must_use]
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
            mode: Mode::Auto,
            steer: Steer::Auto,
            pin_root: DEFAULT_PIN_ROOT.into(),
        }
    }

    fn pools(&self) -> Pools {
        Pools { slots: self.slots, dynamic_slots: self.dynamic_slots, shards: self.shards }
    }
}

/// Why the programs are not on the ports.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The system is not ready.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// Something that cannot be.
    #[error("{what}")]
    Options {
        /// What is wrong with the options.
        what: String,
    },
    /// No such interface.
    #[error("no interface {interface} in this network namespace: {source}; see `ip link`")]
    Interface {
        /// The name asked for.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody else's program is there.
    #[error(
        "{interface} carries XDP program {id} ({mode}) which is not this aggregator's; if it is stale remove it: \
         ip link set dev {interface} xdp off"
    )]
    Occupied {
        /// The interface.
        interface: String,
        /// The kernel's number of the program.
        id: u32,
        /// Where it runs.
        mode: BoundMode,
    },
    /// Other options than the pool that is there was made with.
    #[error(
        "the pool of this aggregator has {have} and jobs {jobs:?} are in it; attach with the same options, \
         or remove the jobs first"
    )]
    PoolInUse {
        /// Its options.
        have: String,
        /// The jobs.
        jobs: Vec<u16>,
    },
    /// The driver refused.
    #[error("attaching to {interface} in {mode} mode: {source}; {advice}")]
    Bind {
        /// The interface.
        interface: String,
        /// The mode tried.
        mode: BoundMode,
        /// What the kernel said.
        source: Box<ProgramError>,
        /// What helps.
        advice: &'static str,
    },
    /// Too many ports.
    #[error("no room for {interface}: results leave through at most {MAX_PORTS} ports")]
    TooManyPorts {
        /// The one too many.
        interface: String,
    },
    /// A pin or its directory.
    #[error("keeping the aggregator at {path}: {source}")]
    Pins {
        /// The pin or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A pin.
    #[error("pinning at {path}: {source}")]
    Pin {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: Box<PinError>,
    },
    /// A pinned link.
    #[error("opening the pinned link {path}: {source}; `sumac-agg detach --all` removes it")]
    Link {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: LinkError,
    },
    /// Loading.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Steering, where it is demanded.
    #[error(transparent)]
    Steer(#[from] SteerError),
}

/// A port as it was bound.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BoundPort {
    /// Its interface.
    pub interface: String,
    /// Where the program runs.
    pub mode: BoundMode,
    /// Why it does not run in the driver, when that was asked for.
    pub fallback: Option<String>,
    /// What leads each shard's packets to a queue, when there are several shards.
    pub steering: Option<String>,
}

/// Attaches the aggregator to its ports and pins it there.
///
/// A pool that is there already is kept, with its jobs. Programs of this aggregator that are on a
/// port are replaced in one step; ports that are not named stay as they are, with the new programs.
///
/// # Errors
/// See [`AttachError`]. What was attached before stays.
pub fn attach(options: &AttachOptions) -> Result<(Aggregator, Vec<BoundPort>), AttachError> {
    let pins = PinDir::here(&options.pin_root).map_err(|source| at(&options.pin_root, source))?;
    let (variant, ports) = variant(options, &pins)?;
    let elements = check(options, variant, ports)?;
    preflight::check(&options.pin_root, options.pools(), variant)?;
    let fresh = !pins.path().exists();
    let _lock = pins.create_locked().map_err(|source| at(pins.path(), source))?;
    match attach_locked(options, &pins, variant, elements) {
        Ok(bound) => Ok((Aggregator::new(pins), bound)),
        Err(error) => {
            if fresh {
                // The first error is the one to tell; what is left is found by `detach --all`.
                let _ = pins.remove_all();
            }
            Err(error)
        }
    }
}

/// Which programs the ports need, and how many ports there are.
fn variant(options: &AttachOptions, pins: &PinDir) -> Result<(Variant, usize), AttachError> {
    let named = options.interfaces.iter().map(|name| {
        let found = Interface::by_name(name);
        found.map_err(|source| AttachError::Interface { interface: name.clone(), source })
    });
    let mut ports = named.collect::<Result<Vec<_>, _>>()?;
    let bound = pins.interfaces().map_err(|source| at(pins.path(), source))?;
    // One that is gone is looked at later, when its pin is.
    ports.extend(bound.iter().filter_map(|name| Interface::by_name(name).ok()));
    ports.sort_by_key(|port| port.index);
    ports.dedup_by_key(|port| port.index);
    let is_long = ports.iter().any(|port| port.mtu > ONE_BUFFER);
    Ok((if options.jumbo || is_long { Variant::Jumbo } else { Variant::Plain }, ports.len()))
}

/// How large an aggregator's pools are.
#[must_use]
pub fn pools_of(state: &State) -> Pools {
    Pools { slots: state.slots, dynamic_slots: state.dynamic_slots, shards: state.shards }
}

/// Which programs an aggregator has.
#[must_use]
pub fn variant_of(state: &State) -> Variant {
    if state.flags & state_flag::JUMBO != 0 { Variant::Jumbo } else { Variant::Plain }
}

/// Checks the options; gives the largest chunk.
fn check(options: &AttachOptions, variant: Variant, ports: usize) -> Result<u16, AttachError> {
    let wrong = |what: String| Err(AttachError::Options { what });
    let AttachOptions { base_port, shards, slots, .. } = *options;
    if options.interfaces.is_empty() {
        return wrong("name at least one interface".into());
    }
    if shards == 0 || base_port.checked_add(shards - 1).is_none() {
        return wrong(format!(
            "ports {base_port} and the {shards} from there do not fit below 65536; give at least one shard"
        ));
    }
    let most = if variant == Variant::Jumbo { MAX_ELEMENTS } else { PAGE_ELEMENTS } as u16;
    // The kernel does not copy longer results to several ports. Who has several ports and all workers behind one of
    // them may say so.
    let elements = options.elements.unwrap_or(if ports > 1 { PAGE_ELEMENTS as u16 } else { most });
    if slots == 0 || elements == 0 || elements > most {
        return wrong(format!(
            "{slots} slots of {elements} elements: at least 1 of each, and at most {most} elements; {MAX_ELEMENTS} on \
             ports with an MTU above {ONE_BUFFER}, or with --jumbo"
        ));
    }
    Ok(elements)
}

fn attach_locked(
    options: &AttachOptions,
    pins: &PinDir,
    variant: Variant,
    elements: u16,
) -> Result<Vec<BoundPort>, AttachError> {
    let named =
        options.interfaces.iter().map(|name| Port::look_at(pins, name)).collect::<Result<Vec<_>, _>>()?;
    let mut state = State {
        instance: 0,
        slots: options.slots,
        elements,
        base_port: options.base_port,
        shards: options.shards,
        flags: if variant == Variant::Jumbo { state_flag::JUMBO } else { 0 },
        own_ip: options.own_ip.map_or(0, Ipv4Addr::to_bits),
        dynamic_slots: options.dynamic_slots,
        slot_timeout: u32::try_from(options.slot_timeout.as_millis()).unwrap_or(u32::MAX),
    };
    keep_or_drop_pool(&state, pins)?;
    let mut ebpf = program::load_over(pins, variant, options.pools())?;
    let mut tables = Tables::open(pins)?;
    let before = tables.state()?;
    let instance = Some(before.instance).filter(|instance| *instance != 0);
    state.instance = instance.unwrap_or_else(|| rand::random_range(1..=u64::MAX));
    state.flags |= before.flags & state_flag::DROPS;
    tables.set_state(state)?;
    let others = pins.interfaces().map_err(|source| at(pins.path(), source))?;
    let others = others.into_iter().filter(|name| !options.interfaces.contains(name));
    // The others keep their links, but the new programs: old and new must not share a broadcast.
    let others = others.filter_map(|name| match Port::look_at(pins, &name) {
        Ok(port) => port.if_ours(),
        Err(error) => {
            tracing::warn!("{name} keeps the program that it has: {error}");
            None
        }
    });
    let mut steering = Steering::default();
    let bound = named
        .into_iter()
        .chain(others)
        .map(|port| bind_port(port, &mut ebpf, variant, &mut tables, &mut steering, options, pins))
        .collect::<Result<Vec<_>, _>>()
        .and_then(|bound| pin_programs(&mut ebpf, variant, pins).map(|()| bound));
    if bound.is_err() {
        steering.roll_back();
    }
    bound
}

fn bind_port(
    port: Port,
    ebpf: &mut Ebpf,
    variant: Variant,
    tables: &mut Tables,
    steering: &mut Steering,
    options: &AttachOptions,
    pins: &PinDir,
) -> Result<BoundPort, AttachError> {
    let egress = program::egress(ebpf, variant)?
        .fd()
        .map_err(|source| LoadError::refused(name::EGRESS_PROGRAM, source))?;
    if !tables.add_port(port.interface.index, egress)? {
        return Err(AttachError::TooManyPorts { interface: port.interface.name });
    }
    match mac(&port.interface.name) {
        Some(mac) => tables.set_own(port.interface.index, mac)?,
        None if options.own_ip.is_some() => {
            tracing::warn!("{} has no MAC address to answer ARP with", port.interface.name);
        }
        None => {}
    }
    let told = steering.apply(options, &port.interface, pins)?;
    let bound = port.bind(program::ingress(ebpf, variant)?, options.mode, pins)?;
    Ok(BoundPort { steering: told, ..bound })
}

/// The MAC address of an interface in the calling thread's network namespace.
fn mac(interface: &str) -> Option<[u8; 6]> {
    let mut found = nix::ifaddrs::getifaddrs().ok()?.filter(|entry| entry.interface_name == interface);
    found.find_map(|entry| entry.address?.as_link_addr()?.addr())
}

/// Removes a pool that does not fit the options, unless jobs are in it.
fn keep_or_drop_pool(wanted: &State, pins: &PinDir) -> Result<(), AttachError> {
    if !pins.map(name::STATE).exists() {
        return Ok(());
    }
    let tables = Tables::open(pins).and_then(|tables| Ok((tables.state()?, tables)));
    let jobs = match &tables {
        Ok((state, tables)) => {
            // All but who it is, how its ports are bound at the moment, and what may change at any time.
            let like = |state: &State| State {
                instance: 0,
                flags: state.flags & state_flag::JUMBO,
                slot_timeout: 0,
                ..*state
            };
            if like(state) == like(wanted) {
                return Ok(());
            }
            active_jobs(tables)
        }
        Err(error) => {
            tracing::warn!("{error}: the maps of another version are replaced");
            Vec::new()
        }
    };
    if let (Ok((state, _)), false) = (&tables, jobs.is_empty()) {
        let State { slots, elements, base_port, shards, own_ip, dynamic_slots, .. } = state;
        let jumbo = if variant_of(state) == Variant::Jumbo { " --jumbo" } else { "" };
        let own = match own_ip {
            0 => String::new(),
            ip => format!(" --own {}", Ipv4Addr::from_bits(*ip)),
        };
        let have = format!(
            "--slots {slots} --dynamic-slots {dynamic_slots} --elements {elements} --base-port {base_port} --shards {shards}{jumbo}{own}"
        );
        return Err(AttachError::PoolInUse { have, jobs });
    }
    drop(tables);
    for map in pins::MAPS {
        let pin = pins.map(map);
        pins.remove(&pin).map_err(|source| at(&pin, source))?;
    }
    Ok(())
}

/// Pins both programs by way of a second name, so that the old pins are replaced and never missing.
fn pin_programs(ebpf: &mut Ebpf, variant: Variant, pins: &PinDir) -> Result<(), AttachError> {
    for pin in [pins::INGRESS, pins::EGRESS] {
        let new = pins.pin(&format!("{pin}-new"));
        pins.remove(&new).map_err(|source| at(&new, source))?;
        let program = if pin == pins::INGRESS {
            program::ingress(ebpf, variant)?
        } else {
            program::egress(ebpf, variant)?
        };
        program
            .pin(&new)
            .map_err(|source| AttachError::Pin { path: new.clone(), source: Box::new(source) })?;
        fs::rename(&new, pins.pin(pin)).map_err(|source| at(&new, source))?;
    }
    Ok(())
}

pub(crate) fn at(path: &Path, source: io::Error) -> AttachError {
    AttachError::Pins { path: path.to_owned(), source }
}

//! Puts the program on an interface, or replaces it there without losing a frame.

use std::{fs, io, path::PathBuf};

use aya::{
    Ebpf,
    maps::{Array, MapError},
    pin::PinError,
    programs::links::{LinkError, PinnedLink},
};
use sumac_wire::{DEFAULT_BASE_PORT, tables::HostConfig};
use thiserror::Error;

use crate::{
    attached::{self, Attached, OpenError},
    bind::{self, Fallback},
    interface::Interface,
    mode::{BoundMode, Mode},
    pins::{self, PinDir},
    preflight::{self, PreflightError},
    program::{self, LoadError, Variant},
    queues::{self, Queues, QueuesError},
    steer::{self, Steer, SteerError},
};

/// What to attach, and where.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// The interface's name in the calling thread's network namespace.
    pub ifname: String,
    /// How fast it must be.
    pub mode: Mode,
    /// The receive queues that sockets will be opened on.
    pub queues: Queues,
    /// UDP destination port of shard 0.
    pub base_port: u16,
    /// Shards, each with a port of its own; 1 or more.
    pub shards: u16,
    /// Whether the NIC shall lead each shard's packets to its queue.
    pub steer: Steer,
    /// Where pins go; must be on a bpffs.
    pub pin_root: PathBuf,
}

impl AttachOptions {
    /// The defaults for one interface.
    #[must_use]
    pub fn new(ifname: impl Into<String>) -> Self {
        Self {
            ifname: ifname.into(),
            mode: Mode::Auto,
            queues: Queues::All,
            base_port: DEFAULT_BASE_PORT,
            shards: 1,
            steer: Steer::Auto,
            pin_root: pins::DEFAULT_PIN_ROOT.into(),
        }
    }
}

/// Why the program is not on the interface. After an error everything is as it was before.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The system is not ready.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// No such interface.
    #[error("no interface {ifname} in this network namespace: {source}; see `ip link`")]
    Interface {
        /// The name asked for.
        ifname: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The queues asked for.
    #[error(transparent)]
    Queues(#[from] QueuesError),
    /// The ports asked for.
    #[error("ports {base_port} and the {shards} from there do not fit below 65536; give at least one shard")]
    Ports {
        /// Shard 0's.
        base_port: u16,
        /// How many.
        shards: u16,
    },
    /// Somebody else's program is there.
    #[error(
        "{ifname} carries XDP program {id} ({mode}) which is not Sumac's; if it is stale remove it: ip link set dev {ifname} xdp off"
    )]
    Occupied {
        /// The interface.
        ifname: String,
        /// The kernel's number of the program.
        id: u32,
        /// Where it runs.
        mode: BoundMode,
    },
    /// The pins.
    #[error("could not keep the host program at {path}: {source}")]
    Pins {
        /// The pin or directory.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A pin.
    #[error("could not pin at {path}: {source}")]
    Pin {
        /// The pin.
        path: PathBuf,
        /// What went wrong.
        source: PinError,
    },
    /// A pinned link.
    #[error("could not open the pinned link {path}: {source}; `sumac clean` removes it")]
    Link {
        /// The pin.
        path: PathBuf,
        /// What went wrong.
        source: LinkError,
    },
    /// Loading.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map of the new program.
    #[error("could not write the host program's settings: {0}")]
    Map(#[from] MapError),
    /// Attaching in the mode asked for.
    #[error("could not attach to {ifname} in {mode} mode: {reason}")]
    Bind {
        /// The interface.
        ifname: String,
        /// The mode tried.
        mode: BoundMode,
        /// Why, and what helps.
        reason: String,
    },
    /// Steering, where it is demanded.
    #[error(transparent)]
    Steer(#[from] SteerError),
    /// The new program could not be opened again.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Attaches the host program to an interface and pins it there.
///
/// A program of Sumac's that is there already is replaced in one step: no frame meets the interface without it,
/// and its sockets, jobs and counters stay. Only a change between driver and generic mode detaches in between;
/// frames of that moment go to the kernel.
///
/// # Errors
/// See [`AttachError`]; nothing is left behind, and a program that was there stays.
pub fn attach(options: &AttachOptions) -> Result<Attached, AttachError> {
    preflight::check(&options.pin_root)?;
    let interface = Interface::by_name(&options.ifname)
        .map_err(|source| AttachError::Interface { ifname: options.ifname.clone(), source })?;
    let config = settings(options, &interface)?;
    let pins = PinDir::here(&options.pin_root, &options.ifname)
        .map_err(|source| AttachError::Pins { path: options.pin_root.clone(), source })?;
    let lock = pins.create_locked().map_err(|source| at(pins.path(), source))?;
    // Asked under the lock: another process may have attached until now.
    let fresh = !pins.exists().map_err(|source| at(pins.path(), source))?;
    let attached = attach_locked(options, &interface, &config, &pins);
    if attached.is_err() && fresh {
        // The first error is the one to tell; what is left is found by `sumac clean`.
        let _ = pins.remove();
    }
    drop(lock);
    attached
}

fn settings(options: &AttachOptions, interface: &Interface) -> Result<HostConfig, AttachError> {
    let AttachOptions { base_port, shards, .. } = *options;
    if shards == 0 || base_port.checked_add(shards - 1).is_none() {
        return Err(AttachError::Ports { base_port, shards });
    }
    let wanted = options.queues.resolve(&interface.name, interface.rx_queues)?;
    let mode = options.mode.number();
    Ok(HostConfig { base_port, shards, mode, queues: queues::to_bits(&wanted) })
}

fn attach_locked(
    options: &AttachOptions,
    interface: &Interface,
    config: &HostConfig,
    pins: &PinDir,
) -> Result<Attached, AttachError> {
    let existing = existing(pins, interface)?;
    let variant = Variant::for_mtu(interface.mtu);
    let mut ebpf = program::load_over(pins, variant)?;
    write_settings(&mut ebpf, config)?;
    let wanted = steer::wanted(config.base_port, config.shards, &queues::from_bits(&config.queues));
    // Before the program: what can be undone comes first.
    let memory = pins.rules();
    let steered = steer::apply(options.steer, interface, &wanted, &memory)?;
    match bind_and_pin(&mut ebpf, variant, existing, options, pins) {
        Ok(fallback) => Ok(Attached::open_pins(pins.clone())?.with_fallback(fallback)),
        Err(error) => {
            steer::roll_back(steered, interface, &memory);
            Err(error)
        }
    }
}

fn bind_and_pin(
    ebpf: &mut Ebpf,
    variant: Variant,
    existing: Option<(PinnedLink, BoundMode)>,
    options: &AttachOptions,
    pins: &PinDir,
) -> Result<Fallback, AttachError> {
    let program = program::xdp(ebpf, variant)?;
    let fallback = match existing {
        Some((link, mode)) if bind::fits(options.mode, mode) => bind::replace(program, link, options, pins)?,
        Some((link, mode)) => bind::change_mode(program, link, mode, options, pins)?,
        None => bind::bind(program, options, pins)?,
    };
    pin_program(ebpf, variant, pins)?;
    Ok(fallback)
}

/// The program of ours that runs on the interface, if there is one. Removes pins that no longer mean anything.
fn existing(pins: &PinDir, interface: &Interface) -> Result<Option<(PinnedLink, BoundMode)>, AttachError> {
    let path = pins.pin(pins::LINK);
    let mut ours = None;
    if path.exists() {
        let id = attached::linked_program(pins)?;
        match interface.xdp.iter().find(|program| program.id == id) {
            Some(program) => {
                let link =
                    PinnedLink::from_pin(&path).map_err(|source| AttachError::Link { path, source })?;
                ours = Some((link, *program));
            }
            None => {
                tracing::info!(interface = interface.name, "removing the pins of an interface that is gone");
                forget(pins)?;
            }
        }
    }
    let ours_id = ours.as_ref().map(|(_, program)| program.id);
    if let Some(foreign) = interface.xdp.iter().find(|program| Some(program.id) != ours_id) {
        return Err(AttachError::Occupied {
            ifname: interface.name.clone(),
            id: foreign.id,
            mode: foreign.mode,
        });
    }
    drop_incompatible(pins)?;
    Ok(ours.map(|(link, program)| (link, program.mode)))
}

/// Removes all pins but keeps the locked directory.
fn forget(pins: &PinDir) -> Result<(), AttachError> {
    let names = pins::KEPT.map(|(_, pin)| pin);
    for name in names.into_iter().chain([pins::LINK, pins::PROGRAM, pins::CONFIG.1]) {
        remove_if_there(pins, name)?;
    }
    Ok(())
}

/// Removes kept maps that another build of Sumac laid out in another way.
fn drop_incompatible(pins: &PinDir) -> Result<(), AttachError> {
    for (map, name) in pins::KEPT {
        let path = pins.pin(name);
        if path.exists() && !program::is_compatible(map, &path)? {
            tracing::warn!(
                map = name,
                "another version's map is replaced: sockets and jobs in it must be set again"
            );
            remove_if_there(pins, name)?;
        }
    }
    Ok(())
}

fn remove_if_there(pins: &PinDir, name: &str) -> Result<(), AttachError> {
    match fs::remove_file(pins.pin(name)) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(at(&pins.pin(name), source)),
        _ => Ok(()),
    }
}

fn write_settings(ebpf: &mut Ebpf, config: &HostConfig) -> Result<(), AttachError> {
    let map = ebpf.map_mut(pins::CONFIG.0).ok_or(LoadError::Missing)?;
    let mut map: Array<_, [u8; size_of::<HostConfig>()]> = map.try_into()?;
    let bytes: [u8; size_of::<HostConfig>()] = zerocopy::transmute!(*config);
    Ok(map.set(0, bytes, 0)?)
}

/// Pins program and settings beside the link. By way of a second name, so that the old pins are replaced, not missed.
fn pin_program(ebpf: &mut Ebpf, variant: Variant, pins: &PinDir) -> Result<(), AttachError> {
    let (program_new, config_new) = (pins.pin("prog-new"), pins.pin("config-new"));
    remove_if_there(pins, "prog-new")?;
    remove_if_there(pins, "config-new")?;
    program::xdp(ebpf, variant)?
        .pin(&program_new)
        .map_err(|source| AttachError::Pin { path: program_new.clone(), source })?;
    ebpf.map(pins::CONFIG.0)
        .ok_or(LoadError::Missing)?
        .pin(&config_new)
        .map_err(|source| AttachError::Pin { path: config_new.clone(), source })?;
    for (new, name) in [(program_new, pins::PROGRAM), (config_new, pins::CONFIG.1)] {
        fs::rename(&new, pins.pin(name)).map_err(|source| at(&new, source))?;
    }
    Ok(())
}

pub(crate) fn at(path: &std::path::Path, source: io::Error) -> AttachError {
    AttachError::Pins { path: path.to_owned(), source }
}

//! Attaches the host program to an interface, or replaces it there without losing a frame.

#![expect(
    clippy::result_large_err,
    reason = "an interface is attached once, and the error has all that it met"
)]

use std::{io, path::PathBuf};

use aya::{Ebpf, maps::MapError};
use sumac_loader::{
    Bound, DEFAULT_PIN_ROOT, Interface, LoadError, PinError, Variant, XdpAttachment, XdpMode,
    map::{self, TableError},
    pins::{LINK, PROGRAM},
    preflight::{self, PreflightError},
};
use sumac_wire::{DEFAULT_BASE_PORT, tables::HostConfig};
use thiserror::Error;

use crate::{
    attached::{Attached, OpenError},
    mode::HostMode,
    pins::{self, HostPins},
    program,
    queues::{self, Queues, QueuesError},
    steer::{self, Steer, SteerError, records::RuleRecords},
};

#[derive(Clone, Debug)]
pub struct AttachOptions {
    pub ifname: String,
    pub mode: HostMode,
    pub queues: Queues,
    pub base_port: u16,
    /// Shards, each with a port of its own; at least 1.
    pub shards: u16,
    pub steer: Steer,
    /// Must be on a bpffs.
    pub pin_root: PathBuf,
}

impl AttachOptions {
    pub fn new(ifname: impl Into<String>) -> Self {
        Self {
            ifname: ifname.into(),
            mode: HostMode::Auto,
            queues: Queues::All,
            base_port: DEFAULT_BASE_PORT,
            shards: 1,
            steer: Steer::Auto,
            pin_root: DEFAULT_PIN_ROOT.into(),
        }
    }
}

#[derive(Debug, Error)]
pub enum AttachError {
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    #[error(transparent)]
    Queues(#[from] QueuesError),
    #[error("the {shards} ports from {base_port} on do not fit below 65536; give at least one shard")]
    Ports { base_port: u16, shards: u16 },
    /// The interface, its present program, or the driver.
    #[error(transparent)]
    Attach(#[from] sumac_loader::AttachError),
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("could not compare map {map} with this build's: {source}")]
    Layout { map: &'static str, source: MapError },
    #[error(transparent)]
    Settings(#[from] TableError),
    #[error(transparent)]
    Steer(#[from] SteerError),
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Attaches the host program to an interface and pins it there.
///
/// A program of Sumac's that is there already is replaced in one step: no frame meets the interface without it, and its
/// sockets, jobs and counters stay. Only a change between driver and generic mode detaches in between; frames go to the
/// kernel meanwhile.
///
/// # Errors
/// See [`AttachError`]. Everything is then as it was before.
pub fn attach(options: &AttachOptions) -> Result<Attached, AttachError> {
    preflight::check(&options.pin_root)?;
    let interface = Interface::by_name(&options.ifname).map_err(|source| {
        sumac_loader::AttachError::Interface { interface: options.ifname.clone(), source }
    })?;
    let config = settings(options, &interface)?;
    let pins = HostPins::here(&options.pin_root, &options.ifname).map_err(PinError::at(&options.pin_root))?;
    let failed = |source: io::Error| PinError::at(pins.directory.path())(source);
    let lock = pins.directory.create_locked().map_err(failed)?;
    // Under the lock: another process may have attached until now.
    let is_first = !pins.exist().map_err(failed)?;
    let attached = attach_locked(options, &config, &pins);
    if attached.is_err() && is_first {
        // The first error is reported; `sumac clean` finds leftovers.
        let _ = pins.directory.remove_all();
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
    Ok(HostConfig { base_port, shards, mode: options.mode.number(), queues: queues::to_bits(&wanted) })
}

fn attach_locked(
    options: &AttachOptions,
    config: &HostConfig,
    pins: &HostPins,
) -> Result<Attached, AttachError> {
    let attachment = XdpAttachment::find(&options.ifname, &pins.directory, LINK)?;
    if attachment.was_stale {
        tracing::info!(interface = options.ifname, "removing the pins of an interface that is gone");
        for name in pins::ALL {
            pins.directory.remove(name)?;
        }
    }
    drop_incompatible(pins)?;
    let interface = attachment.interface.clone();
    let variant = Variant::for_mtu(interface.mtu);
    let mut ebpf = program::load_over(pins, variant)?;
    map::write::<_, { size_of::<HostConfig>() }>(&mut ebpf, pins::CONFIG.0, 0, config)?;
    let wanted = steer::wanted(config.base_port, config.shards, &queues::from_bits(&config.queues));
    let records = RuleRecords::of_interface(pins.directory.path());
    // Before the program: a change of rules can be undone.
    let steered = steer::apply(options.steer, &interface, &wanted, &records)?;
    match bind_and_pin(&mut ebpf, variant, attachment, options.mode.xdp(), pins) {
        Ok(bound) => Ok(Attached::open_pins(pins.clone())?.with_fallback(bound.fallback)),
        Err(error) => {
            steer::roll_back(steered, &interface, &records);
            Err(error)
        }
    }
}

fn bind_and_pin(
    ebpf: &mut Ebpf,
    variant: Variant,
    attachment: XdpAttachment<'_>,
    mode: XdpMode,
    pins: &HostPins,
) -> Result<Bound, AttachError> {
    let xdp = program::xdp(ebpf, variant)?;
    let program = pins.directory.stage(PROGRAM, |path| xdp.pin(path))?;
    let map = ebpf.map(pins::CONFIG.0).ok_or(LoadError::Missing { program: pins::CONFIG.0 })?;
    let config = pins.directory.stage(pins::CONFIG.1, |path| map.pin(path))?;
    let bound = attachment.attach(program::xdp(ebpf, variant)?, mode)?;
    program.commit()?;
    config.commit()?;
    Ok(bound)
}

/// Removes kept maps that another build of Sumac laid out differently.
fn drop_incompatible(pins: &HostPins) -> Result<(), AttachError> {
    for (map, name) in pins::KEPT {
        let path = pins.pin(name);
        if !path.exists() {
            continue;
        }
        let is_compatible = program::is_compatible(map, &path);
        if !is_compatible.map_err(|source| AttachError::Layout { map, source })? {
            tracing::warn!(
                map = name,
                "another version's map is replaced: sockets and jobs in it must be set again"
            );
            pins.directory.remove(name)?;
        }
    }
    Ok(())
}

//! Attaches the host program to an interface, or replaces it there without losing a frame.

#![expect(
    clippy::result_large_err,
    reason = "an interface is attached once, and the error has all that it met"
)]

use std::path::PathBuf;

use aya::maps::MapError;
use sumac_loader::{
    Bound, DEFAULT_PIN_ROOT, Interface, LoadError, PinError, Variant, XdpAttachment, chain,
    map::{self, TableError},
    pins::{LINK, PROGRAM},
    preflight::{self, PreflightError},
    recover::recover,
};
use sumac_netutil::steer::{self, Change, Steer, SteerError, records::RuleRecords};
use sumac_wire::{DEFAULT_BASE_PORT, tables::HostConfig};
use thiserror::Error;

use crate::{
    attached::{Attached, OpenError},
    mode::HostMode,
    pins::{self, HostPins},
    program,
    queues::{self, Queues, QueuesError},
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
    /// Linux takes a frame of a bond's port for one of the port when it looks for a socket.
    #[error(
        "{interface} is a bond: its frames are its ports', and a socket that is bound to it receives none; \
        set backend = \"udp\""
    )]
    Bond { interface: String },
    #[error("the {shards} ports from {base_port} on do not fit below 65536; give at least one shard")]
    Ports { base_port: u16, shards: u16 },
    /// The interface, its present program, or the driver.
    #[error(transparent)]
    Attach(#[from] sumac_loader::AttachError),
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("could not compare map {map} with this build's: {}", chain(.source))]
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
/// A program of Sumac's that is there already is replaced in one step: no frame meets the interface without
/// it, and its sockets, jobs and counters stay. Only a change between driver and generic mode detaches in
/// between; frames go to the kernel meanwhile.
///
/// # Errors
/// See [`AttachError`]. Everything is then as it was before.
pub fn attach(options: &AttachOptions) -> Result<Attached, AttachError> {
    preflight::check(&options.pin_root)?;
    let interface = Interface::by_name(&options.ifname).map_err(|source| {
        sumac_loader::AttachError::Interface { interface: options.ifname.clone(), source }
    })?;
    if interface.is_bond() {
        return Err(AttachError::Bond { interface: interface.name });
    }
    let config = settings(options, &interface)?;
    let pins = HostPins::find(&options.pin_root, &options.ifname).map_err(PinError::at(&options.pin_root))?;
    let _lock = pins.directory.create_locked().map_err(PinError::at(pins.directory.path()))?;
    let attached = recover(&pins.directory).map_err(AttachError::from).and_then(|was_interrupted| {
        if was_interrupted {
            tracing::warn!("a former attach did not end: it was completed, or undone");
        }
        attach_locked(options, &config, &pins)
    });
    if attached.is_err() {
        pins.directory.remove_if_empty();
    }
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
        tracing::info!(interface = options.ifname, "replacing the pins of an interface that is gone");
    }
    // Pins without a link are of an interface that is gone, or of a removal that did not end.
    let keep = attachment.bound_mode().is_some() && is_compatible(pins)?;
    let interface = attachment.interface.clone();
    let records = RuleRecords::of_interface(pins.directory.path());
    let mut steered = None;
    match replace(options, config, pins, attachment, keep, &mut steered) {
        // It looks at the interface and the pins again, as whoever comes next does.
        Ok(bound) => Ok(Attached::open_pins(pins.clone())?.with_fallback(bound.fallback)),
        Err(error) => {
            if let Err(stuck) = recover(&pins.directory) {
                tracing::error!("{stuck}; the next `sumac attach` tries again to restore the former program");
            }
            if let Some(change) = steered {
                steer::roll_back(change, &interface, &records);
            }
            Err(error)
        }
    }
}

/// Loads, attaches and pins the program, and commits that it replaces the former one.
fn replace(
    options: &AttachOptions,
    config: &HostConfig,
    pins: &HostPins,
    attachment: XdpAttachment<'_>,
    keep: bool,
    steered: &mut Option<Change>,
) -> Result<Bound, AttachError> {
    let (interface, directory) = (attachment.interface.clone(), &pins.directory);
    let variant = Variant::for_mtu(interface.mtu);
    let mut ebpf = program::load_over(pins, variant, keep)?;
    map::write::<_, { size_of::<HostConfig>() }>(&mut ebpf, pins::CONFIG.0, 0, config)?;
    let wanted = steer::wanted(config.base_port, config.shards, &queues::from_bits(&config.queues));
    let records = RuleRecords::of_interface(directory.path());
    // Before the program: a change of rules can be undone.
    *steered = Some(steer::apply(options.steer, &interface, &wanted, &records)?);
    let xdp = program::xdp(&mut ebpf, variant)?;
    directory.stage(PROGRAM, |path| xdp.pin(path))?;
    let map = ebpf.map(pins::CONFIG.0).ok_or(LoadError::Missing { program: pins::CONFIG.0 })?;
    directory.stage(pins::CONFIG.1, |path| map.pin(path))?;
    directory.stage_abi(program::ABI)?;
    let bound = attachment.attach(program::xdp(&mut ebpf, variant)?, options.mode.xdp())?;
    directory.commit()?;
    Ok(bound)
}

/// Returns whether the maps have this build's layout, so that sockets and jobs in them are kept.
fn is_compatible(pins: &HostPins) -> Result<bool, AttachError> {
    if let Some(found) = pins.directory.other_abi(program::ABI)? {
        tracing::warn!(
            found,
            own = program::ABI,
            "the maps of another ABI version are replaced: restart the daemon, which sets sockets and jobs \
            again"
        );
        return Ok(false);
    }
    for (map, name) in pins::KEPT {
        let is_compatible = program::is_compatible(map, &pins.pin(name));
        if !is_compatible.map_err(|source| AttachError::Layout { map, source })? {
            tracing::warn!(map = name, "another build's maps are replaced: restart the daemon");
            return Ok(false);
        }
    }
    Ok(true)
}

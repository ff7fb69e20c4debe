//! The program's object file, and how it is brought into the kernel.

use std::path::Path;

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{MapError, MapInfo},
    programs::{ProgramError, Xdp},
};
use aya_obj::programs::XdpAttachType;
use sumac_wire::{
    MAX_JOBS,
    reason::COUNTERS,
    tables::{HostJobEntry, MAX_QUEUES, QueueCounters},
};
use thiserror::Error;

use crate::pins::{self, PinDir};

/// Which of the object's programs: by how large frames can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// For frames in one buffer.
    Plain,
    /// For frames of several (`xdp.frags`, Linux 5.18).
    Jumbo,
}

impl Variant {
    /// The largest MTU whose frames a veth hands over in one piece; NICs differ by little.
    pub const ONE_BUFFER: u32 = 3506;

    /// The one for an interface of this MTU.
    #[must_use]
    pub fn for_mtu(mtu: u32) -> Variant {
        if mtu > Variant::ONE_BUFFER { Variant::Jumbo } else { Variant::Plain }
    }

    /// Its name in the object file and, cut to 15 letters, in the kernel's list of programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Variant::Plain => "sumac_host",
            Variant::Jumbo => "sumac_host_jumbo",
        }
    }
}

static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("SUMAC_HOST_OBJECT"));

/// Why the program did not come into the kernel.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The maps could not be made or opened.
    #[error("the host program's maps could not be made or opened: {0}")]
    Object(#[source] Box<EbpfError>),
    /// The kernel refused the program.
    #[error("the kernel refused the host program: {0}")]
    Program(#[source] Box<ProgramError>),
    /// The object file holds no program of the expected name.
    #[error("this build's XDP programs are not whole: build it again with `make build`")]
    Missing,
}

/// Loads the program without pins: for tests and measurements.
///
/// # Errors
/// When the kernel refuses the maps or the program.
pub fn load(variant: Variant) -> Result<Ebpf, LoadError> {
    load_with(&mut EbpfLoader::new(), variant)
}

/// Loads the program over the maps that are pinned already, and pins those that are not.
///
/// # Errors
/// When the kernel refuses the maps or the program.
pub(crate) fn load_over(pins: &PinDir, variant: Variant) -> Result<Ebpf, LoadError> {
    let mut loader = EbpfLoader::new();
    for (map, pin) in pins::KEPT {
        loader.map_pin_path(map, pins.pin(pin));
    }
    load_with(&mut loader, variant)
}

fn load_with(loader: &mut EbpfLoader<'_>, variant: Variant) -> Result<Ebpf, LoadError> {
    let mut ebpf = loader.load(OBJECT).map_err(|error| LoadError::Object(Box::new(error)))?;
    xdp(&mut ebpf, variant)?.load().map_err(|error| LoadError::Program(Box::new(error)))?;
    Ok(ebpf)
}

/// A program of a loaded object.
///
/// # Errors
/// [`LoadError::Missing`] when the object is not the host program's.
pub fn xdp(ebpf: &mut Ebpf, variant: Variant) -> Result<&mut Xdp, LoadError> {
    let program = ebpf.program_mut(variant.name()).ok_or(LoadError::Missing)?;
    program.try_into().map_err(|error| LoadError::Program(Box::new(error)))
}

/// Opens a pinned program, to run it on a frame or to pin it elsewhere.
///
/// # Errors
/// When the pin does not open as a program.
pub fn open(pin: &Path) -> Result<Xdp, LoadError> {
    Xdp::from_pin(pin, XdpAttachType::Interface).map_err(|error| LoadError::Program(Box::new(error)))
}

/// Whether a pinned map has the layout of this build, so that its content may be kept.
///
/// # Errors
/// When the pin does not open as a map.
pub(crate) fn is_compatible(map: &str, pin: &Path) -> Result<bool, MapError> {
    let info = MapInfo::from_pin(pin)?;
    let expected = match map {
        "SOCKETS" => (4, MAX_QUEUES),
        "JOBS" => (size_of::<HostJobEntry>(), MAX_JOBS),
        "COUNTERS" => (size_of::<u64>(), COUNTERS),
        "QUEUES" => (size_of::<QueueCounters>(), MAX_QUEUES),
        _ => return Ok(true),
    };
    Ok((info.value_size() as usize, info.max_entries() as usize) == expected)
}

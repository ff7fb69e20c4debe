//! The host program's object file, its variants, and the layout of its maps.

use std::path::Path;

use aya::{
    Ebpf, EbpfLoader,
    maps::{MapError, MapInfo},
    programs::Xdp,
};
use sumac_loader::{LoadError, Variant, program};
use sumac_wire::{
    MAX_JOBS,
    reason::COUNTERS,
    tables::{HOST_JOB_WAYS, HostJobEntry, MAX_QUEUES, QueueCounters},
};

use crate::pins::{self, HostPins};

/// The version of the layout and meaning of the maps that programs, daemons and commands share. It is
/// incremented with every change to them that `is_compatible` does not see.
pub const ABI: u32 = 6;

static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("SUMAC_HOST_OBJECT"));

/// A program's name in the object file and, cut to 15 letters, in the kernel's list of programs.
pub fn name(variant: Variant) -> &'static str {
    match variant {
        Variant::Plain => "sumac_host",
        Variant::Jumbo => "sumac_host_jumbo",
    }
}

/// Loads the program without pins: for tests and measurements.
pub fn load(variant: Variant) -> Result<Ebpf, LoadError> {
    load_with(&mut EbpfLoader::new(), variant)
}

/// Loads the program over the maps that are pinned, if they are to be kept, and else over new ones, which it
/// stages.
pub(crate) fn load_over(pins: &HostPins, variant: Variant, keep: bool) -> Result<Ebpf, LoadError> {
    let mut loader = EbpfLoader::new();
    for (map, pin) in pins::KEPT {
        loader.map_pin_path(map, if keep { pins.pin(pin) } else { pins.directory.staged(pin) });
    }
    load_with(&mut loader, variant)
}

fn load_with(loader: &mut EbpfLoader<'_>, variant: Variant) -> Result<Ebpf, LoadError> {
    let mut ebpf = program::load_object(loader, OBJECT)?;
    program::load(&mut ebpf, name(variant))?;
    Ok(ebpf)
}

pub fn xdp(ebpf: &mut Ebpf, variant: Variant) -> Result<&mut Xdp, LoadError> {
    program::find(ebpf, name(variant))
}

/// Returns whether a pinned map has this build's layout, so that its content may be kept.
pub(crate) fn is_compatible(map: &str, pin: &Path) -> Result<bool, MapError> {
    let info = MapInfo::from_pin(pin)?;
    let expected = match map {
        "SOCKETS" => (4, MAX_QUEUES),
        "JOBS" => (size_of::<HostJobEntry>(), MAX_JOBS * HOST_JOB_WAYS),
        "COUNTERS" => (size_of::<u64>(), COUNTERS),
        "QUEUES" => (size_of::<QueueCounters>(), MAX_QUEUES),
        _ => return Ok(true),
    };
    Ok((info.value_size() as usize, info.max_entries() as usize) == expected)
}

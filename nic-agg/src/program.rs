//! The object with the XDP programs, and how it is brought into the kernel.

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{MapError, ProgramArray},
    programs::{ProgramError, Xdp},
};
use sumac_agg_layout::{DYNAMIC_ENTRY, name};
use thiserror::Error;

use crate::pins::{self, PinDir};

static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("SUMAC_AGG_OBJECT"));

/// Which of the programs are loaded. The kernel lets no map of ports have programs of both kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// For frames of one buffer.
    #[default]
    Plain,
    /// For frames of several buffers (Linux 5.18).
    Jumbo,
}

impl Variant {
    fn ingress(self) -> &'static str {
        match self {
            Variant::Plain => name::INGRESS_PROGRAM,
            Variant::Jumbo => name::JUMBO_INGRESS_PROGRAM,
        }
    }

    fn egress(self) -> &'static str {
        match self {
            Variant::Plain => name::EGRESS_PROGRAM,
            Variant::Jumbo => name::JUMBO_EGRESS_PROGRAM,
        }
    }

    fn dynamic(self) -> &'static str {
        match self {
            Variant::Plain => name::DYNAMIC_PROGRAM,
            Variant::Jumbo => name::JUMBO_DYNAMIC_PROGRAM,
        }
    }

    /// Slots that hold more than one page.
    fn tails(self, slots: u32) -> u32 {
        match self {
            Variant::Plain => 1,
            Variant::Jumbo => slots,
        }
    }
}

/// How large the pools are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// Slots for static jobs.
    pub slots: u32,
    /// Slots of each shard for dynamic jobs; zero: they are not served.
    pub dynamic_slots: u32,
    /// Shards.
    pub shards: u16,
}

impl Pools {
    /// Slots for dynamic jobs, of all shards.
    #[must_use]
    pub fn all_dynamic_slots(&self) -> u32 {
        self.dynamic_slots.saturating_mul(u32::from(self.shards))
    }
}

/// Why the programs did not come into the kernel.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The maps could not be made or opened.
    #[error(
        "making or opening the aggregator's maps: {0}; `sumac-agg detach --all` removes those of another version"
    )]
    Maps(#[source] Box<EbpfError>),
    /// The program for dynamic jobs was not put behind the first one.
    #[error("writing map {map}: {0}", map = name::MODES)]
    Modes(#[source] MapError),
    /// The kernel refused a program.
    #[error("the kernel refused program {program}: {what}")]
    Refused {
        /// The program.
        program: &'static str,
        /// What the kernel said, and the end of the verifier's log.
        what: String,
        /// The whole of it.
        source: Box<ProgramError>,
    },
    /// The object lacks a program.
    #[error("this build holds no XDP program {program}: build it again with `make build`")]
    Missing {
        /// The program.
        program: &'static str,
    },
}

impl LoadError {
    pub(crate) fn refused(program: &'static str, source: ProgramError) -> LoadError {
        let what = match &source {
            ProgramError::LoadError { io_error, verifier_log } => {
                // The log tells the way of every state, by the megabyte; its end tells what was wrong.
                const LINES: usize = 8;
                let log = verifier_log.to_string();
                let lines: Vec<_> = log.lines().collect();
                let end = lines[lines.len().saturating_sub(LINES)..].join("\n  ");
                format!("{io_error}; its verifier says:\n  {end}")
            }
            other => other.to_string(),
        };
        LoadError::Refused { program, what, source: Box::new(source) }
    }
}

/// Loads programs and maps, without pins: for tests and measurements.
///
/// # Errors
/// When the kernel refuses the maps or a program.
pub fn load(variant: Variant, pools: Pools) -> Result<Ebpf, LoadError> {
    load_with(&mut EbpfLoader::new(), variant, pools, &[variant.ingress(), variant.egress()])
}

/// Loads the program that plays jobs, without pins.
///
/// # Errors
/// When the kernel refuses the maps or the program.
pub(crate) fn load_rehearsal(pools: Pools) -> Result<Ebpf, LoadError> {
    load_with(&mut EbpfLoader::new(), Variant::Plain, pools, &[name::REHEARSAL_PROGRAM])
}

/// Loads the programs over the maps that are pinned already, and makes and pins those that are not.
pub(crate) fn load_over(pins: &PinDir, variant: Variant, pools: Pools) -> Result<Ebpf, LoadError> {
    let mut loader = EbpfLoader::new();
    for map in pins::MAPS {
        loader.map_pin_path(map, pins.map(map));
    }
    load_with(&mut loader, variant, pools, &[variant.ingress(), variant.egress()])
}

fn load_with(
    loader: &mut EbpfLoader<'_>,
    variant: Variant,
    pools: Pools,
    programs: &[&'static str],
) -> Result<Ebpf, LoadError> {
    loader.map_max_entries(name::SLOTS, pools.slots);
    loader.map_max_entries(name::BEGAN, pools.slots);
    loader.map_max_entries(name::TAILS, variant.tails(pools.slots));
    // The kernel makes no array without entries.
    loader.map_max_entries(name::DYNAMIC_SLOTS, pools.all_dynamic_slots().max(1));
    let mut ebpf = loader.load(OBJECT).map_err(|error| LoadError::Maps(Box::new(error)))?;
    for program in programs {
        let xdp = find(&mut ebpf, program)?;
        xdp.load().map_err(|source| LoadError::refused(program, source))?;
    }
    if pools.dynamic_slots > 0 {
        add_dynamic(&mut ebpf, variant.dynamic())?;
    }
    Ok(ebpf)
}

/// Loads the program for dynamic jobs, and lets the first one hand their packets on to it.
fn add_dynamic(ebpf: &mut Ebpf, program: &'static str) -> Result<(), LoadError> {
    let refused = |source| LoadError::refused(program, source);
    let xdp = find(ebpf, program)?;
    xdp.load().map_err(refused)?;
    let fd = xdp.fd().map_err(refused)?.try_clone().map_err(|source| refused(source.into()))?;
    let map = ebpf.map_mut(name::MODES).ok_or(LoadError::Modes(MapError::ElementNotFound))?;
    let mut modes = ProgramArray::try_from(map).map_err(LoadError::Modes)?;
    modes.set(DYNAMIC_ENTRY, &fd, 0).map_err(LoadError::Modes)
}

/// The program that aggregates.
///
/// # Errors
/// [`LoadError::Missing`] when the object is not the aggregator's.
pub fn ingress(ebpf: &mut Ebpf, variant: Variant) -> Result<&mut Xdp, LoadError> {
    find(ebpf, variant.ingress())
}

/// The program that addresses the copies of results.
///
/// # Errors
/// As [`ingress`].
pub fn egress(ebpf: &mut Ebpf, variant: Variant) -> Result<&mut Xdp, LoadError> {
    find(ebpf, variant.egress())
}

/// The program that plays jobs.
pub(crate) fn rehearsal(ebpf: &mut Ebpf) -> Result<&mut Xdp, LoadError> {
    find(ebpf, name::REHEARSAL_PROGRAM)
}

fn find<'a>(ebpf: &'a mut Ebpf, program: &'static str) -> Result<&'a mut Xdp, LoadError> {
    let found = ebpf.program_mut(program).ok_or(LoadError::Missing { program })?;
    found.try_into().map_err(|source| LoadError::refused(program, source))
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _, RelocationFlags};

    /// Kernels before 6.2 verify a program that calls functions of its own without forgetting what no longer
    /// matters, and give up on this one.
    #[test]
    fn programs_call_no_functions() {
        const R_BPF_64_32: u32 = 10;
        let object = object::File::parse(super::OBJECT).unwrap();
        for name in ["xdp", "xdp/devmap", "xdp.frags", "xdp.frags/devmap"] {
            let section = object.section_by_name(name).unwrap();
            let calls = section.relocations().filter(|(_, relocation)| {
                matches!(relocation.flags(), RelocationFlags::Elf { r_type: R_BPF_64_32 })
            });
            assert_eq!(calls.count(), 0, "calls in section {name}");
        }
    }
}

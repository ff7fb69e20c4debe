//! The aggregator's object file, and the loading of its programs.

use aya::{
    Ebpf, EbpfLoader,
    maps::{MapError, ProgramArray},
    programs::Xdp,
};
use sumac_agg_layout::{DYNAMIC_ENTRY, INGRESS_ENTRY, name};
use sumac_loader::{LoadError, Variant, program};
use sumac_wire::{MAX_HOSTS, MAX_LANES, MAX_WORKERS};

use crate::{pins::AggregatorPins, pool::Pools};

static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("SUMAC_AGG_OBJECT"));

/// The maps with an entry for each job, worker or lane.
const OF_JOBS: [&str; 5] = [name::JOBS, name::JOB_COUNTERS, name::DROPS, name::INJECTED, name::TIMES];
const OF_WORKERS: [&str; 6] =
    [name::WORKERS, name::EGRESS, name::ADDRESSES, name::LATENESS, name::WORKER_COUNTERS, name::SURVEYS];
const OF_LANES: [&str; 2] = [name::LANES, name::BUDGETS];

fn by_variant(variant: Variant, plain: &'static str, jumbo: &'static str) -> &'static str {
    match variant {
        Variant::Plain => plain,
        Variant::Jumbo => jumbo,
    }
}

fn ingress_name(variant: Variant) -> &'static str {
    by_variant(variant, name::INGRESS_PROGRAM, name::JUMBO_INGRESS_PROGRAM)
}

fn egress_name(variant: Variant) -> &'static str {
    by_variant(variant, name::EGRESS_PROGRAM, name::JUMBO_EGRESS_PROGRAM)
}

/// Loads programs and maps, without pins: for tests.
pub fn load(variant: Variant, pools: Pools) -> Result<Ebpf, LoadError> {
    let programs = [ingress_name(variant), egress_name(variant)];
    load_with(&mut EbpfLoader::new(), OBJECT, variant, pools, &programs)
}

/// Loads the programs over the pinned maps, if the pool is kept, and else over new ones, which it stages.
pub(crate) fn load_over(
    pins: &AggregatorPins,
    variant: Variant,
    pools: Pools,
    keep: bool,
) -> Result<Ebpf, LoadError> {
    let mut loader = EbpfLoader::new();
    for map in name::KEPT {
        loader.map_pin_path(map, pins.map_of(map, keep));
    }
    load_with(&mut loader, OBJECT, variant, pools, &[ingress_name(variant), egress_name(variant)])
}

/// Loads programs of an object with the aggregator's maps.
pub fn load_with(
    loader: &mut EbpfLoader<'_>,
    object: &[u8],
    variant: Variant,
    pools: Pools,
    programs: &[&'static str],
) -> Result<Ebpf, LoadError> {
    loader.map_max_entries(name::SLOTS, pools.slots);
    loader.map_max_entries(name::BEGAN, pools.slots);
    // Only a jumbo frame has elements beyond the first page. The kernel makes no array without entries.
    loader.map_max_entries(name::TAILS, if variant == Variant::Jumbo { pools.slots } else { 1 });
    loader.map_max_entries(name::DYNAMIC_SLOTS, pools.all_dynamic_slots().max(1));
    let jobs = pools.jobs;
    let mut resize = |maps: &[&'static str], of_job: usize| {
        for map in maps {
            loader.map_max_entries(map, jobs * of_job as u32);
        }
    };
    resize(&OF_JOBS, 1);
    resize(&OF_WORKERS, MAX_WORKERS);
    resize(&OF_LANES, MAX_LANES);
    resize(&[name::PARENTS], MAX_HOSTS);
    let mut ebpf = program::load_object(loader, object)?;
    for name in programs {
        program::load(&mut ebpf, name)?;
    }
    // A frame that the first program has made longer begins anew there.
    if programs.contains(&ingress_name(variant)) {
        enter(&mut ebpf, INGRESS_ENTRY, ingress_name(variant))?;
    }
    // The first program passes the packets of dynamic jobs to another one.
    if pools.dynamic_slots > 0 {
        let dynamic = by_variant(variant, name::DYNAMIC_PROGRAM, name::JUMBO_DYNAMIC_PROGRAM);
        program::load(&mut ebpf, dynamic)?;
        enter(&mut ebpf, DYNAMIC_ENTRY, dynamic)?;
    }
    Ok(ebpf)
}

/// Makes a loaded program the one of a tail call.
fn enter(ebpf: &mut Ebpf, index: u32, program: &'static str) -> Result<(), LoadError> {
    let refused = |source| LoadError::refused(program, source);
    let fd = program::find(ebpf, program)?.fd().map_err(refused)?;
    let fd = fd.try_clone().map_err(|source| refused(source.into()))?;
    let map = ebpf.map_mut(name::MODES).ok_or(MapError::ElementNotFound);
    let modes = map.and_then(ProgramArray::try_from);
    let set = modes.and_then(|mut modes| modes.set(index, &fd, 0));
    set.map_err(|source| LoadError::Map { map: name::MODES, source })
}

pub fn ingress(ebpf: &mut Ebpf, variant: Variant) -> Result<&mut Xdp, LoadError> {
    program::find(ebpf, ingress_name(variant))
}

pub fn egress(ebpf: &mut Ebpf, variant: Variant) -> Result<&mut Xdp, LoadError> {
    program::find(ebpf, egress_name(variant))
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _, RelocationFlags};

    /// Before Linux 6.2 the verifier keeps state that no longer matters across calls, and gives up on this
    /// program.
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

//! Requirements of kernel and machine for attaching, checked before anything is loaded.

use std::{fs, path::Path};

use aya::{
    maps::MapType,
    programs::ProgramType,
    sys::{is_map_supported, is_program_supported},
};
use sumac_loader::{
    Variant,
    preflight::{self, PreflightError},
};
use thiserror::Error;

use crate::pool::Pools;

#[derive(Debug, Error)]
pub enum NotReady {
    #[error(transparent)]
    System(#[from] PreflightError),
    #[error(
        "this kernel lacks {missing}: it needs CONFIG_BPF_SYSCALL, CONFIG_XDP_SOCKETS and CONFIG_NET of 5.15 \
        or newer"
    )]
    Features { missing: String },
    #[error(
        "{slots} slots, {dynamic_slots} for dynamic jobs and the tables of {jobs} jobs need {needed_mib} MiB \
         of kernel memory, but {available_mib} MiB are available; give fewer --slots, --dynamic-slots or \
         --jobs"
    )]
    Memory { slots: u32, dynamic_slots: u32, jobs: u32, needed_mib: u64, available_mib: u64 },
}

/// The kinds of maps in the object, with the kernel that introduced each.
const MAPS: [(MapType, &str); 5] = [
    (MapType::Array, "array maps"),
    (MapType::Hash, "hash maps"),
    (MapType::PerCpuArray, "per-CPU array maps"),
    (MapType::DevMapHash, "device maps by index (redirect to ports, Linux 5.4)"),
    (MapType::RingBuf, "ring buffers (messages, Linux 5.8)"),
];

/// Checks the requirements for attaching pools of these sizes below `pin_root`, and mounts the bpffs when it
/// is missing.
pub fn check(pin_root: &Path, pools: Pools, variant: Variant) -> Result<(), NotReady> {
    preflight::check(pin_root)?;
    features()?;
    let cpus = aya::util::nr_cpus().unwrap_or(1) as u64;
    memory(pools, variant, cpus, available_memory())?;
    if fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").is_ok_and(|on| on.trim() == "0") {
        tracing::warn!("the kernel interprets BPF, which is slow: sysctl net.core.bpf_jit_enable=1");
    }
    Ok(())
}

fn features() -> Result<(), NotReady> {
    let mut missing = Vec::new();
    // A probe that fails is no evidence; loading is.
    if matches!(is_program_supported(ProgramType::Xdp), Ok(false)) {
        missing.push("XDP programs");
    }
    missing.extend(
        MAPS.iter().filter(|(kind, _)| matches!(is_map_supported(*kind), Ok(false))).map(|(_, name)| *name),
    );
    if missing.is_empty() { Ok(()) } else { Err(NotReady::Features { missing: missing.join(", ") }) }
}

/// Returns the bytes of memory available to the kernel; `None` when they are unknown.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn memory(pools: Pools, variant: Variant, cpus: u64, available: Option<u64>) -> Result<(), NotReady> {
    const MIB: u64 = 1 << 20;
    let needed = pools.memory(variant) + pools.tables(cpus);
    match available {
        Some(available) if needed > available => Err(NotReady::Memory {
            slots: pools.slots,
            dynamic_slots: pools.all_dynamic_slots(),
            jobs: pools.jobs.saturating_sub(1),
            needed_mib: needed.div_ceil(MIB),
            available_mib: available / MIB,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_does_not_fit_is_refused_with_both_sizes() {
        let pools = Pools { slots: 1024, dynamic_slots: 0, shards: 2, jobs: 1 };
        assert!(memory(pools, Variant::Plain, 1, None).is_ok());
        assert!(memory(pools, Variant::Plain, 1, Some(7 << 20)).is_ok());
        assert!(memory(pools, Variant::Jumbo, 1, Some(16 << 20)).is_err(), "jumbo frames need more");
        let both = Pools { dynamic_slots: 1024, ..pools };
        let text = memory(both, Variant::Plain, 1, Some(13 << 20)).unwrap_err().to_string();
        assert!(
            text.contains("1024 slots, 2048 for dynamic jobs and the tables of 0 jobs need 14 MiB"),
            "{text}"
        );
        assert!(text.contains("13 MiB are available"), "{text}");
        let many = Pools { jobs: 1024, ..pools };
        assert!(memory(many, Variant::Plain, 1, Some(20 << 20)).is_err(), "tables of jobs count");
        assert!(memory(many, Variant::Plain, 1, Some(30 << 20)).is_ok());
        assert!(memory(many, Variant::Plain, 64, Some(30 << 20)).is_err(), "for each CPU");
    }
}

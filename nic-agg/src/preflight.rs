//! What attaching needs from kernel and machine, checked before anything is loaded.

use std::{fs, path::Path};

use aya::{
    maps::MapType,
    programs::ProgramType,
    sys::{is_map_supported, is_program_supported},
};
use sumac_agg_layout::{DynamicSlot, Slot, Tail};
use sumac_hostprog::preflight::{self, PreflightError};
use thiserror::Error;

use crate::program::{Pools, Variant};

/// Why the system is not ready.
#[derive(Debug, Error)]
pub enum NotReady {
    /// Privileges, kernel version, or bpffs.
    #[error(transparent)]
    System(#[from] PreflightError),
    /// The kernel was built without something.
    #[error(
        "this kernel lacks {missing}: it needs CONFIG_BPF_SYSCALL, CONFIG_XDP_SOCKETS and CONFIG_NET of 5.15 or newer"
    )]
    Features {
        /// Their names, joined.
        missing: String,
    },
    /// Not enough memory.
    #[error(
        "{slots} slots and {dynamic_slots} for dynamic jobs need {needed_mib} MiB of kernel memory, but \
         {available_mib} MiB are available; give fewer --slots or --dynamic-slots"
    )]
    Memory {
        /// Slots asked for.
        slots: u32,
        /// Slots for dynamic jobs, of all shards.
        dynamic_slots: u32,
        /// What they take.
        needed_mib: u64,
        /// What there is.
        available_mib: u64,
    },
}

/// What the programs are made of, with the kernel that brought each.
const MAPS: [(MapType, &str); 5] = [
    (MapType::Array, "array maps"),
    (MapType::Hash, "hash maps"),
    (MapType::PerCpuArray, "per-CPU array maps"),
    (MapType::DevMapHash, "device maps by index (redirect to ports, Linux 5.4)"),
    (MapType::RingBuf, "ring buffers (messages, Linux 5.8)"),
];

/// Checks all that attaching pools of these sizes below `pin_root` needs. Mounts the bpffs when it is missing.
///
/// # Errors
/// What is missing, and what to do about it.
pub fn check(pin_root: &Path, pools: Pools, variant: Variant) -> Result<(), NotReady> {
    preflight::check(pin_root)?;
    features()?;
    memory(pools, variant, available_memory())?;
    if fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").is_ok_and(|on| on.trim() == "0") {
        tracing::warn!("the kernel interprets BPF, which is slow: sysctl net.core.bpf_jit_enable=1");
    }
    Ok(())
}

fn features() -> Result<(), NotReady> {
    let mut missing = Vec::new();
    // A probe that fails says nothing about the feature; loading will.
    if matches!(is_program_supported(ProgramType::Xdp), Ok(false)) {
        missing.push("XDP programs");
    }
    missing.extend(
        MAPS.iter().filter(|(kind, _)| matches!(is_map_supported(*kind), Ok(false))).map(|(_, name)| *name),
    );
    if missing.is_empty() { Ok(()) } else { Err(NotReady::Features { missing: missing.join(", ") }) }
}

/// Bytes of kernel memory that the pools take.
#[must_use]
pub fn pool_memory(pools: Pools, variant: Variant) -> u64 {
    let tail = if variant == Variant::Jumbo { size_of::<Tail>() } else { 0 };
    let dynamic = u64::from(pools.all_dynamic_slots()) * size_of::<DynamicSlot>() as u64;
    u64::from(pools.slots) * (size_of::<Slot>() + tail) as u64 + dynamic
}

/// Bytes that the kernel could give; none when it does not say.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn memory(pools: Pools, variant: Variant, available: Option<u64>) -> Result<(), NotReady> {
    const MIB: u64 = 1 << 20;
    let needed = pool_memory(pools, variant);
    match available {
        Some(available) if needed > available => Err(NotReady::Memory {
            slots: pools.slots,
            dynamic_slots: pools.all_dynamic_slots(),
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
    fn a_pool_that_does_not_fit_says_by_how_much() {
        let pools = Pools { slots: 1024, dynamic_slots: 0, shards: 2 };
        assert!(memory(pools, Variant::Plain, None).is_ok());
        assert!(memory(pools, Variant::Plain, Some(7 << 20)).is_ok());
        assert!(memory(pools, Variant::Jumbo, Some(16 << 20)).is_err(), "jumbo frames need more");
        let both = Pools { dynamic_slots: 1024, ..pools };
        let text = memory(both, Variant::Plain, Some(13 << 20)).unwrap_err().to_string();
        assert!(text.contains("1024 slots and 2048 for dynamic jobs need 14 MiB"), "{text}");
        assert!(text.contains("13 MiB are available"), "{text}");
    }
}

//! What attaching needs from kernel and machine, checked before anything is loaded.

use std::{fs, path::Path};

use aya::{
    maps::MapType,
    programs::ProgramType,
    sys::{is_map_supported, is_program_supported},
};
use sumac_agg_layout::{Slot, Tail};
use sumac_hostprog::preflight::{self, PreflightError};
use thiserror::Error;

use crate::program::Variant;

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
        "{slots} slots need {needed_mib} MiB of kernel memory, but {available_mib} MiB are available; \
         give fewer --slots"
    )]
    Memory {
        /// Slots asked for.
        slots: u32,
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

/// Checks all that attaching a pool of `slots` below `pin_root` needs. Mounts the bpffs when it is missing.
///
/// # Errors
/// What is missing, and what to do about it.
pub fn check(pin_root: &Path, slots: u32, variant: Variant) -> Result<(), NotReady> {
    preflight::check(pin_root)?;
    features()?;
    memory(slots, variant, available_memory())?;
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

/// Bytes of kernel memory that a pool takes.
#[must_use]
pub fn pool_memory(slots: u32, variant: Variant) -> u64 {
    let tail = if variant == Variant::Jumbo { size_of::<Tail>() } else { 0 };
    u64::from(slots) * (size_of::<Slot>() + tail) as u64
}

/// Bytes that the kernel could give; none when it does not say.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn memory(slots: u32, variant: Variant, available: Option<u64>) -> Result<(), NotReady> {
    const MIB: u64 = 1 << 20;
    let needed = pool_memory(slots, variant);
    match available {
        Some(available) if needed > available => {
            Err(NotReady::Memory { slots, needed_mib: needed.div_ceil(MIB), available_mib: available / MIB })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_does_not_fit_says_by_how_much() {
        assert!(memory(1024, Variant::Plain, None).is_ok());
        assert!(memory(1024, Variant::Plain, Some(7 << 20)).is_ok());
        let text = memory(1024, Variant::Plain, Some(6 << 20)).unwrap_err().to_string();
        assert!(memory(1024, Variant::Jumbo, Some(16 << 20)).is_err(), "jumbo frames need more");
        assert!(text.contains("1024 slots need 7 MiB") && text.contains("6 MiB are available"), "{text}");
    }
}

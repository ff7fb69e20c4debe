//! The source ports of what goes to a worker ([`sumac_wire::result_paths`]).

use core::intrinsics::{AtomicOrdering::SeqCst, atomic_cxchg};

use aya_ebpf::helpers::bpf_ktime_get_ns;
use sumac_wire::{
    FIRST_SOURCE_PORT, Header, MAX_LANES,
    result_paths::{self, RESULT_PATHS},
    tables::WorkerEntry,
};

use crate::{answer::Addresses, maps::SURVEYS};

/// The record of a worker's last survey in a lane, with the paths that its results avoid. Other CPUs read and
/// write the word, too.
#[derive(Clone, Copy)]
pub struct Avoided(Option<*mut u32>);

impl Avoided {
    #[inline(always)]
    pub fn of(worker: &WorkerEntry, worker_index: u32, lane: u16) -> Avoided {
        let kept = if worker.paths > 1 { SURVEYS.get_ptr_mut(worker_index) } else { None };
        Avoided(kept.map(|kept| kept.cast::<u32>().wrapping_add(usize::from(lane) & (MAX_LANES - 1))))
    }

    #[inline(always)]
    fn record(self) -> u32 {
        // SAFETY: within the value, one aligned word.
        self.0.map_or(0, |kept| unsafe { kept.read_volatile() })
    }

    #[inline(always)]
    fn get(self) -> u16 {
        result_paths::of_record(self.record())
    }

    /// Keeps the paths that a probe names.
    #[inline(always)]
    fn set(self, probe: &Header, count: u16) {
        let Some(kept) = self.0 else { return };
        let before = self.record();
        let after = result_paths::recorded(before, probe, count);
        if after != before {
            // It fails where another CPU has changed the record meanwhile, perhaps to a later survey. The
            // probe is then dropped: its survey has others with the same paths.
            // SAFETY: as in `record`.
            let _ = unsafe { atomic_cxchg::<u32, { SeqCst }, { SeqCst }>(kept, before, after) };
        }
    }
}

/// As these addresses, from the port of the path of the result of chunk `seq`.
#[inline(always)]
pub fn of_result(to: Addresses, worker: &WorkerEntry, avoided: Avoided, seq: u32) -> Addresses {
    by(to, result_paths::of_result(avoided.get(), worker.paths, seq))
}

/// As these addresses, from the port of a path for an answer about chunk `seq`, another one each time.
#[inline(always)]
pub fn of_reply(to: Addresses, worker: &WorkerEntry, avoided: Avoided, seq: u32) -> Addresses {
    if worker.paths <= 1 {
        return to;
    }
    // SAFETY: the helper takes nothing and reads the clock.
    let now = (unsafe { bpf_ktime_get_ns() } >> 10) as u32;
    by(to, result_paths::of_reply(avoided.get(), worker.paths, seq.wrapping_add(now)))
}

/// Keeps the paths that a worker's probe names, and returns the addresses from the port of its answer's path.
#[inline(always)]
pub fn of_report(to: Addresses, worker: &WorkerEntry, kept: Avoided, probe: &Header) -> Addresses {
    kept.set(probe, worker.paths);
    by(to, result_paths::of_report(probe, worker.paths))
}

#[inline(always)]
fn by(to: Addresses, path: u16) -> Addresses {
    let path = path % RESULT_PATHS as u16;
    if path == 0 { to } else { Addresses { src_port: FIRST_SOURCE_PORT.wrapping_add(path), ..to } }
}

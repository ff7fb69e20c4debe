//! The source ports of what goes to a worker ([`sumac_wire::result_paths`]).

use aya_ebpf::helpers::bpf_ktime_get_ns;
use sumac_wire::{
    FIRST_SOURCE_PORT, Header, MAX_LANES,
    result_paths::{self, RESULT_PATHS},
    tables::WorkerEntry,
};

use crate::{answer::Addresses, maps::AVOIDED};

/// The paths that a lane's results for a worker avoid. Other CPUs read and write the word, too.
#[derive(Clone, Copy)]
pub struct Avoided(Option<*mut u16>);

impl Avoided {
    #[inline(always)]
    pub fn of(worker: &WorkerEntry, worker_index: u32, lane: u16) -> Avoided {
        let kept = if worker.paths > 1 { AVOIDED.get_ptr_mut(worker_index) } else { None };
        Avoided(kept.map(|kept| kept.cast::<u16>().wrapping_add(usize::from(lane) & (MAX_LANES - 1))))
    }

    #[inline(always)]
    fn get(self) -> u16 {
        // SAFETY: within the value, one aligned word.
        self.0.map_or(0, |kept| unsafe { kept.read_volatile() })
    }

    #[inline(always)]
    fn set(self, avoided: u16) {
        if let Some(kept) = self.0 {
            // SAFETY: as in `get`.
            unsafe { kept.write_volatile(avoided) }
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
    if let Some(avoided) = result_paths::avoided(probe, worker.paths) {
        kept.set(avoided);
    }
    by(to, result_paths::of_report(probe, worker.paths))
}

#[inline(always)]
fn by(to: Addresses, path: u16) -> Addresses {
    let path = path % RESULT_PATHS as u16;
    if path == 0 { to } else { Addresses { src_port: FIRST_SOURCE_PORT.wrapping_add(path), ..to } }
}

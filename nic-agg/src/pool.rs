//! The pools of slots and the tables of jobs: their sizes, and the memory that they take.

use std::time::Duration;

use sumac_agg_layout::{
    Drops, DynamicSlot, Injected, LaneBudget, Lateness, Slot, State, Tail, Times, state_flag,
};
use sumac_loader::Variant;
use sumac_wire::{
    MAX_HOSTS, MAX_JOBS, MAX_LANES, MAX_WORKERS,
    reason::COUNTERS,
    tables::{JobEntry, WorkerCounters, WorkerEntry},
};

/// 26 MiB, or 70 MiB for jumbo frames.
pub const DEFAULT_SLOTS: u32 = 4096;
/// Slots of each shard that dynamic jobs share: 3.3 MiB.
pub const DEFAULT_DYNAMIC_SLOTS: u32 = 1024;
/// The time without packets after which a dynamic job loses its slots to others.
pub const DEFAULT_SLOT_TIMEOUT: Duration = Duration::from_secs(1);
/// Jobs at once. Their tables have a part for each CPU.
pub const DEFAULT_JOBS: u16 = 255;
pub const MOST_JOBS: u16 = MAX_JOBS as u16 - 1;

/// Bytes of a per-CPU array's entry in the kernel besides its values.
const POINTER: usize = size_of::<u64>();
/// Bytes of an entry of a hash map with key and value of up to 8 bytes, with its bucket.
const HASHED: usize = 48 + 2 * 8 + 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    pub slots: u32,
    /// Slots of each shard for dynamic jobs; zero: none are served.
    pub dynamic_slots: u32,
    pub shards: u16,
    /// Numbers of jobs, 0 among them.
    pub jobs: u32,
}

impl Pools {
    pub fn of(state: &State) -> Pools {
        let State { slots, dynamic_slots, shards, jobs, .. } = *state;
        Pools { slots, dynamic_slots, shards, jobs }
    }

    pub fn all_dynamic_slots(&self) -> u32 {
        self.dynamic_slots.saturating_mul(u32::from(self.shards))
    }

    pub fn memory(&self, variant: Variant) -> u64 {
        let tail = if variant == Variant::Jumbo { size_of::<Tail>() } else { 0 };
        let dynamic = u64::from(self.all_dynamic_slots()) * size_of::<DynamicSlot>() as u64;
        u64::from(self.slots) * (size_of::<Slot>() + tail) as u64 + dynamic
    }

    /// Returns the bytes of kernel memory of all tables of jobs, on a machine with so many CPUs: 17.5 KiB for
    /// each job, and 2.4 KiB for each CPU.
    pub fn tables(&self, cpus: u64) -> u64 {
        let of_worker = size_of::<WorkerEntry>() + 2 * HASHED + 4 * MAX_LANES + 2 * POINTER;
        // The kernel rounds values up to words.
        let of_lane = 8 + size_of::<LaneBudget>().next_multiple_of(8);
        let own = size_of::<JobEntry>() + size_of::<Drops>() + 3 * POINTER;
        let of_job =
            own + MAX_WORKERS * of_worker + MAX_HOSTS * size_of::<WorkerEntry>() + MAX_LANES * of_lane;
        let counts = 8 * COUNTERS + size_of::<Injected>() + size_of::<Times>();
        let of_cpu = counts + MAX_WORKERS * (size_of::<Lateness>() + size_of::<WorkerCounters>());
        u64::from(self.jobs) * (of_job as u64 + cpus * of_cpu as u64)
    }
}

pub fn variant_of(state: &State) -> Variant {
    if state.flags & state_flag::JUMBO != 0 { Variant::Jumbo } else { Variant::Plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of `attach --help` and of docs/tuning.md.
    #[test]
    fn a_jobs_tables_take_what_the_help_says() {
        let one = Pools { slots: 0, dynamic_slots: 0, shards: 1, jobs: 1 };
        let kib = |bytes: u64| format!("{:.1}", bytes as f64 / 1024.0);
        assert_eq!(kib(one.tables(0)), "17.5");
        assert_eq!(kib(one.tables(1) - one.tables(0)), "2.4");
    }
}

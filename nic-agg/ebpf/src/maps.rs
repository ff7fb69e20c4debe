//! The maps of the programs, but for those of `work` and `copied`; names and layouts of `sumac_agg_layout`.

use aya_ebpf::{
    btf_maps::{Array, DevMapHash, HashMap, PerCpuArray, ProgramArray},
    macros::btf_map,
};
use sumac_agg_layout::{
    Began, Drops, DynamicSlot, EVENTS, Injected, LANE_ENTRIES, LaneBudget, Lateness, Limiter, MAX_PORTS,
    PARENT_ENTRIES, Slot, State, Tail, Times, WORKER_ENTRIES,
};
use sumac_wire::{
    MAX_JOBS, MAX_LANES, Reason,
    reason::COUNTERS as REASONS,
    tables::{EgressKey, JobEntry, WorkerCounters, WorkerEntry},
};

#[btf_map]
pub static STATE: Array<State, 1> = Array::new();
/// The loader sets the sizes of the tables of jobs, workers, parents and lanes by `State::jobs`.
#[btf_map]
pub static JOBS: Array<JobEntry, MAX_JOBS> = Array::new();
#[btf_map]
pub static WORKERS: Array<WorkerEntry, WORKER_ENTRIES> = Array::new();
/// The parents of each job that has any, seen from this aggregator.
#[btf_map]
pub static PARENTS: Array<WorkerEntry, PARENT_ENTRIES> = Array::new();
/// The chunk that is drawn next, by job and lane.
#[btf_map]
pub static LANES: Array<u32, LANE_ENTRIES> = Array::new();
/// By job and lane.
#[btf_map]
pub static BUDGETS: Array<LaneBudget, LANE_ENTRIES> = Array::new();
#[btf_map]
pub static EGRESS: HashMap<EgressKey, u32, WORKER_ENTRIES> = HashMap::new();
/// By their interfaces' indices.
#[btf_map]
pub static PORTS: DevMapHash<MAX_PORTS> = DevMapHash::new();
/// The loader sets the number of slots.
#[btf_map]
pub static SLOTS: Array<Slot, 1> = Array::new();
/// As many as slots in a pool for jumbo frames.
#[btf_map]
pub static TAILS: Array<Tail, 1> = Array::new();
/// The loader sets their number: so many of each shard.
#[btf_map]
pub static DYNAMIC_SLOTS: Array<DynamicSlot, 1> = Array::new();
/// The program of the other mode, and the first one itself.
#[btf_map]
pub static MODES: ProgramArray<2> = ProgramArray::new();
#[btf_map]
pub static COUNTERS: PerCpuArray<u64, REASONS> = PerCpuArray::new();
#[btf_map]
pub static JOB_COUNTERS: PerCpuArray<[u64; REASONS], MAX_JOBS> = PerCpuArray::new();
#[btf_map]
pub static DROPS: Array<Drops, MAX_JOBS> = Array::new();
#[btf_map]
pub static INJECTED: PerCpuArray<Injected, MAX_JOBS> = PerCpuArray::new();
/// As many as slots.
#[btf_map]
pub static BEGAN: Array<[Began; 2], 1> = Array::new();
#[btf_map]
pub static TIMES: PerCpuArray<Times, MAX_JOBS> = PerCpuArray::new();
#[btf_map]
pub static LATENESS: PerCpuArray<Lateness, WORKER_ENTRIES> = PerCpuArray::new();
#[btf_map]
pub static OWN: HashMap<u32, u64, MAX_PORTS> = HashMap::new();
#[btf_map]
pub static ADDRESSES: HashMap<u32, u32, WORKER_ENTRIES> = HashMap::new();
#[btf_map]
pub static WORKER_COUNTERS: PerCpuArray<WorkerCounters, WORKER_ENTRIES> = PerCpuArray::new();
/// By `worker_index`: the records of the lanes' last surveys (`sumac_wire::result_paths`).
#[btf_map]
pub static SURVEYS: Array<[u32; MAX_LANES], WORKER_ENTRIES> = Array::new();
#[btf_map]
pub static LIMITERS: PerCpuArray<Limiter, EVENTS> = PerCpuArray::new();

/// Counts a frame of `job`, 0 for none, on this CPU.
#[inline(always)]
pub fn count(reason: Reason, job: u16) {
    if let Some(counter) = COUNTERS.get_ptr_mut(reason as u32) {
        // SAFETY: the pointer is to this CPU's value, and nothing else runs on it meanwhile.
        unsafe { *counter += 1 };
    }
    if job == 0 {
        return;
    }
    if let Some(counters) = JOB_COUNTERS.get_ptr_mut(u32::from(job)) {
        let at = reason as usize;
        if at < REASONS {
            // SAFETY: as above, and the index was compared.
            unsafe { *counters.cast::<u64>().add(at) += 1 };
        }
    }
}

#[inline(always)]
pub fn count_worker(index: u32, change: impl FnOnce(&mut WorkerCounters)) {
    if let Some(counters) = WORKER_COUNTERS.get_ptr_mut(index) {
        // SAFETY: the pointer is to this CPU's value, and nothing else runs on it meanwhile.
        change(unsafe { &mut *counters });
    }
}

//! All maps of both programs. Names and layouts are those of `sumac_agg_layout`.

use aya_ebpf::{
    bindings::bpf_spin_lock,
    btf_maps::{Array, DevMap, HashMap, PerCpuArray},
    macros::btf_map,
};
use sumac_agg_layout::{EVENTS, Limiter, MAX_PORTS, Rehearsal, State, WORKER_ENTRIES};
use sumac_wire::{
    PAGE_ELEMENTS, MAX_JOBS, Reason,
    reason::COUNTERS as REASONS,
    slot::SlotMeta,
    tables::{EgressKey, JobEntry, WorkerCounters, WorkerEntry},
};

/// [`sumac_agg_layout::Slot`] as the kernel wants to see it: a lock is known by its type's name.
#[repr(C)]
pub struct Slot {
    pub lock: bpf_spin_lock,
    pub meta: SlotMeta,
    pub values: [[u32; PAGE_ELEMENTS]; 2],
}

const _: () = assert!(size_of::<Slot>() == size_of::<sumac_agg_layout::Slot>());
const _: () = assert!(
    core::mem::offset_of!(Slot, values) == core::mem::offset_of!(sumac_agg_layout::Slot, values)
        && core::mem::offset_of!(Slot, meta) == core::mem::offset_of!(sumac_agg_layout::Slot, meta)
);

#[btf_map]
pub static STATE: Array<State, 1> = Array::new();
#[btf_map]
pub static JOBS: Array<JobEntry, MAX_JOBS> = Array::new();
#[btf_map]
pub static WORKERS: Array<WorkerEntry, WORKER_ENTRIES> = Array::new();
#[btf_map]
pub static EGRESS: HashMap<EgressKey, u32, WORKER_ENTRIES> = HashMap::new();
#[btf_map]
pub static PORTS: DevMap<MAX_PORTS> = DevMap::new();
/// The loader sets the number of slots.
#[btf_map]
pub static SLOTS: Array<Slot, 1> = Array::new();
#[btf_map]
pub static COUNTERS: PerCpuArray<u64, REASONS> = PerCpuArray::new();
#[btf_map]
pub static WORKER_COUNTERS: PerCpuArray<WorkerCounters, WORKER_ENTRIES> = PerCpuArray::new();
#[btf_map]
pub static LIMITERS: PerCpuArray<Limiter, EVENTS> = PerCpuArray::new();
#[btf_map]
pub static REHEARSAL: Array<Rehearsal, 1> = Array::new();

/// Adds one to a reason's counter of this CPU.
#[inline(always)]
pub fn count(reason: Reason) {
    if let Some(counter) = COUNTERS.get_ptr_mut(reason as u32) {
        // SAFETY: the pointer is to this CPU's value, and nothing else runs on it meanwhile.
        unsafe { *counter += 1 };
    }
}

/// Changes the counters of one worker on this CPU.
#[inline(always)]
pub fn count_worker(index: u32, change: impl FnOnce(&mut WorkerCounters)) {
    if let Some(counters) = WORKER_COUNTERS.get_ptr_mut(index) {
        // SAFETY: the pointer is to this CPU's value, and nothing else runs on it meanwhile.
        change(unsafe { &mut *counters });
    }
}

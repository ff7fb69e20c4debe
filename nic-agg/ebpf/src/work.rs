//! The state that the stages of one frame share, in per-CPU memory.
//!
//! Not on the stack, which holds 512 bytes, and not in registers: of a value that was written to a map and
//! read again the verifier knows nothing, so that all the ways through a stage are one way for the next.

use core::arch::asm;

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use sumac_wire::{
    dynamic,
    slot::{Conclusion, Contribution, Version},
};

#[btf_map]
static WORK: PerCpuArray<Work, 1> = PerCpuArray::new();

#[repr(C)]
pub struct Work {
    /// The contribution, unless `is_parents`.
    pub contribution: Contribution,
    pub conclusion: Conclusion,
    /// Not zero for a parent's result.
    pub is_parents: u32,
    /// The job that the frame is counted for; 0: none.
    pub job: u32,
    /// Index of the sender in the tables of workers; for a parent's result, of the worker that asked for it,
    /// or the job's first.
    pub worker_index: u32,
    /// Index of the job's parent for this shard in the table of parents.
    pub parent_index: u32,
    /// The frame's addresses.
    pub src_ip: u32,
    pub dst_ip: u32,
    /// Of a frame that [`crate::refused`] decides about, the number of the reason.
    pub refusal: u32,
    pub base_port: u16,
    /// The shard of the port that the frame came by.
    pub shard: u16,
    /// Not zero when checksums are to be verified and written.
    pub is_checked: u32,
    /// The checksum's sum over everything in front of the payload as it came.
    pub headers_sum: u64,
    /// The checksum's sum over the payload as it is, once that is known.
    pub payload_sum: u64,
    /// Elements beyond the first page.
    pub tail: u32,
    /// Not zero for a frame of several buffers.
    pub is_split: u32,
    /// The offset of the elements in the frame.
    pub elements_at: u32,
    /// The slot, counted from the pool's first.
    pub slot: u32,
    /// [`crate::plan`] bits.
    pub plan: u32,
    /// The slot's version after the decision.
    pub version: Version,
    /// The senders that are known to have the result of the other version's chunk.
    pub other_received: u32,
    /// Of a dynamic job's packet, what its slot is to do.
    pub chunk: Chunk,
}

/// The chunk of a dynamic job's packet.
#[repr(C)]
pub struct Chunk {
    /// The contribution; of a result, owner and chunk only.
    pub contribution: dynamic::Contribution,
    /// The slot after the decision.
    pub after: dynamic::SlotMeta,
    /// The slot whose sum goes up.
    pub sum: dynamic::SlotMeta,
    /// The clock, in its ticks.
    pub now: u32,
    /// Ticks of silence that free a slot.
    pub timeout: u32,
}

impl Work {
    #[inline(always)]
    pub fn get() -> Option<&'static mut Work> {
        // SAFETY: the pointer is to this CPU's value, and nothing else runs on it meanwhile. Every stage
        // reads what the one before it wrote, never what another frame left.
        WORK.get_ptr_mut(0).map(|work| unsafe { &mut *work })
    }
}

/// The end of a stage: whatever was written is read again, not remembered.
#[inline(always)]
pub fn stage_ends() {
    // SAFETY: does nothing; the compiler must think that it changes memory.
    unsafe { asm!("") };
}

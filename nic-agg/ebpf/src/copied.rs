//! The elements of a jumbo frame, copied out of it.
//!
//! Programs read and write only a frame's first buffer by pointers, and drivers split frames where they like.
//! So the elements are copied into memory of the CPU's own before the slot is locked, and back when the frame
//! has become an answer. Those beyond the first page have their slot's values in a map of their own.

use core::hint::black_box;

use aya_ebpf::{
    btf_maps::PerCpuArray,
    helpers::generated::{bpf_xdp_load_bytes, bpf_xdp_store_bytes},
    macros::btf_map,
    programs::XdpContext,
};
use sumac_agg_layout::{TAIL_ELEMENTS, TAIL_LEN};
use sumac_wire::{MAX_ELEMENTS, PAGE_ELEMENTS, Reason, frame::Frame, header::HEADER_LEN};

use crate::{
    elements::{Elements, STRIDE},
    maps::TAILS,
    packet::Packet,
    work::{Work, stage_ends},
};

#[btf_map]
static MEMORY: PerCpuArray<Memory, 1> = PerCpuArray::new();

/// The elements of the frame that this CPU has, as they lie in the packet, and how many they are.
#[repr(C)]
struct Memory {
    /// Elements of the first page.
    page: u32,
    /// Elements beyond it.
    tail: u32,
    elements: [u32; MAX_ELEMENTS],
}

/// A part of them, `MOST` at most.
#[derive(Clone, Copy)]
pub struct Copied<const MOST: usize> {
    elements: *mut u32,
    count: *const u32,
}

/// The elements of the first page.
pub type Page = Copied<PAGE_ELEMENTS>;
/// The elements beyond it.
pub type Tail = Copied<TAIL_ELEMENTS>;

/// Copies the frame's elements. Notes how many are beyond the first page, and whether the frame has several
/// buffers.
#[inline(always)]
pub fn load(
    ctx: &XdpContext,
    packet: &Packet,
    frame: &Frame,
    count: usize,
    work: &mut Work,
) -> Result<(), Reason> {
    work.tail = count.saturating_sub(PAGE_ELEMENTS) as u32;
    work.is_split = u32::from(packet.is_split());
    work.elements_at = (frame.payload() + HEADER_LEN) as u32;
    let memory = memory()?;
    // SAFETY: the memory is this CPU's alone.
    unsafe { ((*memory).page, (*memory).tail) = (count.min(PAGE_ELEMENTS) as u32, work.tail) };
    stage_ends();
    let Some((elements, len)) = all()? else { return Ok(()) };
    // SAFETY: the memory has room for `len` bytes.
    match unsafe { bpf_xdp_load_bytes(ctx.ctx, work.elements_at, elements.cast(), len) } {
        0 => Ok(()),
        _ => Err(Reason::Truncated),
    }
}

/// Copies them back. Pointers into the frame are void afterwards.
#[inline(always)]
pub fn save(ctx: &XdpContext, work: &Work) -> Result<(), Reason> {
    let Some((elements, len)) = all()? else { return Ok(()) };
    // SAFETY: the memory holds `len` bytes.
    match unsafe { bpf_xdp_store_bytes(ctx.ctx, work.elements_at, elements.cast(), len) } {
        0 => Ok(()),
        _ => Err(Reason::Internal),
    }
}

/// The elements that were copied, and their length in bytes; `None`: there are none.
#[inline(always)]
fn all() -> Result<Option<(*mut u32, u32)>, Reason> {
    let memory = memory()?;
    // SAFETY: the memory is this CPU's alone.
    let count = unsafe { (*memory).page + (*memory).tail };
    if count == 0 {
        return Ok(None);
    }
    // Linux 6.1's verifier learns nothing from a comparison with zero, and wants a length that is above it.
    let last = black_box(count.wrapping_sub(1));
    if last >= MAX_ELEMENTS as u32 {
        return Err(Reason::WrongElements);
    }
    // SAFETY: as above.
    Ok(Some((unsafe { &raw mut (*memory).elements }.cast(), (last + 1) * 4)))
}

#[inline(always)]
fn memory() -> Result<*mut Memory, Reason> {
    MEMORY.get_ptr_mut(0).ok_or(Reason::Internal)
}

impl Page {
    #[inline(always)]
    pub fn copied() -> Result<Page, Reason> {
        let memory = memory()?;
        // SAFETY: both are within the memory.
        unsafe {
            Ok(Copied { elements: (&raw mut (*memory).elements).cast(), count: &raw const (*memory).page })
        }
    }
}

impl Tail {
    #[inline(always)]
    pub fn copied() -> Result<Tail, Reason> {
        let memory = memory()?;
        // SAFETY: as for the page, which is in front of it.
        unsafe {
            let elements = (&raw mut (*memory).elements).cast::<u32>().wrapping_add(PAGE_ELEMENTS);
            Ok(Copied { elements, count: &raw const (*memory).tail })
        }
    }
}

impl<const MOST: usize> Copied<MOST> {
    /// The number of elements, read anew at each use, as in [`crate::payload::Payload`].
    #[inline(always)]
    fn count(self) -> usize {
        // SAFETY: a field of the memory.
        unsafe { self.count.read_volatile() as usize }
    }
}

impl<const MOST: usize> Elements for Copied<MOST> {
    #[inline(always)]
    fn each(self, mut visit: impl FnMut(usize, *mut u32)) -> Result<(), Reason> {
        let (count, mut done) = (self.count(), 0);
        while done < MOST {
            if done + STRIDE > count {
                break;
            }
            for lane in 0..STRIDE {
                visit(done + lane, self.elements.wrapping_add(done + lane));
            }
            done += STRIDE;
        }
        let count = self.count();
        let done = black_box(count & !(STRIDE - 1));
        if done > MOST - STRIDE {
            return Ok(());
        }
        for lane in 0..STRIDE - 1 {
            if done + lane >= count {
                break;
            }
            visit(done + lane, self.elements.wrapping_add(done + lane));
        }
        Ok(())
    }
}

/// A slot's values beyond the first page, of the version with this number: 0 or 1, and known to the verifier
/// to be.
#[inline(always)]
pub fn tail_values(slot: u32, version: usize) -> Result<*mut u32, Reason> {
    let tail = TAILS.get_ptr_mut(slot).ok_or(Reason::Internal)?;
    Ok(tail.cast::<u32>().wrapping_byte_add(version * TAIL_LEN))
}

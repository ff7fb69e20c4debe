//! The elements of a jumbo frame that its first buffer does not hold.
//!
//! Programs read and write only a frame's first buffer by pointers, and drivers split frames where they like.
//! Elements are copied into memory of the CPU's own before the slot is locked, and back when the frame has
//! become an answer: those beyond the first page always, whose values lie in a map of their own, and those of
//! the first page where the buffer lacks some of them.

use aya_ebpf::{
    helpers::generated::{bpf_xdp_load_bytes, bpf_xdp_store_bytes},
    programs::XdpContext,
};
use sumac_agg_layout::{TAIL_ELEMENTS, TAIL_LEN};
use sumac_wire::{PAGE_ELEMENTS, Reason};

use crate::{
    elements::{Elements, STRIDE},
    maps::{PAGE_BUFFER, TAIL_BUFFER, TAILS},
    work::Work,
};

/// Elements as they lie in the packet, `MOST` at most.
#[derive(Clone, Copy)]
pub struct Copied<const MOST: usize> {
    elements: *mut u32,
    count: usize,
}

/// The elements of the first page.
pub type Page = Copied<PAGE_ELEMENTS>;
/// The elements beyond it.
pub type Tail = Copied<TAIL_ELEMENTS>;

/// Copies what the first buffer lacks out of the frame: nothing, mostly.
#[inline(always)]
pub fn load(ctx: &XdpContext, work: &Work) -> Result<(), Reason> {
    if work.page != 0 {
        Page::of(work)?.load(ctx, work.elements_at)?;
    }
    if work.tail != 0 {
        Tail::of(work)?.load(ctx, tail_at(work))?;
    }
    Ok(())
}

/// Copies it back. Pointers into the frame are void afterwards.
#[inline(always)]
pub fn save(ctx: &XdpContext, work: &Work) -> Result<(), Reason> {
    if work.page != 0 {
        Page::of(work)?.save(ctx, work.elements_at)?;
    }
    if work.tail != 0 {
        Tail::of(work)?.save(ctx, tail_at(work))?;
    }
    Ok(())
}

#[inline(always)]
fn tail_at(work: &Work) -> u32 {
    work.elements_at + PAGE_ELEMENTS as u32 * 4
}

impl Page {
    #[inline(always)]
    pub fn of(work: &Work) -> Result<Page, Reason> {
        let elements = PAGE_BUFFER.get_ptr_mut(0).ok_or(Reason::Internal)?;
        Ok(Copied { elements: elements.cast(), count: work.page as usize })
    }
}

impl Tail {
    #[inline(always)]
    pub fn of(work: &Work) -> Result<Tail, Reason> {
        let elements = TAIL_BUFFER.get_ptr_mut(0).ok_or(Reason::Internal)?;
        Ok(Copied { elements: elements.cast(), count: work.tail as usize })
    }
}

impl<const MOST: usize> Copied<MOST> {
    /// Copies the elements from `at` in the frame.
    #[inline(always)]
    fn load(self, ctx: &XdpContext, at: u32) -> Result<(), Reason> {
        let len = self.len()?;
        // SAFETY: the buffer has room for `len` bytes.
        match unsafe { bpf_xdp_load_bytes(ctx.ctx, at, self.elements.cast(), len) } {
            0 => Ok(()),
            _ => Err(Reason::Truncated),
        }
    }

    #[inline(always)]
    fn save(self, ctx: &XdpContext, at: u32) -> Result<(), Reason> {
        let len = self.len()?;
        // SAFETY: the buffer holds `len` bytes.
        match unsafe { bpf_xdp_store_bytes(ctx.ctx, at, self.elements.cast(), len) } {
            0 => Ok(()),
            _ => Err(Reason::Internal),
        }
    }

    /// Bytes of the elements, of which there is one at least.
    #[inline(always)]
    fn len(self) -> Result<u32, Reason> {
        // Linux 6.1's verifier learns nothing from a comparison with zero, and wants a length that is above
        // it.
        let last = core::hint::black_box((self.count as u32).wrapping_sub(1));
        if last >= MOST as u32 {
            return Err(Reason::WrongElements);
        }
        Ok((last + 1) * 4)
    }
}

impl<const MOST: usize> Elements for Copied<MOST> {
    #[inline(always)]
    fn each(self, mut visit: impl FnMut(usize, *mut u32)) -> Result<(), Reason> {
        let mut done = 0;
        while done < MOST {
            if done + STRIDE > self.count {
                break;
            }
            for lane in 0..STRIDE {
                visit(done + lane, self.elements.wrapping_add(done + lane));
            }
            done += STRIDE;
        }
        let done = core::hint::black_box(self.count & !(STRIDE - 1));
        if done > MOST - STRIDE {
            return Ok(());
        }
        for lane in 0..STRIDE - 1 {
            if done + lane >= self.count {
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

//! The elements of a jumbo frame beyond its first page.
//!
//! Programs read and write only a frame's first buffer by pointers. The rest is copied into memory of the
//! CPU's own before the slot is locked, and back when the frame has become an answer. The slot's values for
//! it lie in a map of their own.

use aya_ebpf::{
    helpers::generated::{bpf_xdp_load_bytes, bpf_xdp_store_bytes},
    programs::XdpContext,
};
use sumac_agg_layout::{TAIL_ELEMENTS, TAIL_LEN};
use sumac_wire::{PAGE_ELEMENTS, Reason};

use crate::{
    maps::{TAIL_BUFFER, TAILS},
    payload::{Elements, STRIDE},
    work::Work,
};

/// The elements of the frame beyond its first page, as they lie in the packet.
#[derive(Clone, Copy)]
pub struct Tail {
    elements: *mut u32,
    count: usize,
}

impl Tail {
    /// Copies the elements beyond the first page out of the frame: none, mostly.
    #[inline(always)]
    pub fn load(ctx: &XdpContext, work: &mut Work) -> Result<(), Reason> {
        let Some((elements, at, len)) = place(work)? else { return Ok(()) };
        // SAFETY: the buffer has room for `len` bytes.
        match unsafe { bpf_xdp_load_bytes(ctx.ctx, at, elements.cast(), len) } {
            0 => Ok(()),
            _ => Err(Reason::Truncated),
        }
    }

    /// Copies them back. Pointers into the frame are void afterwards.
    #[inline(always)]
    pub fn save(ctx: &XdpContext, work: &Work) -> Result<(), Reason> {
        let Some((elements, at, len)) = place(work)? else { return Ok(()) };
        // SAFETY: the buffer holds `len` bytes.
        match unsafe { bpf_xdp_store_bytes(ctx.ctx, at, elements.cast(), len) } {
            0 => Ok(()),
            _ => Err(Reason::Internal),
        }
    }

    /// The elements that [`Tail::load`] has copied.
    #[inline(always)]
    pub fn of(work: &Work) -> Result<Tail, Reason> {
        let elements = TAIL_BUFFER.get_ptr_mut(0).ok_or(Reason::Internal)?;
        Ok(Tail { elements: elements.cast(), count: work.tail as usize })
    }
}

/// The memory of the elements beyond the first page, and their offset and length in the frame.
#[inline(always)]
fn place(work: &Work) -> Result<Option<(*mut u32, u32, u32)>, Reason> {
    if work.tail == 0 {
        return Ok(None);
    }
    // Linux 6.1's verifier learns nothing from a comparison with zero, and wants a length that is above it.
    let last = core::hint::black_box(work.tail.wrapping_sub(1));
    if last >= TAIL_ELEMENTS as u32 {
        return Err(Reason::WrongElements);
    }
    let elements = TAIL_BUFFER.get_ptr_mut(0).ok_or(Reason::Internal)?;
    Ok(Some((elements.cast(), work.elements_at + PAGE_ELEMENTS as u32 * 4, (last + 1) * 4)))
}

impl Elements for Tail {
    #[inline(always)]
    fn each(self, mut visit: impl FnMut(usize, *mut u32)) -> Result<(), Reason> {
        let mut done = 0;
        while done < TAIL_ELEMENTS {
            if done + STRIDE > self.count {
                break;
            }
            for lane in 0..STRIDE {
                visit(done + lane, self.elements.wrapping_add(done + lane));
            }
            done += STRIDE;
        }
        let done = core::hint::black_box(self.count & !(STRIDE - 1));
        if done > TAIL_ELEMENTS - STRIDE {
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
pub fn values(slot: u32, version: usize) -> Result<*mut u32, Reason> {
    let tail = TAILS.get_ptr_mut(slot).ok_or(Reason::Internal)?;
    Ok(tail.cast::<u32>().wrapping_byte_add(version * TAIL_LEN))
}

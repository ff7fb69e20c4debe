//! The loop over the elements in a frame.

use core::hint::black_box;

use sumac_wire::{PAGE_ELEMENTS, Reason};

use crate::{
    copied::Page,
    elements::{Elements, STRIDE},
    packet::{Headers, Packet},
};

/// The elements of the first page: in the frame or, of a jumbo frame, copied out of it.
#[derive(Clone, Copy)]
pub struct Payload<const JUMBO: bool> {
    pub packet: Packet,
    /// The headers in front of the elements.
    pub headers: Headers,
}

impl<const JUMBO: bool> Elements for Payload<JUMBO> {
    /// The frame is long enough, as `frame::parse` has seen; the comparisons are for the verifier. Where one
    /// fails the frame's way ends: were it to go on like the others, then each length at which it can fail
    /// would be a state of its own for all that follows.
    #[inline(always)]
    fn each(self, mut visit: impl FnMut(usize, *mut u32)) -> Result<(), Reason> {
        if JUMBO {
            return Page::copied()?.each(visit);
        }
        let (at, end) = (self.packet.elements(), self.packet.end);
        let elements = self.elements();
        for stride in 0..PAGE_ELEMENTS / STRIDE {
            let first = stride * STRIDE;
            if first + STRIDE > elements {
                break;
            }
            let p = at + first * 4;
            if p + STRIDE * 4 > end {
                return Err(Reason::Internal);
            }
            for lane in 0..STRIDE {
                visit(first + lane, (p + lane * 4) as *mut u32);
            }
        }
        let at = self.packet.elements();
        let elements = self.elements();
        // Opaque, or LLVM compares another number of which it knows the same, and the verifier does not.
        let done = black_box(elements & !(STRIDE - 1));
        if done > PAGE_ELEMENTS - STRIDE {
            return Ok(());
        }
        for lane in 0..STRIDE - 1 {
            let i = done + lane;
            if i >= elements {
                break;
            }
            let p = at + i * 4;
            if p + 4 > end {
                return Err(Reason::Internal);
            }
            visit(i, p as *mut u32);
        }
        Ok(())
    }
}

impl<const JUMBO: bool> Payload<JUMBO> {
    /// The number of elements, read anew at each use: the verifier's knowledge about the number
    /// in one loop it would otherwise carry into the next, as a state of its own for every number.
    #[inline(always)]
    fn elements(self) -> usize {
        usize::from(self.headers.element_count())
    }
}

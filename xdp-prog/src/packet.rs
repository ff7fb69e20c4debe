//! Access to a packet's bytes, with the comparisons that the verifier requires. The aggregator's programs
//! have this file too.
//!
//! Everything is inlined: the verifier tracks a packet pointer through registers, not through calls. Loads
//! are plain dereferences: BPF loads from any address, and LLVM compiles `read_unaligned` to loads of single
//! bytes.

use aya_ebpf::{helpers::generated::bpf_xdp_get_buff_len, programs::XdpContext};
use sumac_wire::{bytes::Load, header::HEADER_LEN};

/// The readable part of a frame, as addresses that the verifier tracks: the first buffer of several.
#[derive(Clone, Copy)]
pub struct Packet {
    pub start: usize,
    /// The address after the last readable byte.
    pub end: usize,
    /// The length of the whole frame, all buffers together.
    pub len: usize,
}

impl Packet {
    #[inline(always)]
    pub fn new(ctx: &XdpContext) -> Self {
        let (start, end) = (ctx.data(), ctx.data_end());
        Self { start, end, len: end - start }
    }

    /// Returns a frame that may have several buffers.
    #[inline(always)]
    pub fn jumbo(ctx: &XdpContext) -> Self {
        // SAFETY: the context of this run.
        let len = unsafe { bpf_xdp_get_buff_len(ctx.ctx) } as usize;
        Self { start: ctx.data(), end: ctx.data_end(), len }
    }
}

impl Load for Packet {
    #[inline(always)]
    fn size(&self) -> usize {
        self.len
    }
    #[inline(always)]
    fn load<T: Copy>(&self, at: usize) -> Option<T> {
        let from = self.start + at;
        if from + size_of::<T>() > self.end {
            return None;
        }
        // SAFETY: the comparison above keeps the bytes in the frame.
        Some(unsafe { *(from as *const T) })
    }
}

/// Sumac's header, known to be in the frame at this address: its loads need no further comparison with the
/// frame's end.
pub struct SumacHeader(pub usize);

impl Load for SumacHeader {
    #[inline(always)]
    fn size(&self) -> usize {
        HEADER_LEN
    }
    #[inline(always)]
    fn load<T: Copy>(&self, at: usize) -> Option<T> {
        if at + size_of::<T>() > HEADER_LEN {
            return None;
        }
        // SAFETY: within the header, which lies in the frame.
        Some(unsafe { *((self.0 + at) as *const T) })
    }
}

//! Access to the packet's bytes, with the comparisons that the verifier requires.
//!
//! Everything is inlined: the verifier tracks a packet pointer through registers, not through calls. Loads are plain
//! dereferences: BPF loads from any address, and LLVM compiles `read_unaligned` to loads of single bytes.

use aya_ebpf::{helpers::generated::bpf_xdp_get_buff_len, programs::XdpContext};
use sumac_wire::{
    bytes::Load,
    frame::{Frame, UDP_LEN},
    header::HEADER_LEN,
};

/// The readable part of a frame, as addresses that the verifier tracks: the first buffer of several.
pub struct Packet {
    start: usize,
    end: usize,
    /// The length of the whole frame.
    len: usize,
}

impl Packet {
    /// Returns the frame of a program's context.
    #[inline(always)]
    pub fn new(ctx: &XdpContext) -> Self {
        let (start, end) = (ctx.data(), ctx.data_end());
        Self { start, end, len: end - start }
    }

    /// Returns the frame of a program's context, which may have several buffers.
    #[inline(always)]
    pub fn jumbo(ctx: &XdpContext) -> Self {
        // SAFETY: the context of this run.
        let len = unsafe { bpf_xdp_get_buff_len(ctx.ctx) } as usize;
        Self { start: ctx.data(), end: ctx.data_end(), len }
    }

    /// Returns the address after the last readable byte.
    #[inline(always)]
    pub fn end(&self) -> usize {
        self.end
    }

    /// Returns the UDP and Sumac headers; `None` when they are not entirely readable.
    #[inline(always)]
    pub fn headers(&self, frame: &Frame) -> Option<Headers> {
        let udp = self.start + frame.l4();
        if udp + Headers::LEN > self.end { None } else { Some(Headers { udp }) }
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
        // SAFETY: the comparison above keeps the bytes in the frame, which does not change during the run.
        Some(unsafe { *(from as *const T) })
    }
}

/// The UDP header and Sumac's after it, known to be in the frame. As [`Load`] it is Sumac's header alone, whose loads need
/// no further comparison with the frame's end.
pub struct Headers {
    udp: usize,
}

impl Headers {
    /// The length of both.
    pub const LEN: usize = UDP_LEN + HEADER_LEN;

    /// Returns the address of the first element, which need not be in the frame.
    #[inline(always)]
    pub fn elements(&self) -> usize {
        self.udp + Self::LEN
    }

    /// Returns UDP's checksum field in memory order; zero: none.
    #[inline(always)]
    pub fn checksum(&self) -> u16 {
        // SAFETY: bytes 6 and 7 of the UDP header, which lies in the frame.
        unsafe { *((self.udp + 6) as *const u16) }
    }

    /// Returns the checksum's sum over both headers, in memory order.
    #[inline(always)]
    pub fn sum(&self) -> u64 {
        let mut sum = 0;
        for word in 0..Self::LEN / 4 {
            // SAFETY: within both headers, which lie in the frame.
            sum += u64::from(unsafe { *((self.udp + word * 4) as *const u32) });
        }
        sum
    }
}

impl Load for Headers {
    #[inline(always)]
    fn size(&self) -> usize {
        HEADER_LEN
    }
    #[inline(always)]
    fn load<T: Copy>(&self, at: usize) -> Option<T> {
        if at + size_of::<T>() > HEADER_LEN {
            return None;
        }
        // SAFETY: within Sumac's header, which lies in the frame.
        Some(unsafe { *((self.udp + UDP_LEN + at) as *const T) })
    }
}

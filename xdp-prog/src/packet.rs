//! The packet's bytes behind the comparisons that the verifier wants to see.
//!
//! Everything is inlined: the verifier follows a packet pointer through registers, not through calls. Loads are
//! plain dereferences: BPF loads any address, and of `read_unaligned` LLVM makes loads of single bytes.

use aya_ebpf::{helpers::generated::bpf_xdp_get_buff_len, programs::XdpContext};
use sumac_wire::{
    bytes::Load,
    frame::{Frame, UDP_LEN},
    header::HEADER_LEN,
};

/// The readable part of a frame, as addresses that the verifier tracks. Of a frame in several buffers that is the first.
pub struct Packet {
    start: usize,
    end: usize,
    /// Bytes of the whole frame.
    len: usize,
}

impl Packet {
    /// The frame of a program's context.
    #[inline(always)]
    pub fn new(ctx: &XdpContext) -> Self {
        let (start, end) = (ctx.data(), ctx.data_end());
        Self { start, end, len: end - start }
    }

    /// The frame of a program's context that may have several buffers.
    #[inline(always)]
    pub fn jumbo(ctx: &XdpContext) -> Self {
        // SAFETY: the context is this run's.
        let len = unsafe { bpf_xdp_get_buff_len(ctx.ctx) } as usize;
        Self { start: ctx.data(), end: ctx.data_end(), len }
    }

    /// The address behind the last readable byte.
    #[inline(always)]
    pub fn end(&self) -> usize {
        self.end
    }

    /// The UDP and Sumac headers, when both can be read to their end.
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
        // SAFETY: the bytes can be read, as was just compared; frames do not change under the program.
        Some(unsafe { *(from as *const T) })
    }
}

/// The UDP header and Sumac's behind it, known to be in the frame. As [`Load`] it is Sumac's header alone, whose
/// loads need no comparison with the frame's end any more.
pub struct Headers {
    udp: usize,
}

impl Headers {
    /// Bytes of both.
    pub const LEN: usize = UDP_LEN + HEADER_LEN;

    /// The address of the first element; not known to be in the frame.
    #[inline(always)]
    pub fn elements(&self) -> usize {
        self.udp + Self::LEN
    }

    /// UDP's checksum field as it lies in memory; zero says "none".
    #[inline(always)]
    pub fn checksum(&self) -> u16 {
        // SAFETY: bytes 6 and 7 of the UDP header, which lies in the frame.
        unsafe { *((self.udp + 6) as *const u16) }
    }

    /// The checksum's sum over both headers, in memory order.
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

//! The UDP checksum over headers and elements, in blocks that the verifier can track.

use core::hint::black_box;

use aya_ebpf::{helpers::generated::bpf_xdp_load_bytes, programs::XdpContext};
use sumac_wire::{PAGE_ELEMENTS, checksum, frame::Frame};

use crate::{
    headers::Headers,
    maps::{TAIL, TAIL_ELEMENTS, TAIL_LEN},
    packet::Packet,
};

/// The elements in a block, for which there is one comparison with the frame's end.
const BLOCK: usize = 16;
/// The bytes of an element.
const WORD: usize = 4;

/// Returns whether the datagram has a checksum and it is correct.
#[inline(always)]
pub fn is_intact<const JUMBO: bool>(
    ctx: &XdpContext,
    packet: &Packet,
    frame: &Frame,
    headers: &Headers,
    elements: u16,
) -> bool {
    if headers.checksum() == 0 {
        return false;
    }
    let sum = checksum::pseudo_header(frame.src_ip, frame.dst_ip, frame.udp_len) + headers.sum();
    let elements = elements as usize;
    let of_elements = if JUMBO {
        sum_buffers(ctx, packet, frame, headers, elements)
    } else {
        sum_elements(headers.elements(), packet.end, elements)
    };
    match of_elements {
        Some(elements) => checksum::is_intact(sum + elements),
        None => false,
    }
}

/// Sums the elements of a frame that may have several buffers; `None` when the frame ends before.
#[inline(always)]
fn sum_buffers(
    ctx: &XdpContext,
    packet: &Packet,
    frame: &Frame,
    headers: &Headers,
    elements: usize,
) -> Option<u64> {
    let (from, end) = (headers.elements(), packet.end);
    // After the Ethernet, IPv4, UDP and Sumac headers.
    let at = (frame.l4() + Headers::LEN) as u32;
    if elements <= PAGE_ELEMENTS {
        // A driver with receive buffers of 2 KiB splits the page, too.
        return sum_elements(from, end, elements).or_else(|| sum_copied(ctx, at, elements));
    }
    let page = sum_page(from, end).or_else(|| sum_copied(ctx, at, PAGE_ELEMENTS))?;
    let tail = sum_copied(ctx, at + (PAGE_ELEMENTS * WORD) as u32, elements - PAGE_ELEMENTS)?;
    Some(page + tail)
}

/// Sums a whole page of elements from the address `from` on; `None` when the readable part ends before.
#[inline(always)]
fn sum_page(from: usize, end: usize) -> Option<u64> {
    if from + PAGE_ELEMENTS * WORD > end {
        return None;
    }
    let (mut low, mut high) = (0, 0);
    for at in 0..PAGE_ELEMENTS / 2 {
        // SAFETY: the comparison above keeps the page inside the frame.
        low += unsafe { word(from + at * WORD) };
        // SAFETY: as above, the page's second half.
        high += unsafe { word(from + (at + PAGE_ELEMENTS / 2) * WORD) };
    }
    Some(low + high)
}

/// Sums `count` elements from the offset `at` on, in whatever buffers they are; `None` when the frame ends
/// before.
#[inline(always)]
fn sum_copied(ctx: &XdpContext, at: u32, count: usize) -> Option<u64> {
    if count == 0 || count > TAIL_ELEMENTS {
        return None;
    }
    // Linux 6.1's verifier wants a length above zero, and forgets the comparison: the mask shows the bounds
    // where they are needed. Opaque, or LLVM removes it.
    let count = (black_box(count - 1) & (TAIL_LEN - 1)) + 1;
    let buffer = TAIL.get_ptr_mut(0)?.cast::<u32>();
    // SAFETY: the buffer has room for that many elements.
    let copied = unsafe { bpf_xdp_load_bytes(ctx.ctx, at, buffer.cast(), (count * WORD) as u32) };
    if copied != 0 {
        return None;
    }
    let (mut sum, mut done) = (0, 0);
    while done < TAIL_ELEMENTS {
        if done + BLOCK > count {
            break;
        }
        for at in 0..BLOCK {
            // SAFETY: below TAIL_ELEMENTS, of which BLOCK is a divisor.
            sum += u64::from(unsafe { *buffer.wrapping_add(done + at) });
        }
        done += BLOCK;
    }
    let done = black_box(count & !(BLOCK - 1));
    if done > TAIL_ELEMENTS - BLOCK {
        return Some(sum);
    }
    for at in 0..BLOCK - 1 {
        if done + at >= count {
            break;
        }
        // SAFETY: below TAIL_ELEMENTS, as was just compared.
        sum += u64::from(unsafe { *buffer.wrapping_add(done + at) });
    }
    Some(sum)
}

/// Sums `left` elements from the address `from` on; `None` when the frame ends before, or for more than a
/// packet has.
#[inline(always)]
fn sum_elements(mut from: usize, end: usize, mut left: usize) -> Option<u64> {
    let mut sum = 0;
    for _ in 0..PAGE_ELEMENTS / BLOCK {
        if left < BLOCK {
            break;
        }
        if from + BLOCK * WORD > end {
            return None;
        }
        // In two halves, so that the additions are independent.
        let (mut low, mut high) = (0, 0);
        for at in 0..BLOCK / 2 {
            // SAFETY: the comparison above keeps the block inside the frame.
            low += unsafe { word(from + at * WORD) };
            // SAFETY: as above, the block's second half.
            high += unsafe { word(from + (at + BLOCK / 2) * WORD) };
        }
        sum += low + high;
        from += BLOCK * WORD;
        left -= BLOCK;
    }
    if left >= BLOCK {
        return None;
    }
    for _ in 0..BLOCK {
        if left == 0 {
            break;
        }
        if from + WORD > end {
            return None;
        }
        // SAFETY: the comparison above keeps the word inside the frame.
        sum += unsafe { word(from) };
        from += WORD;
        left -= 1;
    }
    Some(sum)
}

/// Loads one word in memory order.
///
/// # Safety
/// Its four bytes must be inside the frame.
#[inline(always)]
unsafe fn word(from: usize) -> u64 {
    // SAFETY: the caller keeps the bytes in the frame; BPF requires no alignment.
    u64::from(unsafe { *(from as *const u32) })
}

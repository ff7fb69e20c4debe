//! The UDP checksum over headers and elements, in blocks that the verifier can follow.

use sumac_wire::{PAGE_ELEMENTS, checksum, frame::Frame};

use crate::packet::{Headers, Packet};

/// Elements in a block: one comparison with the frame's end for each block.
const BLOCK: usize = 16;
/// Bytes of an element.
const WORD: usize = 4;

/// Whether the datagram carries a checksum and it is right.
#[inline(always)]
pub fn is_intact(packet: &Packet, frame: &Frame, headers: &Headers, elements: u16) -> bool {
    if headers.checksum() == 0 {
        return false;
    }
    let sum = checksum::pseudo_header(frame.src_ip, frame.dst_ip, frame.udp_len) + headers.sum();
    match sum_elements(headers.elements(), packet.end(), elements as usize) {
        Some(elements) => checksum::is_intact(sum + elements),
        None => false,
    }
}

/// Sums `left` elements from the address `from`. `None` when the frame ends before, or for more than the longest
/// packet holds.
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
        // In two halves, so that the additions need not wait for each other.
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

/// Loads one word as it lies in memory.
///
/// # Safety
/// Its four bytes must be inside the frame.
#[inline(always)]
unsafe fn word(from: usize) -> u64 {
    // SAFETY: the caller vouches for the bytes; BPF has no alignment.
    u64::from(unsafe { *(from as *const u32) })
}

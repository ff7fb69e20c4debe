//! The UDP header and Sumac's after it, known to be in the frame.

use sumac_wire::{
    frame::{Frame, UDP_LEN},
    header::HEADER_LEN,
};

use crate::packet::{Packet, SumacHeader};

pub struct Headers {
    udp: usize,
}

impl Headers {
    /// The length of both.
    pub const LEN: usize = UDP_LEN + HEADER_LEN;

    /// Returns `None` when they are not entirely readable.
    #[inline(always)]
    pub fn of(packet: &Packet, frame: &Frame) -> Option<Headers> {
        let udp = packet.start + frame.l4();
        if udp + Headers::LEN > packet.end { None } else { Some(Headers { udp }) }
    }

    #[inline(always)]
    pub fn sumac(&self) -> SumacHeader {
        SumacHeader(self.udp + UDP_LEN)
    }

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

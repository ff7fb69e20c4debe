//! A packet as the model keeps it: the header's fields that differ, and a sum in the elements' stead.

use sumac_wire::{Header, Kind, header::flag};

/// The job of all packets.
pub const JOB: u16 = 1;

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    pub kind: u8,
    pub flags: u16,
    pub seq: u32,
    pub slot: u32,
    pub elements: u16,
    pub fan_in: [u8; 2],
    pub bitmap: [u32; 2],
    pub contributors: u16,
    pub exponent: i8,
    pub next_exponent: i8,
    pub next_seq: u32,
    pub received: u32,
    /// The contributions in the elements' sum.
    pub sum: u64,
}

impl Packet {
    pub fn new(header: &Header, sum: u64) -> Packet {
        Packet {
            kind: header.kind,
            flags: header.flags,
            seq: header.seq,
            slot: header.slot,
            elements: header.elements,
            fan_in: [header.fan_in_0, header.fan_in_1],
            bitmap: [header.bitmap_0, header.bitmap_1],
            contributors: header.contributors,
            exponent: header.exponent,
            next_exponent: header.next_exponent,
            next_seq: header.next_seq,
            received: header.received,
            sum: if header.elements == 0 { 0 } else { sum },
        }
    }

    pub fn header(&self) -> Header {
        Header {
            kind: self.kind,
            flags: self.flags,
            job: JOB,
            epoch: 1,
            seq: self.seq,
            slot: self.slot,
            elements: self.elements,
            fan_in_0: self.fan_in[0],
            fan_in_1: self.fan_in[1],
            bitmap_0: self.bitmap[0],
            bitmap_1: self.bitmap[1],
            contributors: self.contributors,
            exponent: self.exponent,
            next_exponent: self.next_exponent,
            next_seq: self.next_seq,
            received: self.received,
            ..Header::default()
        }
    }

    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    pub fn is_result(&self) -> bool {
        self.kind == Kind::Result as u8
    }

    /// Whether it is a result with elements.
    pub fn is_sum(&self) -> bool {
        !self.has(flag::EXPONENT | flag::QUERY)
    }

    /// Whether it belongs to an exponent round.
    pub fn is_round(&self) -> bool {
        self.has(flag::EXPONENT)
    }
}

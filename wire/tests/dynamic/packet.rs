//! A packet as the model keeps it: the header's fields that differ, and a sum in the elements' stead.

use sumac_wire::{Header, Kind};

pub const JOB: u16 = 3;
pub const EPOCH: u16 = 1;

/// A contribution, or what a level made of some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    pub flags: u16,
    pub seq: u32,
    pub fan_in: [u8; 2],
    pub bitmap: [u32; 2],
    pub received: u32,
    /// The contributions in the elements' sum.
    pub sum: u64,
}

impl Packet {
    pub fn new(header: &Header, sum: u64) -> Packet {
        Packet {
            flags: header.flags,
            seq: header.seq,
            fan_in: [header.fan_in_0, header.fan_in_1],
            bitmap: [header.bitmap_0, header.bitmap_1],
            received: header.received,
            sum,
        }
    }

    pub fn header(&self) -> Header {
        Header {
            kind: Kind::Contribution as u8,
            job: JOB,
            epoch: EPOCH,
            flags: self.flags,
            seq: self.seq,
            elements: 1,
            fan_in_0: self.fan_in[0],
            fan_in_1: self.fan_in[1],
            bitmap_0: self.bitmap[0],
            bitmap_1: self.bitmap[1],
            received: self.received,
            ..Header::default()
        }
    }
}

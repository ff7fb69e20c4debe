//! A packet as the model keeps it: its header, and a sum in the elements' stead.

use sumac_wire::{Header, Kind, header::flag};

/// The job of all packets.
pub const JOB: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    pub header: Header,
    /// The contributions in the elements' sum.
    pub sum: u64,
}

impl Packet {
    pub fn new(header: Header, sum: u64) -> Packet {
        Packet { header, sum: if header.elements == 0 { 0 } else { sum } }
    }

    pub fn is_result(&self) -> bool {
        self.header.kind == Kind::Result as u8
    }

    /// Whether it is a result with elements.
    pub fn is_sum(&self) -> bool {
        !self.header.has(flag::EXPONENT | flag::QUERY)
    }

    /// Whether it belongs to an exponent round.
    pub fn is_round(&self) -> bool {
        self.header.has(flag::EXPONENT)
    }
}

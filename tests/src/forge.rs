//! Frames that a stranger, a broken sender or an old incarnation might send.

use std::net::Ipv4Addr;

use sumac_wire::frame::{self, Endpoints, OVERHEAD};
use sumac_wire::header::{HEADER_LEN, Kind};
use sumac_wire::{Header, checksum};

/// A frame before it is written: good, until a test changes it.
#[derive(Clone, Debug)]
pub struct Forgery {
    pub header: Header,
    pub to: Endpoints,
    /// Bytes of elements, whatever the header states.
    pub elements_len: usize,
    /// The last change of the frame's bytes.
    pub finish: Finish,
}

/// A change of a frame's bytes after they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Whole,
    /// Only so many bytes are sent.
    Cut(usize),
    /// Another version of the packet.
    Version(u8),
    /// "More fragments" is set.
    Fragment,
    /// One bit of the last element is turned, and the checksum is that of before.
    FlipBit,
    /// The checksum states that there is none.
    NoChecksum,
    /// An 802.1Q tag in front of the IPv4 header.
    Tagged,
    TaggedTwice,
    /// The UDP header announces this many bytes more than IPv4's.
    UdpLonger(u16),
}

impl Forgery {
    /// A good frame of this kind for chunk 0 of a job: rank `rank` of `world`, with elements that would ruin
    /// any sum.
    pub fn new(kind: Kind, to: Endpoints, rank: u16, world: u16, elements: u16) -> Forgery {
        let header = Header {
            kind: kind as u8,
            fan_in_0: world as u8,
            bitmap_0: 1 << rank,
            elements,
            ..Header::default()
        };
        Forgery { header, to, elements_len: usize::from(elements) * 4, finish: Finish::Whole }
    }

    /// The frame's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let payload_len = HEADER_LEN + self.elements_len;
        let mut bytes = vec![0; OVERHEAD + payload_len];
        bytes[OVERHEAD..OVERHEAD + HEADER_LEN].copy_from_slice(&self.header.to_bytes());
        bytes[OVERHEAD + HEADER_LEN..].fill(0x55);
        let early = match self.finish {
            Finish::Version(version) => {
                bytes[OVERHEAD] = version << 4 | self.header.kind;
                Finish::Whole
            }
            other => other,
        };
        frame::emit(&mut bytes, &self.to, payload_len, early != Finish::NoChecksum).unwrap();
        match early {
            Finish::Whole | Finish::NoChecksum | Finish::Version(_) => {}
            Finish::Cut(len) => bytes.truncate(len),
            Finish::Fragment => set_fragment(&mut bytes),
            Finish::FlipBit => *bytes.last_mut().unwrap() ^= 1,
            Finish::Tagged => tag(&mut bytes),
            Finish::TaggedTwice => (0..2).for_each(|_| tag(&mut bytes)),
            Finish::UdpLonger(more) => {
                let len = u16::from_be_bytes([bytes[38], bytes[39]]) + more;
                bytes[38..40].copy_from_slice(&len.to_be_bytes());
            }
        }
        bytes
    }

    /// Another source address.
    pub fn from(&mut self, ip: Ipv4Addr) {
        self.to.src_ip = u32::from(ip);
    }
}

/// Puts a tag of VLAN 1 behind the MAC addresses.
fn tag(bytes: &mut Vec<u8>) {
    bytes.splice(12..12, [0x81, 0x00, 0x00, 0x01]);
}

/// Sets "more fragments" instead of "do not fragment", with a right header checksum.
fn set_fragment(bytes: &mut [u8]) {
    bytes[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
    bytes[24..26].fill(0);
    let sum = !checksum::fold(checksum::add(0, &bytes[14..34]));
    bytes[24..26].copy_from_slice(&sum.to_ne_bytes());
}

//! Checked pointers into a frame: what the aggregator needs beside [`Packet`]'s loads.

use aya_ebpf::programs::XdpContext;
use sumac_wire::{
    bytes::Load as _,
    frame,
    header::{HEADER_LEN, offset},
};

pub use crate::host_packet::{Packet, SumacHeader};

/// The offset of the type in the Ethernet header.
const ETHERTYPE: usize = 12;

impl Packet {
    /// Whether the frame has several buffers.
    #[inline(always)]
    pub fn is_split(self) -> bool {
        self.size() > self.end - self.start
    }

    /// The same frame after a call that may have moved its end: the verifier takes all earlier pointers back.
    #[inline(always)]
    pub fn again(self, ctx: &XdpContext) -> Packet {
        // Read anew where nothing was called, too: then there is one way on for the verifier.
        // SAFETY: the context is this run's.
        let (start, end) = unsafe {
            ((&raw const (*ctx.ctx).data).read_volatile(), (&raw const (*ctx.ctx).data_end).read_volatile())
        };
        Packet { start: start as usize, end: end as usize, ..self }
    }

    /// The frame's first `len` bytes, to be written to.
    #[inline(always)]
    pub fn writable(self, len: usize) -> Option<Writable> {
        if self.start + len > self.end {
            return None;
        }
        Some(Writable(self.start))
    }

    /// The headers from IPv4 on, when the frame holds them all up to the first element.
    ///
    /// Only for a frame that is known to hold an Ethernet header with the type of IPv4 or 802.1Q.
    #[inline(always)]
    pub fn headers(self) -> Option<Headers> {
        // One base and one comparison for all: the verifier forgets a length when the sum is made anew.
        let l3 = self.l3();
        if l3 + Headers::LEN > self.end {
            return None;
        }
        Some(Headers { eth: self.start, l3 })
    }

    /// The start of the elements: a new pointer at every call.
    ///
    /// The verifier keeps the length that was compared with a pointer and with all that share its
    /// base. Were the base of all loops the same, then every number of elements at which one loop
    /// can end would be a state of its own for the loops that follow, beyond all limits.
    #[inline(always)]
    pub fn elements(self) -> usize {
        self.l3() + Headers::LEN
    }

    /// The start of the IPv4 header, by a bit in which the types of IPv4 (0x0800) and 802.1Q (0x8100)
    /// differ: without a branch the verifier sees one way through the program for both.
    #[inline(always)]
    fn l3(self) -> usize {
        const TAG: usize = frame::VLAN_LEN;
        const _: () = assert!(0x81 >> 5 & TAG == TAG && 0x08 >> 5 & TAG == 0);
        let high = (self.start + ETHERTYPE) as *const u8;
        // SAFETY: the caller knows that the frame holds an Ethernet header.
        let high = usize::from(unsafe { high.read_volatile() });
        self.start + frame::ETH_LEN + (high >> 5 & TAG)
    }
}

/// The beginning of a frame, as long as was asked for.
#[derive(Clone, Copy)]
pub struct Writable(usize);

impl Writable {
    /// Writes `value` at `at`, as it lies in memory.
    #[inline(always)]
    pub fn set<T: Copy>(self, at: usize, value: T) {
        // SAFETY: `at` is a constant below the length that was compared with the frame's end.
        unsafe { *((self.0 + at) as *mut T) = value };
    }

    #[inline(always)]
    pub fn set_mac(self, at: usize, mac: [u16; 3]) {
        self.set(at, mac[0]);
        self.set(at + 2, mac[1]);
        self.set(at + 4, mac[2]);
    }
}

/// IPv4, UDP and Sumac headers of one frame, which are known to be there, and the Ethernet
/// addresses in front of them. Offsets count from the IPv4 header.
#[derive(Clone, Copy)]
pub struct Headers {
    eth: usize,
    l3: usize,
}

impl Headers {
    pub const UDP: usize = frame::IPV4_LEN;
    pub const SUMAC: usize = Self::UDP + frame::UDP_LEN;
    pub const LEN: usize = Self::SUMAC + HEADER_LEN;

    /// Sumac's header as bytes.
    #[inline(always)]
    pub fn sumac(self) -> SumacHeader {
        SumacHeader(self.l3 + Self::SUMAC)
    }

    /// Reads what lies at `at`, as it lies in memory.
    #[inline(always)]
    pub fn get<T: Copy>(self, at: usize) -> T {
        debug_assert!(at + size_of::<T>() <= Self::LEN);
        // SAFETY: `at` is a constant of the headers, which were compared with the end of the frame.
        unsafe { *((self.l3 + at) as *const T) }
    }

    /// The number of elements, from the packet at every call.
    #[inline(always)]
    pub fn element_count(self) -> u16 {
        let field = (self.l3 + Self::SUMAC + offset::ELEMENTS) as *const u16;
        // SAFETY: as in `get`.
        u16::from_be(unsafe { field.read_volatile() })
    }

    #[inline(always)]
    pub fn job(self) -> u16 {
        u16::from_be(self.get(Self::SUMAC + offset::JOB))
    }

    #[inline(always)]
    pub fn epoch(self) -> u16 {
        u16::from_be(self.get(Self::SUMAC + offset::EPOCH))
    }

    /// The IPv4 source address, host order.
    #[inline(always)]
    pub fn src_ip(self) -> u32 {
        const SRC_IP: usize = 12;
        u32::from_be(self.get(SRC_IP))
    }

    #[inline(always)]
    pub fn seq(self) -> u32 {
        u32::from_be(self.get(Self::SUMAC + offset::SEQ))
    }

    #[inline(always)]
    pub fn lane(self) -> u16 {
        u16::from_be(self.get(Self::SUMAC + offset::LANE))
    }

    #[inline(always)]
    pub fn slot(self) -> u32 {
        u32::from_be(self.get(Self::SUMAC + offset::SLOT))
    }

    /// Writes `value` at `at`, as it lies in memory.
    #[inline(always)]
    pub fn set<T: Copy>(self, at: usize, value: T) {
        debug_assert!(at + size_of::<T>() <= Self::LEN);
        // SAFETY: as in `get`; the frame is this program's alone.
        unsafe { *((self.l3 + at) as *mut T) = value };
    }

    /// The checksum's sum over `words` 32-bit words from `at`, in memory order.
    #[inline(always)]
    pub fn sum(self, at: usize, words: usize) -> u64 {
        let mut sum = 0;
        for word in 0..words {
            sum += u64::from(self.get::<u32>(at + 4 * word));
        }
        sum
    }

    #[inline(always)]
    pub fn swap_macs(self) {
        let (to, from) = (self.mac(0), self.mac(6));
        self.set_mac(0, from);
        self.set_mac(6, to);
    }

    /// Writes destination and source of the Ethernet header.
    #[inline(always)]
    pub fn set_macs(self, to: [u8; 6], from: [u8; 6]) {
        let halves = |m: [u8; 6]| {
            [
                u16::from_ne_bytes([m[0], m[1]]),
                u16::from_ne_bytes([m[2], m[3]]),
                u16::from_ne_bytes([m[4], m[5]]),
            ]
        };
        self.set_mac(0, halves(to));
        self.set_mac(6, halves(from));
    }

    #[inline(always)]
    fn mac(self, at: usize) -> [u16; 3] {
        let p = (self.eth + at) as *const u16;
        // SAFETY: the Ethernet header precedes the headers that were compared with the frame's end.
        unsafe { [*p, *p.add(1), *p.add(2)] }
    }

    #[inline(always)]
    fn set_mac(self, at: usize, mac: [u16; 3]) {
        let p = (self.eth + at) as *mut u16;
        // SAFETY: as in `mac`.
        unsafe {
            *p = mac[0];
            *p.add(1) = mac[1];
            *p.add(2) = mac[2];
        }
    }
}

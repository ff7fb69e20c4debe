//! The header in front of the elements: 64 bytes, network order, the same in every mode.
//!
//! The table of its fields stands in `docs/protocol.md`. Fields that only the dynamic (ATP) and
//! direct (MLT) modes use are carried unchanged.

use crate::{Reason, bytes::Bytes};

/// The version of the packet that this build speaks.
pub const VERSION: u8 = 3;
/// Bytes in the header.
pub const HEADER_LEN: usize = 64;
/// `slot` of a packet that no aggregator shall touch.
pub const NO_SLOT: u32 = u32::MAX;

/// Defines the header's fields: offset, meaning, type, and the read from [`Bytes`].
macro_rules! fields {
    ($($(#[$doc:meta])* $offset:ident: $at:literal, $field:ident: $type:ty, $read:ident;)*) => {
        /// The offset of each field, in bytes from the start of the UDP payload.
        pub mod offset {
            /// Version in the high four bits, [`super::Kind`] in the low four.
            pub const VERSION_KIND: usize = 0;
            $($(#[$doc])* pub const $offset: usize = $at;)*
            /// Two bytes of zeros.
            pub const RESERVED: usize = 62;
        }

        /// The header's fields in host order.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct Header {
            /// A [`Kind`].
            pub kind: u8,
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Header {
            /// Every field as it stands in the packet, unchecked: of a header that [`Header::read`] has seen
            /// before.
            #[inline(always)]
            pub fn fields<B: Bytes + ?Sized>(bytes: &B, at: usize) -> Option<Header> {
                Some(Header {
                    kind: bytes.u8(at + offset::VERSION_KIND)? & 0x0f,
                    $($field: bytes.$read(at + offset::$offset)? as $type,)*
                })
            }

            /// The header's bytes, in network order.
            pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
                let mut out = [0; HEADER_LEN];
                out[offset::VERSION_KIND] = VERSION << 4 | self.kind & 0x0f;
                $(put(&mut out, offset::$offset, self.$field.to_be_bytes());)*
                out
            }
        }
    };
}

fields! {
    /// [`Format`](crate::header::Format) of the elements.
    FORMAT: 1, format: u8, u8;
    /// [`flag`](crate::header::flag) bits.
    FLAGS: 2, flags: u16, be16;
    /// The job.
    JOB: 4, job: u16, be16;
    /// The job's incarnation.
    EPOCH: 6, epoch: u16, be16;
    /// The chunk's number in the job's stream.
    SEQ: 8, seq: u32, be32;
    /// The slot, counted from the job's first.
    SLOT: 12, slot: u32, be32;
    /// Contributions that complete level 0.
    FAN_IN_0: 16, fan_in_0: u8, u8;
    /// Contributions that complete level 1.
    FAN_IN_1: 17, fan_in_1: u8, u8;
    /// Elements in the payload: 32-bit words, whatever they hold.
    ELEMENTS: 18, elements: u16, be16;
    /// The worker below its first aggregator, one bit.
    BITMAP_0: 20, bitmap_0: u32, be32;
    /// The sender's first aggregator below the second, one bit.
    BITMAP_1: 24, bitmap_1: u32, be32;
    /// In a result: how many workers' values the sum holds. With the first chunk of an operation
    /// with a loss bound, and in a flush: the chunks of it that each worker may be left out of.
    CONTRIBUTORS: 28, contributors: u16, be16;
    /// Block floating point: the exponent that this chunk is scaled by, or the packet alone
    /// ([`exponent`](crate::header::exponent)).
    EXPONENT: 30, exponent: i8, u8;
    /// Block floating point: the sender's exponent of the slot's next chunk; in a result the largest.
    NEXT_EXPONENT: 31, next_exponent: i8, u8;
    /// The operation's signature: the same on two workers only if they mean the same operation.
    TENSOR: 32, tensor: u32, be32;
    /// The first element's index in its tensor.
    OFFSET: 36, offset: u32, be32;
    /// The sender's clock in microseconds, echoed.
    TIMESTAMP: 40, timestamp: u32, be32;
    /// In a result: the chunk that takes this version of the slot next. In a flush: its operation's first
    /// chunk; with that chunk: the first one behind the operation.
    NEXT_SEQ: 44, next_seq: u32, be32;
    /// The job's secret number.
    TOKEN: 48, token: u64, be64;
    /// In a contribution, a question and a probe: how far the sender has received. It has the results of all
    /// earlier chunks: of the slot (static mode), of the lane (dynamic mode).
    RECEIVED: 56, received: u32, be32;
    /// The lane.
    LANE: 60, lane: u16, be16;
}

/// Bits of the flags field.
pub mod flag {
    /// Sent again (all modes).
    pub const RESEND: u16 = 1 << 0;
    /// The slot was busy with another chunk (dynamic mode).
    pub const COLLISION: u16 = 1 << 1;
    /// A value did not fit and was clamped; slots merge it into their result.
    pub const OVERFLOW: u16 = 1 << 2;
    /// In a result: the sum holds fewer than all workers, those in `bitmap 0`. In a contribution, which is
    /// then a *flush*: complete the slot with what it has (bounded loss).
    pub const PARTIAL: u16 = 1 << 3;
    /// Raw floats, or 16-bit integers at the packet's own exponent: not to be added (dynamic mode).
    pub const RAW_FLOAT: u16 = 1 << 4;
    /// The network marked congestion on the way; slots merge it into their result.
    pub const ECN_ECHO: u16 = 1 << 5;
    /// The packet is between the first and the second aggregator.
    pub const LEVEL: u16 = 1 << 6;
    /// The slot's version that this chunk uses (SwitchML's `ver`).
    pub const POOL_VERSION: u16 = 1 << 7;
    /// The sum is to be the signed maximum of the elements.
    pub const MAXIMUM: u16 = 1 << 8;
    /// An exponent round: no elements, only the sender's exponent of the chunk, in `next exponent`;
    /// in a result, the largest of them, in `exponent`.
    pub const EXPONENT: u16 = 1 << 9;
    /// In a result: not a sum, but the sender's own packet, whose signature is not the slot's.
    pub const MISMATCH: u16 = 1 << 10;
    /// A value was NaN or infinite, and zero stands in its place; slots merge it into their result.
    pub const NOT_FINITE: u16 = 1 << 11;
    /// A question: is the sender's contribution to this chunk here? No elements. In a result: no, or the sum
    /// is here already; the contribution is to be sent, again.
    pub const QUERY: u16 = 1 << 12;
    /// In a report: the aggregator no longer has the sender's job.
    pub const UNKNOWN_JOB: u16 = 1 << 13;
    /// A contribution without values: its elements are zeros, and the packet has none of them. The slot
    /// counts its sender, but completes only with a packet of the result's length (static mode).
    pub const EMPTY: u16 = 1 << 14;
    /// Flags that a slot keeps from every contribution and gives to its result.
    pub const MERGED: u16 = OVERFLOW | ECN_ECHO | NOT_FINITE;
}

/// Exponents of block floating point (SwitchML section 4.6), one byte each.
///
/// A chunk with the largest magnitude h, and the smallest m with h <= 2^m, has the exponent
/// `max(m, -125) - 2`, which is at least [`exponent::LEAST`] and at most 126. The largest byte of all
/// workers is the exponent of their sum.
pub mod exponent {
    /// There is nothing to agree on: the chunk holds no floats that are scaled by block.
    pub const NONE: i8 = i8::MIN;
    /// The chunk's values are tiny or zero.
    pub const LEAST: i8 = -127;
    /// The sender does not have the chunk yet. It wins over every exponent, so that all workers learn that
    /// they have to ask for it.
    pub const UNKNOWN: i8 = i8::MAX;
    /// The summand of m.
    pub const BIAS: i32 = -2;
}

/// The type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A worker's elements for one chunk.
    Contribution = 1,
    /// The sum of a chunk.
    Result = 2,
    /// Asks for an answer of the same length (handshake); in direct mode: what is missing?
    Probe = 3,
    /// Answers a probe.
    Report = 4,
    /// Direct mode: enough has arrived.
    Stop = 5,
    /// Reserved for in-band control.
    Control = 7,
}

impl Kind {
    /// The type with this number.
    #[inline(always)]
    pub const fn from_number(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Contribution,
            2 => Kind::Result,
            3 => Kind::Probe,
            4 => Kind::Report,
            5 => Kind::Stop,
            7 => Kind::Control,
            _ => return None,
        })
    }
}

/// The format of the payload's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Format {
    /// 32-bit integers, network order: scaled values, or an order's keys.
    Int32 = 0,
    /// Two scaled 16-bit integers a word: `high * 2^16 + low`, the low one's sign borrowed from the high
    /// one, so that adding words adds both.
    Int16 = 1,
    /// Bytes of the tensor itself, where all workers but one send zeros.
    Raw = 2,
}

/// Bytes of one element, in every format.
pub const ELEMENT_LEN: usize = 4;

impl Header {
    /// Reads the header at `at`, and holds the payload's length against the elements it announces.
    ///
    /// `payload_len` counts the bytes of the UDP payload: header and elements.
    #[inline(always)]
    pub fn read<B: Bytes + ?Sized>(bytes: &B, at: usize, payload_len: usize) -> Result<Header, Reason> {
        Header::check_version(bytes, at)?;
        if bytes.len() < at + HEADER_LEN {
            return Err(Reason::Truncated);
        }
        let header = Header::fields(bytes, at).ok_or(Reason::Truncated)?;
        if Kind::from_number(header.kind).is_none() {
            return Err(Reason::BadType);
        }
        if header.format > Format::Raw as u8 {
            return Err(Reason::BadFormat);
        }
        if payload_len != HEADER_LEN + header.elements as usize * ELEMENT_LEN {
            return Err(Reason::BadLength);
        }
        Ok(header)
    }

    /// Checks the packet's version: before its length, since other versions have headers of other lengths.
    #[inline(always)]
    pub fn check_version<B: Bytes + ?Sized>(bytes: &B, at: usize) -> Result<(), Reason> {
        let version_kind = bytes.u8(at + offset::VERSION_KIND).ok_or(Reason::Truncated)?;
        if version_kind >> 4 == VERSION { Ok(()) } else { Err(Reason::BadVersion) }
    }

    /// Whether any bit of `flags` is set.
    #[inline(always)]
    pub const fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    /// The slot's version that this chunk uses: 0 or 1.
    #[inline(always)]
    pub const fn pool_version(&self) -> u8 {
        self.has(flag::POOL_VERSION) as u8
    }
}

#[inline]
fn put<const N: usize>(out: &mut [u8; HEADER_LEN], at: usize, value: [u8; N]) {
    out[at..at + N].copy_from_slice(&value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_header() -> impl Strategy<Value = Header> {
        let ids = (1..=5u8, any::<u16>(), any::<u16>(), any::<u16>(), any::<u32>(), any::<u32>());
        let tree = (any::<u8>(), any::<u8>(), 0..=832u16, any::<u32>(), any::<u32>(), any::<u16>());
        let chunk = (any::<i8>(), any::<i8>(), any::<u32>(), any::<u32>(), any::<u32>());
        let rest = (any::<u32>(), any::<u64>(), any::<u32>(), any::<u16>());
        (ids, tree, chunk, rest).prop_map(|(ids, tree, chunk, rest)| Header {
            kind: ids.0,
            format: ids.0 % 3,
            flags: ids.1,
            job: ids.2,
            epoch: ids.3,
            seq: ids.4,
            slot: ids.5,
            fan_in_0: tree.0,
            fan_in_1: tree.1,
            elements: tree.2,
            bitmap_0: tree.3,
            bitmap_1: tree.4,
            contributors: tree.5,
            exponent: chunk.0,
            next_exponent: chunk.1,
            tensor: chunk.2,
            offset: chunk.3,
            timestamp: chunk.4,
            next_seq: rest.0,
            token: rest.1,
            received: rest.2,
            lane: rest.3,
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(header in any_header()) {
            let bytes = header.to_bytes();
            let len = HEADER_LEN + header.elements as usize * ELEMENT_LEN;
            prop_assert_eq!(Header::read(&bytes[..], 0, len), Ok(header));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), len in any::<usize>()) {
            let _ = Header::read(&bytes[..], 0, len);
        }
    }

    #[test]
    fn refusals_are_named() {
        let good = Header { kind: 1, elements: 2, ..Header::default() };
        let bytes = good.to_bytes();
        for cut in 0..HEADER_LEN {
            assert_eq!(
                Header::read(&bytes[..cut], 0, HEADER_LEN + 8),
                Err(Reason::Truncated),
                "cut at {cut}"
            );
        }
        let table: [(&str, usize, u8, Reason); 6] = [
            ("version 1", 0, 0x11, Reason::BadVersion),
            ("version 2", 0, 0x21, Reason::BadVersion),
            ("type 0", 0, 0x30, Reason::BadType),
            ("type 6", 0, 0x36, Reason::BadType),
            ("type 15", 0, 0x3f, Reason::BadType),
            ("format 3", 1, 3, Reason::BadFormat),
        ];
        for (what, at, value, reason) in table {
            let mut bad = bytes;
            bad[at] = value;
            assert_eq!(Header::read(&bad[..], 0, HEADER_LEN + 8), Err(reason), "{what}");
        }
        for len in [HEADER_LEN + 7, HEADER_LEN + 12] {
            assert_eq!(Header::read(&bytes[..], 0, len), Err(Reason::BadLength), "length {len}");
        }
    }
}

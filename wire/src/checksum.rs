//! The Internet checksum (RFC 1071) in a form that is cheap in eBPF and in vector units.
//!
//! The ones' complement sum does not depend on byte order, so bytes are added as they lie in
//! memory, as wide as they come, and folded once at the end. A sum kept in this module's form is
//! in *memory order*: of the machine's own words, not of the network's.

/// Adds `bytes` to `sum`, as 32-bit words in memory order. An odd tail is padded with zeros.
///
/// `bytes` must start at an even offset of the data that is summed.
#[inline]
pub fn add(sum: u64, bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<4>();
    let sum = words.iter().fold(sum, |sum, word| sum + u64::from(u32::from_ne_bytes(*word)));
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(tail) {
        *to = *from;
    }
    sum + u64::from(u32::from_ne_bytes(last))
}

/// Folds a sum to 16 bits, in memory order.
#[inline(always)]
pub const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The pseudo header's part of UDP's sum, in memory order.
///
/// Addresses are in host order, `udp_len` counts UDP's header and payload.
#[inline(always)]
pub const fn pseudo_header(src_ip: u32, dst_ip: u32, udp_len: u16) -> u64 {
    const UDP: u16 = 17;
    src_ip.to_be() as u64 + dst_ip.to_be() as u64 + UDP.to_be() as u64 + udp_len.to_be() as u64
}

/// The checksum field for a sum of everything but that field, in memory order.
///
/// UDP writes a computed zero as all ones, because zero means "none".
#[inline(always)]
pub const fn finish_udp(sum: u64) -> u16 {
    match !fold(sum) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Whether a sum over everything, the checksum field included, is that of intact data.
#[inline(always)]
pub const fn is_intact(sum: u64) -> bool {
    fold(sum) == 0xffff
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// RFC 1071 to the letter: 16-bit words in network order.
    fn oracle(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    proptest! {
        #[test]
        fn agrees_with_the_rfc(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
            prop_assert_eq!(u16::from_be(fold(add(0, &bytes))) % 0xffff, oracle(&bytes) % 0xffff);
        }

        #[test]
        fn one_flipped_bit_is_seen(
            mut bytes in proptest::collection::vec(any::<u8>(), 2..1500),
            bit in any::<proptest::sample::Index>(),
        ) {
            if bytes.len() % 2 == 1 {
                bytes.pop();
            }
            let mut all: Vec<u8> = bytes.clone();
            all.extend(finish_udp(add(0, &bytes)).to_ne_bytes());
            prop_assert!(is_intact(add(0, &all)));
            let bit = bit.index(all.len() * 8);
            all[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!is_intact(add(0, &all)));
        }
    }
}

//! The slot of a chunk, and its version (SwitchML section 4.4, Algorithm 4).
//!
//! All workers compute the same: each slot's first two chunks are those that `seq mod slots` gives it, in
//! version 0 and then 1; from there on results name the chunks (see [`crate::slot`]). With a power of two of
//! slots both are bits of `seq`, and stay right when `seq` wraps.

/// The slot and version of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The slot, counted from the job's first.
    pub slot: u32,
    /// 0 or 1.
    pub version: u8,
}

/// Returns the place of chunk `seq` in `1 << slots_log2` slots.
//= switchml#4.4 slot and version follow from the chunk's number
#[inline(always)]
pub const fn place(seq: u32, slots_log2: u32) -> Place {
    Place { slot: seq & ((1 << slots_log2) - 1), version: (seq >> slots_log2 & 1) as u8 }
}

/// Whether chunk `a` is later in the stream than `b` (serial numbers, RFC 1982).
#[inline(always)]
pub const fn is_later(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    //= switchml#4.4 slot and version follow from the chunk's number
    #[test]
    fn versions_alternate_also_over_the_wrap() {
        for slots_log2 in 0..10 {
            let slots = 1u32 << slots_log2;
            for seq in [0, 1, 77, u32::MAX - slots, u32::MAX] {
                let (now, next) = (place(seq, slots_log2), place(seq.wrapping_add(slots), slots_log2));
                assert_eq!(now.slot, next.slot, "seq {seq}");
                assert_ne!(now.version, next.version, "seq {seq}");
                assert!(now.slot < slots);
            }
        }
    }

    #[test]
    fn order_is_serial() {
        assert!(is_later(1, 0));
        assert!(is_later(0, u32::MAX));
        assert!(!is_later(5, 5));
        assert!(!is_later(u32::MAX, 0));
    }
}

//! Reading of a packet's bytes through one small trait, because the eBPF verifier requires every
//! load behind a comparison of pointers while user space has slices.

/// Random access to the bytes of one packet. `None` means that the packet ends before.
///
/// Multi-byte reads are from network order.
pub trait Bytes {
    /// Bytes in the packet.
    fn len(&self) -> usize;
    /// Whether the packet has no byte at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The byte at `at`.
    fn u8(&self, at: usize) -> Option<u8>;
    /// Two bytes at `at`.
    fn be16(&self, at: usize) -> Option<u16>;
    /// Four bytes at `at`.
    fn be32(&self, at: usize) -> Option<u32>;
    /// Eight bytes at `at`.
    fn be64(&self, at: usize) -> Option<u64>;
}

/// A packet whose words are loaded from memory as they lie there: how the eBPF programs see it.
///
/// What implements it gets [`Bytes`] with it.
pub trait Load {
    /// Bytes in the packet.
    fn size(&self) -> usize;
    /// The word at `at`, in the order of memory; `None` beyond the end.
    fn load<T: Copy>(&self, at: usize) -> Option<T>;
}

impl<L: Load> Bytes for L {
    #[inline(always)]
    fn len(&self) -> usize {
        self.size()
    }
    #[inline(always)]
    fn u8(&self, at: usize) -> Option<u8> {
        self.load(at)
    }
    #[inline(always)]
    fn be16(&self, at: usize) -> Option<u16> {
        self.load(at).map(u16::from_be)
    }
    #[inline(always)]
    fn be32(&self, at: usize) -> Option<u32> {
        self.load(at).map(u32::from_be)
    }
    #[inline(always)]
    fn be64(&self, at: usize) -> Option<u64> {
        self.load(at).map(u64::from_be)
    }
}

impl Bytes for [u8] {
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
    #[inline]
    fn u8(&self, at: usize) -> Option<u8> {
        self.get(at).copied()
    }
    #[inline]
    fn be16(&self, at: usize) -> Option<u16> {
        array(self, at).map(u16::from_be_bytes)
    }
    #[inline]
    fn be32(&self, at: usize) -> Option<u32> {
        array(self, at).map(u32::from_be_bytes)
    }
    #[inline]
    fn be64(&self, at: usize) -> Option<u64> {
        array(self, at).map(u64::from_be_bytes)
    }
}

#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn reads_stop_at_the_end() {
        let bytes: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(bytes.be64(0), Some(0x0102_0304_0506_0708));
        assert_eq!(bytes.be64(1), None);
        assert_eq!(bytes.be32(4), Some(0x0506_0708));
        assert_eq!(bytes.be32(5), None);
        assert_eq!(bytes.be16(6), Some(0x0708));
        assert_eq!(bytes.be16(7), None);
        assert_eq!(bytes.be16(usize::MAX), None);
        assert_eq!(bytes.u8(8), None);
    }
}

//! The kernel's structures of `linux/if_xdp.h`. Those that never leave a system call are libc's; the
//! two that lie in shared rings are written here, because their layout is part of this crate's safety.

use serde::Serialize;

/// An entry of the receive and transmit rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// Where the packet starts, in bytes from the start of the UMEM.
    pub address: u64,
    /// Bytes of the packet.
    pub len: u32,
    /// [`CONTINUES`] or zero.
    pub options: u32,
}

/// The packet goes on in the next descriptor (`XDP_PKT_CONTD`).
pub const CONTINUES: u32 = libc::XDP_PKT_CONTD;

/// An entry of the fill and completion rings: a frame's address in the UMEM.
pub type Address = u64;

/// Marks types that may stand in memory that somebody else writes.
///
/// # Safety
///
/// Every bit pattern must be a valid value, and the type must need no drop.
pub unsafe trait Plain: Copy + Send + 'static {}

// SAFETY: an integer.
unsafe impl Plain for Address {}
// SAFETY: three integers, without padding.
unsafe impl Plain for Descriptor {}

/// What the kernel counted for one socket (`XDP_STATISTICS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Frames that the kernel dropped for another reason than the ones below.
    pub rx_dropped: u64,
    /// Fill-ring entries that the kernel refused.
    pub rx_invalid_descriptors: u64,
    /// Transmit-ring entries that the kernel refused.
    pub tx_invalid_descriptors: u64,
    /// Frames lost because the receive ring was full.
    pub rx_ring_full: u64,
    /// How often the kernel wanted a frame to fill and found none.
    pub rx_fill_ring_empty: u64,
    /// How often the kernel looked for something to send and found nothing.
    pub tx_ring_empty: u64,
}

impl From<libc::xdp_statistics> for Statistics {
    fn from(s: libc::xdp_statistics) -> Statistics {
        Statistics {
            rx_dropped: s.rx_dropped,
            rx_invalid_descriptors: s.rx_invalid_descs,
            tx_invalid_descriptors: s.tx_invalid_descs,
            rx_ring_full: s.rx_ring_full,
            rx_fill_ring_empty: s.rx_fill_ring_empty_descs,
            tx_ring_empty: s.tx_ring_empty_descs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Descriptor;

    #[test]
    fn a_descriptor_is_laid_out_as_the_kernels() {
        assert_eq!(size_of::<Descriptor>(), size_of::<libc::xdp_desc>());
        assert_eq!(std::mem::offset_of!(Descriptor, len), std::mem::offset_of!(libc::xdp_desc, len));
        assert_eq!(std::mem::offset_of!(Descriptor, options), std::mem::offset_of!(libc::xdp_desc, options));
    }
}

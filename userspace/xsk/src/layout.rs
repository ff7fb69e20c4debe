//! Division of the UMEM into chunks for sending, followed by chunks for receiving.
//!
//! The kernel accepts chunks of 2 or 4 KiB. A packet starts behind a headroom in its first chunk and in every
//! further one: the kernel writes there when it receives, and xsk-rs's descriptors start there when it sends.

/// `XDP_PACKET_HEADROOM`.
const HEADROOM: u32 = 256;

const SMALL_CHUNK: u32 = 2048;

/// The kernel's largest chunk: a page.
const LARGE_CHUNK: u32 = 4096;

/// Largest packet that a queue can be opened for: the longest of IP, an Ethernet header and a VLAN tag.
pub(crate) const LARGEST_PACKET: u32 = 65_535 + 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UmemLayout {
    /// Bytes of a chunk, a power of two.
    pub(crate) chunk: u32,
    pub(crate) span: u32,
    /// Packets that can be sent and not completed.
    pub(crate) sending: u32,
    /// Chunks for receiving.
    pub(crate) receiving: u32,
}

impl UmemLayout {
    /// Returns the layout for `frames` packets in each direction, of at most `packet` bytes.
    ///
    /// In zero-copy mode a chunk is the NIC's receive buffer, which drivers round down to what their hardware
    /// counts in: igb, ixgbe and igc to 1 KiB (`SRRCTL.BSIZEPKT`). A small chunk leaves 1,792 bytes behind
    /// the headroom, of which igb uses 1,024, and drops packets of an MTU of 1,500. A large one leaves 3,840
    /// bytes, of which it uses 3,072.
    pub(crate) fn for_packets(packet: u32, frames: u32, zero_copy: bool) -> UmemLayout {
        let is_small = packet + HEADROOM <= SMALL_CHUNK && !zero_copy;
        let chunk = if is_small { SMALL_CHUNK } else { LARGE_CHUNK };
        let span = packet.div_ceil(chunk - HEADROOM);
        UmemLayout { chunk, span, sending: frames, receiving: frames * span }
    }

    pub(crate) fn is_multi_buffer(self) -> bool {
        self.span > 1
    }

    pub(crate) fn payload(self) -> usize {
        (self.chunk - HEADROOM) as usize
    }

    pub(crate) fn packet(self) -> usize {
        self.span as usize * self.payload()
    }

    /// Number of chunks for sending. The chunks for receiving have the numbers from here on.
    pub(crate) fn sending_chunks(self) -> u32 {
        self.sending * self.span
    }

    pub(crate) fn chunks(self) -> u32 {
        self.sending_chunks() + self.receiving
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.chunks()) * u64::from(self.chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_take_the_fewest_chunks() {
        // 1792 bytes are 2048 without the headroom, 3840 are 4096 without it.
        for (packet, chunk, span) in [
            (1518, 2048, 1),
            (1792, 2048, 1),
            (1793, 4096, 1),
            (3840, 4096, 1),
            (3841, 4096, 2),
            (9018, 4096, 3),
            (LARGEST_PACKET, 4096, 18),
        ] {
            let layout = UmemLayout::for_packets(packet, 10, false);
            assert_eq!((layout.chunk, layout.span, layout.receiving), (chunk, span, 10 * span), "{packet}");
            assert_eq!(layout.is_multi_buffer(), span > 1, "{packet}");
            assert!(layout.packet() >= packet as usize, "{packet}");
        }
    }

    #[test]
    fn receive_buffers_of_zero_copy_hold_a_packet_when_rounded_down() {
        const GRANULARITY: u32 = 1024;
        for packet in [64, 1518, 1792, 3072] {
            let layout = UmemLayout::for_packets(packet, 10, true);
            let buffer = layout.payload() as u32 / GRANULARITY * GRANULARITY;
            assert!(layout.span == 1 && buffer >= packet, "{packet}: {layout:?}");
        }
    }
}

//! How the frames' memory is cut: packets for sending, chunks for receiving.
//!
//! The kernel knows chunks of 2 or 4 KiB. A packet that is to be sent lies in as many neighbouring chunks as it takes, so
//! that it is written in one piece; what is received in several chunks has them anywhere.

/// Bytes that the kernel keeps in front of what it writes into a chunk.
const HEADROOM: u32 = 256;

/// The kernel's largest chunk: a page.
const LARGEST_CHUNK: u32 = 4096;

/// The most bytes of a packet that a socket can be opened for: the longest that IP has, with Ethernet's header and a tag.
pub const LARGEST_PACKET: u32 = 65_535 + 18;

/// Where which frame lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of a chunk, a power of two.
    pub(crate) chunk: u32,
    /// Chunks of a packet that is to be sent.
    pub(crate) span: u32,
    /// Packets that can be on their way out.
    pub(crate) sending: u32,
    /// Chunks to receive into.
    pub(crate) receiving: u32,
}

impl Layout {
    /// For packets of at most `packet` bytes from their Ethernet header on, `frames` of them each way.
    pub(crate) fn for_packets(packet: u32, frames: u32) -> Layout {
        let small = 2048;
        let chunk = if packet + HEADROOM <= small { small } else { LARGEST_CHUNK };
        Layout {
            chunk,
            span: packet.div_ceil(chunk),
            sending: frames,
            receiving: frames * packet.div_ceil(chunk - HEADROOM),
        }
    }

    /// Whether a packet may come or go in several chunks.
    pub(crate) fn is_scattered(self) -> bool {
        self.receiving > self.sending
    }

    /// Chunks of all frames.
    pub(crate) fn chunks(self) -> u32 {
        self.sending * self.span + self.receiving
    }

    /// Bytes of the memory.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.chunks()) * u64::from(self.chunk)
    }

    /// Bytes of a packet that is to be sent.
    pub(crate) fn packet(self) -> u32 {
        self.span * self.chunk
    }

    /// Where the chunks for receiving begin.
    pub(crate) fn receiving_from(self) -> u64 {
        u64::from(self.sending) * u64::from(self.packet())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_get_as_few_chunks_as_they_need() {
        // 1792 bytes are 2048 without the headroom, 3840 are 4096 without it.
        for (packet, chunk, span, each) in [
            (1518, 2048, 1, 1),
            (1792, 2048, 1, 1),
            (1793, 4096, 1, 1),
            (3840, 4096, 1, 1),
            (9018, 4096, 3, 3),
        ] {
            let layout = Layout::for_packets(packet, 10);
            assert_eq!((layout.chunk, layout.span, layout.receiving), (chunk, span, 10 * each), "{packet}");
            assert_eq!(layout.is_scattered(), each > 1, "{packet}");
        }
        let between = Layout::for_packets(4000, 10);
        assert_eq!((between.span, between.receiving), (1, 20), "one chunk out, two in");
    }
}

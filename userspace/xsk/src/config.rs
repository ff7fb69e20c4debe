//! The configuration of a queue's socket, and the result of binding it.

use serde::Serialize;

/// The copy mode that a bind asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindMode {
    /// Zero-copy where the driver supports it, else copy. [`Bound`] has the result and the reason.
    #[default]
    Auto,
    /// Zero-copy or an error (`XDP_ZEROCOPY`).
    ZeroCopy,
    /// Copy, even where the driver supports zero-copy (`XDP_COPY`).
    Copy,
}

/// Bytes of an Ethernet header and one VLAN tag, which the MTU does not include.
pub const LINK_HEADER: u32 = 18;

#[derive(Clone, Debug)]
pub struct QueueConfig {
    pub interface: String,
    pub queue: u32,
    /// Packets in each direction: so many can be sent and not completed, and so many can wait to be received.
    /// At least 1, at most 65,536.
    pub frames: u32,
    /// Most bytes of a packet, from its Ethernet header on. A packet above 3,840 bytes takes several
    /// descriptors (`XDP_USE_SG`, Linux 6.6), and the program that redirects to the socket must be loaded
    /// with `BPF_F_XDP_HAS_FRAGS`.
    pub packet_size: u32,
    pub mode: BindMode,
}

impl QueueConfig {
    /// Returns the defaults: 1,024 packets in each direction, for an MTU of 1,500.
    pub fn new(interface: &str, queue: u32) -> QueueConfig {
        QueueConfig {
            interface: interface.to_owned(),
            queue,
            frames: 1024,
            packet_size: 1500 + LINK_HEADER,
            mode: BindMode::Auto,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// Whether the driver reads and writes the frames in place (`XDP_OPTIONS`).
    pub zero_copy: bool,
    /// The reason for copy mode where zero-copy was wanted.
    pub fallback: Option<String>,
}

//! Packets to send: a written UDP payload with its destination and tags.

use sumac_job::Mode;

use crate::peer::PeerId;

/// A UDP payload that the engine has written, and its destination and tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes written: header and elements.
    pub len: usize,
    pub to: PeerId,
    /// The destination port is the peer's port plus this: the lane's shard.
    pub port_offset: u16,
    /// Varies from packet to packet; spread over source ports it makes ECMP use all paths.
    pub entropy: u16,
    /// IPv4's DSCP and ECN byte.
    pub dscp_ecn: u8,
}

/// The ECN field of packets that routers may mark instead of dropping them: ECT(0).
const ECT_0: u8 = 0b10;
/// The position of IPv4's class selector in the byte of DSCP and ECN.
const CLASS_SELECTOR: u32 = 5;
/// The highest class selector.
const MAX_PRIORITY: u8 = 7;

/// The byte of DSCP and ECN of a packet of this priority; `None`: a probe. All tags are decided here; aggregators and
/// parameter hosts keep them.
pub(crate) fn tag(mode: Mode, priority: Option<u8>) -> u8 {
    let ecn = match mode {
        Mode::Static => 0,
        // Senders react to marks.
        Mode::Dynamic => ECT_0,
    };
    priority.map_or(0, |priority| priority.min(MAX_PRIORITY) << CLASS_SELECTOR | ecn)
}

/// Spreads consecutive numbers over 16 bits (Fibonacci hashing).
pub(crate) fn entropy(index: u64) -> u16 {
    (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_follow_from_mode_and_priority() {
        let table = [
            (Mode::Static, None, 0),
            (Mode::Dynamic, None, 0),
            (Mode::Static, Some(5), 0b1010_0000),
            (Mode::Dynamic, Some(5), 0b1010_0010),
            (Mode::Dynamic, Some(0), 0b0000_0010),
            (Mode::Static, Some(200), 0b1110_0000),
        ];
        for (mode, priority, expected) in table {
            assert_eq!(tag(mode, priority), expected, "{mode:?} {priority:?}");
        }
    }
}

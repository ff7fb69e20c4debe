//! Packets to send: a written UDP payload with its destination and tags.

use crate::peer::PeerId;

/// A UDP payload that the engine has written, and its destination and tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes written: header and elements.
    pub len: usize,
    pub to: PeerId,
    /// The destination port is the peer's port plus this: the lane's shard.
    pub port_offset: u16,
    /// The number of its path: the UDP source port, by which ECMP chooses the route.
    pub path: u16,
    /// IPv4's DSCP and ECN byte.
    pub dscp_ecn: u8,
}

/// The ECN field of packets that routers may mark instead of dropping them: ECT(0) (RFC 3168).
const ECT_0: u8 = 0b10;
/// The position of IPv4's class selector in the byte of DSCP and ECN.
const CLASS_SELECTOR: u32 = 5;
/// The highest class selector.
const MAX_PRIORITY: u8 = 7;

/// The byte of DSCP and ECN of a packet of this priority. `is_capable`: the sender reacts to marks on it. All tags are decided
/// here and at the parameter host; aggregators keep them.
pub(crate) fn tag(priority: u8, is_capable: bool) -> u8 {
    priority.min(MAX_PRIORITY) << CLASS_SELECTOR | if is_capable { ECT_0 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_follow_from_priority_and_ecn() {
        let table = [
            (5, false, 0b1010_0000),
            (5, true, 0b1010_0010),
            (0, true, 0b0000_0010),
            (0, false, 0),
            (200, false, 0b1110_0000),
        ];
        for (priority, is_capable, expected) in table {
            assert_eq!(tag(priority, is_capable), expected, "{priority} {is_capable}");
        }
    }
}

//! Packets to send: a written UDP payload with its destination and tags.

use sumac_wire::tos;

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

/// The byte of DSCP and ECN of a packet with data. All tags are decided here and at the parameter host;
/// aggregators keep them.
///
/// In dynamic jobs, and in static ones with congestion control, ECN-capable means that the sender reacts to
/// marks, and importance travels as drop precedence. Elsewhere it means that the packet is important: beyond
/// the threshold of RED, routers mark those and drop the others (MLT section 5.2). Packets that are not
/// distinguished are ECN-capable if the sender reacts, which it does in direct jobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    pub priority: u8,
    /// `None`: packets are not told apart.
    pub is_important: Option<bool>,
    /// Whether importance travels as drop precedence, and not in ECN.
    pub by_precedence: bool,
    /// Whether the sender reacts to marks on this packet.
    pub reacts: bool,
}

impl Tag {
    pub fn byte(self) -> u8 {
        let Tag { priority, is_important, by_precedence, reacts } = self;
        let dscp = match is_important {
            Some(is_important) if by_precedence => tos::assured_forwarding(priority, is_important),
            _ => tos::class_selector(priority),
        };
        let is_capable = if by_precedence { reacts } else { is_important.unwrap_or(reacts) };
        dscp | if is_capable { tos::ECT_0 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_follow_from_priority_importance_and_mode() {
        let (high, low) = (Some(true), Some(false));
        // (priority, importance, by precedence, reacts), DSCP, ECN.
        let table = [
            ("static", (5, None, false, false), 40, 0b00),
            ("static, important", (5, high, false, false), 40, 0b10),
            ("static, unimportant", (5, low, false, false), 40, 0b00),
            ("static, with congestion control", (5, None, true, true), 40, 0b10),
            ("static, with congestion control, unimportant", (5, low, true, true), 38, 0b10),
            ("beyond the data's classes", (7, None, false, false), 40, 0b00),
            ("direct", (5, None, false, true), 40, 0b10),
            ("direct, sent again", (5, None, false, false), 40, 0b00),
            ("direct, unimportant", (5, low, false, true), 40, 0b00),
            ("dynamic", (2, None, true, true), 16, 0b10),
            ("dynamic, without congestion control", (2, None, true, false), 16, 0b00),
            ("dynamic, important", (2, high, true, true), 18, 0b10),
            ("dynamic, unimportant", (2, low, true, true), 22, 0b10),
            ("dynamic, unimportant, without congestion control", (2, low, true, false), 22, 0b00),
        ];
        for (case, (priority, is_important, by_precedence, reacts), dscp, ecn) in table {
            let tag = Tag { priority, is_important, by_precedence, reacts };
            assert_eq!((tag.byte() >> 2, tag.byte() & 0b11), (dscp, ecn), "{case}");
        }
    }
}

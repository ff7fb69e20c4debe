//! The losses of a transfer between two reports.

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// The packets of a pass that tell how much the network drops.
const LEAST_PACKETS: u64 = 16;

/// The packets between two reports: all chunks, or those that were missing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Pass {
    /// The times of its first and its last packet.
    pub began: Time,
    pub ended: Time,
    /// Bytes that the flow had sent before the first one, and with the last one, of all transfers.
    sent_before: u64,
    sent: u64,
    packets: u32,
}

impl Pass {
    /// A pass without packets; `sent`: the bytes so far.
    pub fn beginning(now: Time, sent: u64) -> Pass {
        Pass { began: now, ended: now, sent_before: sent, sent, packets: 0 }
    }

    /// Records that a packet was sent; `sent`: the bytes with it.
    pub fn on_sent(&mut self, now: Time, sent: u64) {
        (self.ended, self.sent) = (now, sent);
        self.packets += 1;
    }

    /// The bytes of this time that arrived, if more than an eighth of the packets was lost: less may be what
    /// the network drops by importance. Of few packets a single loss would be as much.
    pub fn arrived(&self, lost: usize) -> Option<u64> {
        let packets = u64::from(self.packets);
        let lost = (lost as u64).min(packets);
        (packets >= LEAST_PACKETS && lost * 8 > packets)
            .then(|| (self.sent - self.sent_before) * (packets - lost) / packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_much_arrived_where_more_than_an_eighth_was_lost() {
        // Packets and losses; another transfer sends as much meanwhile.
        for (packets, lost, expected) in [
            (16, 0, None),
            (16, 2, None),
            (16, 3, Some(2600)),
            (16, 16, Some(0)),
            (16, 90, Some(0)),
            (15, 15, None),
            (1, 1, None),
            (0, 0, None),
        ] {
            let mut pass = Pass::beginning(Time(10), 700);
            (0..packets).for_each(|number| pass.on_sent(Time(11 + number), 700 + (number + 1) * 200));
            assert_eq!(pass.arrived(lost), expected, "{lost} of {packets}");
            assert_eq!((pass.began, pass.ended), (Time(10), Time(10 + packets)));
        }
    }
}

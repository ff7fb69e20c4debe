//! The conservation of packets: each that was sent has arrived, was dropped for a counted reason, or is under
//! way.

use crate::link::LinkCounters;

/// Packets by fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conservation {
    /// Packets that workers, parameter hosts, aggregators and flows sent.
    pub sent: u64,
    /// Copies that cables made.
    pub duplicated: u64,
    /// Packets that arrived at their destinations.
    pub received: u64,
    /// Packets dropped by full queues.
    pub dropped: u64,
    /// Packets dropped beyond thresholds, since they were not ECN-capable.
    pub dropped_early: u64,
    /// Packets lost by injected faults.
    pub lost: u64,
    /// Packets without a route.
    pub unrouted: u64,
    /// Packets on cables and in queues.
    pub under_way: u64,
}

impl Conservation {
    /// Adds what cables counted.
    pub(crate) fn with_links(self, links: &LinkCounters) -> Conservation {
        let LinkCounters { duplicated, dropped, dropped_early, lost, .. } = *links;
        Conservation { duplicated, dropped, dropped_early, lost, ..self }
    }

    /// Whether every packet is accounted for, once.
    pub fn holds(&self) -> bool {
        let ended = self.received + self.dropped + self.dropped_early + self.lost + self.unrouted;
        self.sent + self.duplicated == ended + self.under_way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_is_missing_is_noticed() {
        let links =
            LinkCounters { duplicated: 1, dropped: 2, dropped_early: 3, lost: 4, ..LinkCounters::default() };
        let counted =
            Conservation { sent: 20, received: 5, unrouted: 1, under_way: 6, ..Conservation::default() };
        let all = counted.with_links(&links);
        assert!(all.holds(), "{all:?}");
        assert!(!Conservation { received: 4, ..all }.holds());
    }
}

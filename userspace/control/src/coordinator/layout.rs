//! The workers below each aggregator, and the bits that distinguish them (SwitchML section 7, ATP section
//! 3.4).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sumac_wire::MAX_WORKERS;

use super::ids::RackId;
use crate::plane::ContributorBits;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    children: Vec<Child>,
    /// The racks that are not below the root itself, and the ones that they are below. Static jobs only.
    #[serde(default)]
    uplinks: BTreeMap<RackId, RackId>,
    is_tall: bool,
    /// Whether any aggregator is there.
    is_served: bool,
}

/// A rack with workers, or one worker beside the racks. All workers, where there is one level. With two
/// levels these are the root's children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// The rack whose aggregator the workers are below; none: the root's own.
    pub rack: Option<RackId>,
    pub ranks: Vec<usize>,
}

/// A sender to an aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Worker(usize),
    Rack(RackId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub child: usize,
    /// Its number among the workers there.
    pub bit: usize,
    pub fan_in: usize,
}

impl Layout {
    /// Children in the order of their first ranks. Without an aggregator there are no racks either, and
    /// workers are grouped by as many as one bitmap has bits.
    pub fn new(racks: &[Option<RackId>], is_served: bool) -> Layout {
        let ranks: Vec<usize> = (0..racks.len()).collect();
        if racks.iter().any(Option::is_some) {
            let (children, uplinks) = (by_rack(racks), BTreeMap::new());
            return Layout { children, uplinks, is_tall: true, is_served };
        }
        let most = if is_served { usize::MAX } else { MAX_WORKERS };
        let groups = ranks.chunks(most).map(|ranks| Child { rack: None, ranks: ranks.to_vec() });
        let children: Vec<Child> = groups.collect();
        Layout { is_tall: children.len() > 1, children, uplinks: BTreeMap::new(), is_served }
    }

    /// The same where some racks are below others: each of those, with the one above it.
    #[must_use]
    pub fn with_uplinks(self, uplinks: BTreeMap<RackId, RackId>) -> Layout {
        Layout { uplinks, ..self }
    }

    /// The rack that this one is below; none: the root.
    pub fn above(&self, rack: RackId) -> Option<RackId> {
        self.uplinks.get(&rack).copied()
    }

    /// Whether this rack's senders are racks.
    pub fn is_middle(&self, rack: RackId) -> bool {
        self.uplinks.values().any(|above| *above == rack)
    }

    /// The senders to an aggregator, in the order of their bits.
    pub fn senders(&self, at: Option<RackId>) -> Vec<Sender> {
        let mut senders = Vec::new();
        for child in &self.children {
            if child.rack == at && !(at.is_none() && self.has_racks()) {
                senders.extend(child.ranks.iter().copied().map(Sender::Worker));
                continue;
            }
            let sender = match child.rack {
                None if at.is_none() => child.ranks.first().copied().map(Sender::Worker),
                None => None,
                Some(rack) => self.way_up(rack).find(|rack| self.above(*rack) == at).map(Sender::Rack),
            };
            senders.extend(sender.filter(|sender| !senders.contains(sender)));
        }
        senders
    }

    /// The ranks below each sender to an aggregator, as bits: by them a sum without some workers names those.
    /// None where there is one level, or more ranks than bits.
    pub fn ranks(&self, at: Option<RackId>) -> Vec<u32> {
        let world: usize = self.children.iter().map(|child| child.ranks.len()).sum();
        if !self.has_racks() || world > MAX_WORKERS {
            return Vec::new();
        }
        let bits = |ranks: &[usize]| ranks.iter().fold(0, |bits, rank| bits | 1 << rank);
        let below = |sender: Sender| match sender {
            Sender::Worker(rank) => bits(&[rank]),
            Sender::Rack(rack) => {
                let is_below = |child: &&Child| {
                    child.rack.is_some_and(|below| self.way_up(below).any(|above| above == rack))
                };
                self.children.iter().filter(is_below).fold(0, |all, child| all | bits(&child.ranks))
            }
        };
        self.senders(at).into_iter().map(below).collect()
    }

    /// A rack and those above it, up to the one below the root.
    fn way_up(&self, rack: RackId) -> impl Iterator<Item = RackId> {
        // No way is longer than all steps together.
        std::iter::successors(Some(rack), |rack| self.above(*rack)).take(self.uplinks.len() + 1)
    }

    pub fn children(&self) -> &[Child] {
        &self.children
    }

    /// The racks with workers, each with its number among the children.
    pub fn racks(&self) -> impl Iterator<Item = (usize, RackId, &Child)> {
        let numbered = self.children.iter().enumerate();
        numbered.filter_map(|(number, child)| Some((number, child.rack?, child)))
    }

    /// The aggregators that have the job: the root (`None`), and the racks.
    pub fn aggregators(&self) -> impl Iterator<Item = Option<RackId>> {
        std::iter::once(None).chain(self.all_racks().into_iter().map(Some))
    }

    /// The racks with workers, and those with racks.
    pub fn all_racks(&self) -> Vec<RackId> {
        let mut racks: Vec<RackId> = self.racks().map(|(_, rack, _)| rack).collect();
        for above in self.uplinks.values() {
            if !racks.contains(above) {
                racks.push(*above);
            }
        }
        racks
    }

    pub fn has_racks(&self) -> bool {
        self.racks().next().is_some()
    }

    /// The number of children; 0 where there is one level.
    pub fn fan_in_1(&self) -> u8 {
        if self.is_tall { u8::try_from(self.children.len()).unwrap_or(u8::MAX) } else { 0 }
    }

    pub fn position(&self, rank: usize) -> Option<Position> {
        self.children.iter().enumerate().find_map(|(child, below)| {
            let bit = below.ranks.iter().position(|other| *other == rank)?;
            Some(Position { child, bit, fan_in: below.ranks.len() })
        })
    }

    /// The bit of a worker's rack, or its own beside the racks, at the second level; 0 where there is one
    /// level.
    pub fn bitmap_1(&self, position: Position) -> u32 {
        if self.is_tall {
            u32::try_from(position.child).ok().and_then(|c| 1u32.checked_shl(c)).unwrap_or(0)
        } else {
            0
        }
    }

    pub fn is_beside_racks(&self, position: Position) -> bool {
        let child = self.children.get(position.child);
        self.is_tall && self.is_served && child.is_some_and(|child| child.rack.is_none())
    }

    pub fn contributors(&self) -> Vec<ContributorBits> {
        let world = self.children.iter().map(|child| child.ranks.len()).sum();
        let small = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        let bits = |at: Position| ContributorBits { rack: small(at.child), bit: small(at.bit) };
        (0..world).filter_map(|rank| self.position(rank).map(bits)).collect()
    }
}

fn by_rack(racks: &[Option<RackId>]) -> Vec<Child> {
    let mut children: Vec<Child> = Vec::new();
    for (rank, rack) in racks.iter().enumerate() {
        match children.iter_mut().find(|child| rack.is_some() && child.rack == *rack) {
            Some(child) => child.ranks.push(rank),
            None => children.push(Child { rack: *rack, ranks: vec![rank] }),
        }
    }
    children
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(layout: &Layout) -> Vec<(u8, u8)> {
        layout.contributors().iter().map(|bits| (bits.rack, bits.bit)).collect()
    }

    #[test]
    fn one_level() {
        let layout = Layout::new(&[None; 3], true);
        assert_eq!(bits(&layout), [(0, 0), (0, 1), (0, 2)]);
        let position = layout.position(2).unwrap();
        assert_eq!(
            (position.bit, position.fan_in, layout.bitmap_1(position), layout.fan_in_1()),
            (2, 3, 0, 0)
        );
        assert!(!layout.is_beside_racks(position) && !layout.has_racks());
        assert_eq!(layout.position(3), None);
    }

    #[test]
    fn racks_and_workers_beside_them() {
        let [a, b] = [Some(RackId(7)), Some(RackId(5))];
        let layout = Layout::new(&[b, None, a, b, None], true);
        assert_eq!(bits(&layout), [(0, 0), (1, 0), (2, 0), (0, 1), (3, 0)]);
        assert_eq!(layout.fan_in_1(), 4);
        let (beside, below) = (layout.position(4).unwrap(), layout.position(3).unwrap());
        assert_eq!((beside.fan_in, layout.bitmap_1(beside), layout.is_beside_racks(beside)), (1, 8, true));
        assert_eq!((below.fan_in, layout.bitmap_1(below), layout.is_beside_racks(below)), (2, 1, false));
        let racks: Vec<_> = layout.racks().map(|(number, rack, _)| (number, rack.0)).collect();
        assert_eq!(racks, [(0, 5), (2, 7)]);
    }

    #[test]
    fn racks_below_racks() {
        let [a, b, c, m] = [1, 2, 3, 4].map(RackId);
        let layout = Layout::new(&[a, b, a, c].map(Some), true).with_uplinks([(a, m), (b, m)].into());
        let racks = |racks: &[RackId]| racks.iter().copied().map(Sender::Rack).collect::<Vec<_>>();
        assert_eq!(layout.senders(None), racks(&[m, c]));
        assert_eq!(layout.senders(Some(m)), racks(&[a, b]));
        assert_eq!(layout.senders(Some(a)), [0, 2].map(Sender::Worker));
        assert_eq!(layout.senders(Some(RackId(9))), []);
        assert_eq!((layout.above(a), layout.above(m), layout.is_middle(m)), (Some(m), None, true));
        assert_eq!(layout.all_racks(), [a, b, c, m]);
        let ranks = [None, Some(m), Some(a), Some(b)].map(|at| layout.ranks(at));
        assert_eq!(ranks, [vec![0b0111, 0b1000], vec![0b0101, 0b0010], vec![0b0001, 0b0100], vec![0b0010]]);
        assert!(Layout::new(&[None; 4], true).ranks(None).is_empty());
        assert!(Layout::new(&[a; 33].map(Some), true).ranks(None).is_empty(), "more ranks than bits");
    }

    #[test]
    fn no_aggregator_tells_many_workers_apart() {
        let layout = Layout::new(&[None; 70], false);
        assert_eq!(layout.fan_in_1(), 3);
        let position = layout.position(65).unwrap();
        assert_eq!((position.child, position.bit, position.fan_in, layout.bitmap_1(position)), (2, 1, 6, 4));
        assert!(!layout.is_beside_racks(position), "there is no root");
        assert_eq!(Layout::new(&[None; 32], false).fan_in_1(), 0);
    }
}

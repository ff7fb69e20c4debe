//! Lanes: the streams of chunks of a job, one for each class and shard, and the fields that name them.

use sumac_wire::{Header, Kind};

/// The field by which the packets of a job tell its lanes apart. Reports name their lane in every job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneField {
    /// None yet: the number of the job's slots is still being measured.
    Unknown,
    /// The slot: each lane has this many slots of its own (static mode).
    Slot(u32),
    /// The lane itself: the lanes of the job share all slots (dynamic mode).
    Lane,
}

impl LaneField {
    /// The lane of a received packet; `None` when its header does not name one.
    pub fn lane(self, header: &Header) -> Option<u16> {
        match self {
            _ if header.kind == Kind::Report as u8 => Some(header.lane),
            LaneField::Unknown => None,
            LaneField::Slot(slots) => u16::try_from(header.slot.checked_div(slots)?).ok(),
            LaneField::Lane => Some(header.lane),
        }
    }
}

/// The shard of a lane, of a job with this many shards: lanes are numbered class by class.
pub fn shard_of(lane: u16, shards: u16) -> u16 {
    lane % shards
}

/// The class of a lane, of a job with this many shards: 0, or more when it is more urgent.
pub fn class_of(lane: u16, shards: u16) -> u16 {
    lane / shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_name_their_lane() {
        let result = Header { kind: Kind::Result as u8, slot: 31, lane: 7, ..Header::default() };
        let of = |field: LaneField| field.lane(&result);
        assert_eq!(
            (of(LaneField::Slot(8)), of(LaneField::Unknown), of(LaneField::Lane)),
            (Some(3), None, Some(7))
        );
        assert_eq!(of(LaneField::Slot(0)), None, "no slots, no lane");
        let report = Header { kind: Kind::Report as u8, lane: 5, slot: u32::MAX, ..Header::default() };
        assert_eq!((LaneField::Unknown.lane(&report), LaneField::Lane.lane(&report)), (Some(5), Some(5)));
        let beyond = Header { slot: u32::MAX, ..result };
        assert_eq!(LaneField::Slot(8).lane(&beyond), None, "no lane has this number");
    }

    #[test]
    fn lanes_are_numbered_class_by_class() {
        let parts: Vec<_> = (0..6).map(|lane| (class_of(lane, 3), shard_of(lane, 3))).collect();
        assert_eq!(parts, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }
}

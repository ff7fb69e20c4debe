//! What daemons of a job tell each other through the control plane when something is wrong: which topic, and what.
//!
//! A topic is a 64-bit key. Notices may be lost or late; whoever waits for one has a deadline and something to say
//! without it.

use serde::{Deserialize, Serialize};

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// At this place the workers' operations differ. The text is a [`super::Claim`].
    Mismatch { lane: u16, seq: u32 },
    /// A value of the operation with this number could not be sent. The text is a [`Blame`].
    Fault { number: u32 },
    /// The oldest operation does not come to an end. The text is a [`super::Claim`].
    Standstill { number: u32 },
}

const MISMATCH: u64 = 1;
const FAULT: u64 = 2;
const STANDSTILL: u64 = 3;

impl Topic {
    /// The topic as a key: its kind in the upper byte.
    pub(crate) fn key(self) -> u64 {
        match self {
            Topic::Mismatch { lane, seq } => MISMATCH << 56 | u64::from(lane) << 32 | u64::from(seq),
            Topic::Fault { number } => FAULT << 56 | u64::from(number),
            Topic::Standstill { number } => STANDSTILL << 56 | u64::from(number),
        }
    }

    /// The topic of a key; `None` for one of another version.
    pub(crate) fn of(key: u64) -> Option<Topic> {
        let number = u32::try_from(key & 0xffff_ffff).ok()?;
        match key >> 56 {
            MISMATCH => Some(Topic::Mismatch { lane: u16::try_from(key >> 32 & 0xffff).ok()?, seq: number }),
            FAULT => Some(Topic::Fault { number }),
            STANDSTILL => Some(Topic::Standstill { number }),
            _ => None,
        }
    }
}

/// Which value could not be sent, as its worker says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Blame {
    /// The first such element, counted from its tensor's start.
    pub(crate) index: Option<u64>,
    /// What is wrong with it.
    pub(crate) problem: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_survive_the_way_to_keys_and_back() {
        let topics = [
            Topic::Mismatch { lane: 31, seq: u32::MAX },
            Topic::Fault { number: 7 },
            Topic::Standstill { number: u32::MAX },
        ];
        for topic in topics {
            assert_eq!(Topic::of(topic.key()), Some(topic));
        }
        assert_eq!(Topic::of(0), None);
    }
}

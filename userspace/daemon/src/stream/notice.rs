//! What daemons of a job tell each other through the control plane when something is wrong, or one of them is new: which topic,
//! and what.
//!
//! A topic is a 64-bit key. Notices may be lost or late; whoever waits for one has a deadline and something to say
//! without it.

use serde::{Deserialize, Serialize};

use crate::explain::shortened;

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The workers' operations differ somewhere: which this one has. The text is a [`History`].
    History { piece: u32 },
    /// Under this number the workers' operations differ. The text is a [`super::Claim`].
    Mismatch { number: u32 },
    /// A value of the operation with this number could not be sent. The text is a [`Blame`].
    Fault { number: u32 },
    /// The oldest operation does not come to an end. The text is a [`super::Claim`].
    Standstill { number: u32 },
    /// Where the stream goes on for a worker that has taken another one's place, under this epoch. The text is a
    /// [`super::Stand`].
    Stand { epoch: u32 },
}

const MISMATCH: u64 = 1;
const FAULT: u64 = 2;
const STANDSTILL: u64 = 3;
const HISTORY: u64 = 4;
const STAND: u64 = 5;

impl Topic {
    /// The topic as a key: its kind in the upper byte.
    pub(crate) fn key(self) -> u64 {
        match self {
            Topic::History { piece } => HISTORY << 56 | u64::from(piece),
            Topic::Mismatch { number } => MISMATCH << 56 | u64::from(number),
            Topic::Fault { number } => FAULT << 56 | u64::from(number),
            Topic::Standstill { number } => STANDSTILL << 56 | u64::from(number),
            Topic::Stand { epoch } => STAND << 56 | u64::from(epoch),
        }
    }

    /// The topic of a key; `None` for one of another version.
    pub(crate) fn of(key: u64) -> Option<Topic> {
        let number = u32::try_from(key & 0xffff_ffff).ok()?;
        match key >> 56 {
            HISTORY => Some(Topic::History { piece: number }),
            MISMATCH => Some(Topic::Mismatch { number }),
            FAULT => Some(Topic::Fault { number }),
            STANDSTILL => Some(Topic::Standstill { number }),
            STAND => Some(Topic::Stand { epoch: number }),
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

impl Blame {
    /// The longest problem, in bytes; as JSON it may be twice as long.
    const PROBLEM_LEN: usize = 450;

    /// What is wrong with the first value at fault.
    pub(crate) fn new(index: Option<u64>, problem: &str) -> Blame {
        Blame { index, problem: shortened(problem.to_owned(), Blame::PROBLEM_LEN) }
    }
}

/// A piece of what a worker has submitted, from the first operation on that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct History {
    /// The number of the piece's first operation.
    pub(crate) first: u32,
    /// The operations' signatures.
    pub(crate) signatures: Vec<u32>,
    /// Pieces that come after this one.
    pub(crate) left: u32,
}

impl History {
    /// Signatures of a piece: as many as a notice holds.
    pub(crate) const SIGNATURES: usize = 85;
    /// The most pieces of a history. Workers that differ later than these reach say only where they noticed.
    pub(crate) const PIECES: usize = 12;

    /// The pieces that tell of these operations, which follow each other; at least one.
    pub(crate) fn pieces(first: u32, signatures: &[u32]) -> Vec<History> {
        let signatures = &signatures[..signatures.len().min(History::PIECES * History::SIGNATURES)];
        let pieces = signatures.len().div_ceil(History::SIGNATURES).max(1);
        let piece = |at: usize| {
            let start = at * History::SIGNATURES;
            let end = signatures.len().min(start + History::SIGNATURES);
            History {
                first: first.wrapping_add(start as u32),
                signatures: signatures[start..end].to_vec(),
                left: (pieces - 1 - at) as u32,
            }
        };
        (0..pieces).map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notice_fits() {
        let most = sumac_control::NOTICE_LEN;
        let pieces = History::pieces(u32::MAX, &[u32::MAX; 2000]);
        assert_eq!((pieces.len(), pieces[0].left, pieces[11].left), (12, 11, 0));
        assert_eq!(pieces[1].first, History::SIGNATURES as u32 - 1);
        assert!(pieces.iter().all(|piece| serde_json::to_string(piece).unwrap().len() <= most));
        assert_eq!(History::pieces(3, &[]), [History { first: 3, signatures: vec![], left: 0 }]);
        let blame = Blame::new(Some(u64::MAX), &r#"""#.repeat(1000));
        assert!(serde_json::to_string(&blame).unwrap().len() <= most);
    }

    #[test]
    fn topics_survive_the_way_to_keys_and_back() {
        let topics = [
            Topic::History { piece: 11 },
            Topic::Mismatch { number: u32::MAX },
            Topic::Fault { number: 7 },
            Topic::Standstill { number: u32::MAX },
            Topic::Stand { epoch: 3 },
        ];
        for topic in topics {
            assert_eq!(Topic::of(topic.key()), Some(topic));
        }
        assert_eq!(Topic::of(0), None);
    }
}

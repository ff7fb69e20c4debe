//! The receive queues that sockets are opened on.

use std::{fmt, num::ParseIntError, str::FromStr};

use sumac_wire::tables::MAX_QUEUES;
use thiserror::Error;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    #[default]
    All,
    Only(Vec<u32>),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum QueuesError {
    #[error("{list:?} is no list of queues: write all, or numbers and ranges such as 0,2,4-7 ({source})")]
    Syntax { list: String, source: ParseIntError },
    #[error("{0:?} ends before it starts")]
    Backwards(String),
    #[error(
        "queue {queue} is not there: {interface} receives on {count} queue(s), numbered from 0 (ethtool -l \
        {interface})"
    )]
    NoSuchQueue { queue: u32, interface: String, count: u32 },
    #[error("queue {0} is beyond the {MAX_QUEUES} that the host program steers")]
    TooMany(u32),
}

impl Queues {
    /// Returns the numbers, ascending and each once, for an interface with `count` queues.
    pub fn resolve(&self, interface: &str, count: u32) -> Result<Vec<u32>, QueuesError> {
        let mut queues: Vec<u32> = match self {
            Self::All => (0..count).collect(),
            Self::Only(list) => list.clone(),
        };
        queues.sort_unstable();
        queues.dedup();
        match queues.last() {
            Some(last) if *last as usize >= MAX_QUEUES => Err(QueuesError::TooMany(*last)),
            Some(last) if *last >= count => {
                Err(QueuesError::NoSuchQueue { queue: *last, interface: interface.to_owned(), count })
            }
            _ => Ok(queues),
        }
    }
}

impl FromStr for Queues {
    type Err = QueuesError;

    fn from_str(list: &str) -> Result<Self, QueuesError> {
        if list == "all" {
            return Ok(Self::All);
        }
        let number = |text: &str| {
            text.trim().parse::<u32>().map_err(|source| QueuesError::Syntax { list: list.to_owned(), source })
        };
        let mut queues = Vec::new();
        for part in list.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if last < first {
                return Err(QueuesError::Backwards(part.to_owned()));
            }
            if last as usize >= MAX_QUEUES {
                return Err(QueuesError::TooMany(last));
            }
            queues.extend(first..=last);
        }
        queues.sort_unstable();
        queues.dedup();
        Ok(Self::Only(queues))
    }
}

impl fmt::Display for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Only(list) => {
                let numbers: Vec<String> = list.iter().map(u32::to_string).collect();
                f.write_str(&numbers.join(","))
            }
        }
    }
}

/// Returns a bit for each queue, as in the program's settings.
pub(crate) fn to_bits(queues: &[u32]) -> [u64; MAX_QUEUES / 64] {
    let mut bits = [0; MAX_QUEUES / 64];
    for queue in queues {
        if let Some(word) = bits.get_mut(*queue as usize / 64) {
            *word |= 1 << (queue % 64);
        }
    }
    bits
}

pub(crate) fn from_bits(bits: &[u64; MAX_QUEUES / 64]) -> Vec<u32> {
    (0..MAX_QUEUES as u32).filter(|queue| bits[*queue as usize / 64] >> (queue % 64) & 1 == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let table: [(&str, Result<&str, &str>); 8] = [
            ("all", Ok("all")),
            ("0", Ok("0")),
            ("3,1,2", Ok("1,2,3")),
            ("0-2,2,7", Ok("0,1,2,7")),
            ("2-1", Err("ends before it starts")),
            ("", Err("no list of queues")),
            ("0,x", Err("no list of queues")),
            ("0-4000000000", Err("beyond the 256")),
        ];
        for (list, expected) in table {
            match (list.parse::<Queues>(), expected) {
                (Ok(queues), Ok(shown)) => assert_eq!(queues.to_string(), shown, "{list}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{list}: {error}"),
                (got, expected) => panic!("{list}: {got:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn queues_must_be_there() {
        assert_eq!(Queues::All.resolve("eth0", 3), Ok(vec![0, 1, 2]));
        assert_eq!(Queues::Only(vec![1]).resolve("eth0", 2), Ok(vec![1]));
        let error = Queues::Only(vec![0, 2]).resolve("eth0", 2).unwrap_err();
        assert!(error.to_string().contains("queue 2 is not there: eth0 receives on 2"), "{error}");
        assert_eq!(Queues::All.resolve("eth0", 300), Err(QueuesError::TooMany(299)));
        assert_eq!(Queues::Only(vec![2, 0, 2]).resolve("eth0", 3), Ok(vec![0, 2]), "in any order");
        assert_eq!(Queues::Only(vec![300, 0]).resolve("eth0", 2), Err(QueuesError::TooMany(300)));
    }

    #[test]
    fn bits_hold_every_queue() {
        let queues: Vec<u32> = (0..MAX_QUEUES as u32).step_by(7).collect();
        assert_eq!(from_bits(&to_bits(&queues)), queues);
    }
}

//! The order of operations that workers announce by name: each is released when all have announced it.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::time::Time;
use crate::events::{Announcement, OPERATION_NAME_LEN, TEXT_LEN, printable};
use crate::failure::JobFailure;

/// Bytes of operations that wait for some worker, of one job.
const MOST_BYTES: usize = 16 << 20;
const WAITING_BYTES: usize = 128;
/// The time after which the ranks are named that have not announced an operation.
const NAMING_TIMEOUT: Time = Time::from_secs(2);

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Naming {
    waiting: HashMap<String, Waiting>,
    bytes: usize,
    /// By priority, then by completion. Empty between posts.
    #[serde(skip)]
    ready: BTreeMap<(std::cmp::Reverse<u8>, u64), String>,
    completed: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Waiting {
    first: u16,
    signature: u32,
    description: String,
    priority: u8,
    ranks: Vec<u16>,
    /// The first announcement; zero after a restart.
    #[serde(skip)]
    since: Time,
}

impl Naming {
    /// A member of a job of `world` is ready for an operation. An error ends the job.
    pub fn announce(
        &mut self,
        now: Time,
        rank: u16,
        world: u16,
        announced: Announcement,
    ) -> Result<(), JobFailure> {
        let refuse = |message| Err(JobFailure::mismatch(&[rank], message));
        let Announcement { name, signature, description, priority } = announced;
        if name.is_empty() || name.len() > OPERATION_NAME_LEN {
            return refuse(format!(
                "rank {rank} announced an operation whose name has {} bytes; it must have 1 to \
                {OPERATION_NAME_LEN}",
                name.len()
            ));
        }
        let description = printable(&description, TEXT_LEN);
        let shown = || printable(&name, OPERATION_NAME_LEN);
        if !self.waiting.contains_key(&name) {
            let bytes = self.bytes + size(&name, &description, world);
            if bytes > MOST_BYTES {
                return refuse(format!(
                    "rank {rank} announced `{}` while {} operations, which is all that the aggregator keeps, \
                    wait for other workers",
                    shown(),
                    self.waiting.len()
                ));
            }
            self.bytes = bytes;
        }
        let known = self.waiting.entry(name.clone()).or_insert_with(|| Waiting {
            first: rank,
            signature,
            description: description.clone(),
            priority,
            ranks: Vec::with_capacity(usize::from(world)),
            since: now,
        });
        if known.ranks.contains(&rank) {
            return refuse(format!("rank {rank} announced `{}` again before it was released", shown()));
        }
        let differ =
            |message, other: u16| Err(JobFailure::mismatch(&[rank.min(other), rank.max(other)], message));
        if (known.signature, &known.description) != (signature, &description) {
            let message = format!(
                "operation `{}`: rank {rank} has {description} where rank {} has {}",
                shown(),
                known.first,
                known.description
            );
            return differ(message, known.first);
        }
        if known.priority != priority {
            let message = format!(
                "operation `{}`: rank {rank} gives it priority {priority} where rank {} gives it {}",
                shown(),
                known.first,
                known.priority
            );
            return differ(message, known.first);
        }
        known.ranks.push(rank);
        if known.ranks.len() == usize::from(world) {
            self.waiting.remove(&name);
            self.bytes -= size(&name, &description, world);
            self.ready.insert((std::cmp::Reverse(priority), self.completed), name);
            self.completed += 1;
        }
        Ok(())
    }

    /// The operation that has waited longest, and too long, with those of these ranks that have not announced
    /// it.
    pub fn overdue(&self, now: Time, ranks: impl Iterator<Item = u16>) -> Option<(String, Vec<u16>)> {
        let (name, first) = self.waiting.iter().min_by_key(|(name, waiting)| (waiting.since, *name))?;
        if now < first.since + NAMING_TIMEOUT {
            return None;
        }
        let what = format!("operation `{}`, {},", printable(name, OPERATION_NAME_LEN), first.description);
        Some((what, ranks.filter(|rank| !first.ranks.contains(rank)).collect()))
    }

    pub fn release(&mut self) -> Option<String> {
        self.ready.pop_first().map(|(_, name)| name)
    }
}

fn size(name: &str, description: &str, world: u16) -> usize {
    WAITING_BYTES + 2 * name.len() + description.len() + 2 * usize::from(world)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, priority: u8) -> Announcement {
        Announcement { name: name.into(), signature: 7, description: "a sum of 5 float32".into(), priority }
    }

    #[test]
    fn a_name_is_released_when_all_have_announced_it() {
        let mut naming = Naming::default();
        for rank in [1, 0] {
            naming.announce(Time::ZERO, rank, 3, of("a", 0)).unwrap();
            naming.announce(Time::ZERO, rank, 3, of("b", 5)).unwrap();
            assert_eq!(naming.release(), None);
        }
        for name in [("a", 0), ("b", 5)] {
            naming.announce(Time::ZERO, 2, 3, of(name.0, name.1)).unwrap();
        }
        assert_eq!(naming.release().as_deref(), Some("b"), "of two that are ready the urgent one");
        assert_eq!(naming.release().as_deref(), Some("a"));
        assert_eq!(naming.release(), None);
        naming.announce(Time::ZERO, 0, 1, of("a", 0)).unwrap();
        assert_eq!(naming.release().as_deref(), Some("a"), "a name may come again");
    }

    #[test]
    fn both_sides_of_a_difference_are_named() {
        let other = Announcement { description: "a sum of 6 float32".into(), ..of("a", 0) };
        let table = [
            (other, "operation `a`: rank 1 has a sum of 6 float32 where rank 0 has a sum of 5 float32"),
            (of("a", 4), "operation `a`: rank 1 gives it priority 4 where rank 0 gives it 0"),
            (of("", 0), "rank 1 announced an operation whose name has 0 bytes; it must have 1 to 256"),
        ];
        for (second, expected) in table {
            let mut naming = Naming::default();
            naming.announce(Time::ZERO, 0, 2, of("a", 0)).unwrap();
            assert_eq!(naming.announce(Time::ZERO, 1, 2, second).unwrap_err().message, expected);
        }
        let mut naming = Naming::default();
        naming.announce(Time::ZERO, 0, 2, of("a", 0)).unwrap();
        let twice = naming.announce(Time::ZERO, 0, 2, of("a", 0)).unwrap_err().message;
        assert_eq!(twice, "rank 0 announced `a` again before it was released");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut naming = Naming::default();
        let long = |name: usize| of(&format!("{name:0>200}"), 0);
        let kept = (0..).take_while(|name| naming.announce(Time::ZERO, 0, 32, long(*name)).is_ok()).count();
        assert_eq!(kept, MOST_BYTES / size(&long(0).name, &long(0).description, 32));
        let why = naming.announce(Time::ZERO, 0, 32, long(kept)).unwrap_err().message;
        assert!(why.contains(&long(kept).name) && why.contains(&kept.to_string()), "{why}");
        for rank in 1..32 {
            assert_eq!(naming.announce(Time::ZERO, rank, 32, long(0)), Ok(()), "what is known goes on");
        }
        assert_eq!(naming.release(), Some(long(0).name));
        assert_eq!(naming.announce(Time::ZERO, 0, 32, long(kept)), Ok(()), "and makes room");
    }

    #[test]
    fn names_write_no_lines() {
        let mut naming = Naming::default();
        naming.announce(Time::ZERO, 0, 2, of("a\nb", 0)).unwrap();
        let why = naming.announce(Time::ZERO, 0, 2, of("a\nb", 0)).unwrap_err().message;
        assert_eq!(why, "rank 0 announced `a b` again before it was released");
    }
}

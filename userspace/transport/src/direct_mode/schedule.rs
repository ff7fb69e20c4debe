//! The steps of an operation without an aggregator: which values go to and come from which worker, and in
//! which order.
//!
//! Each block of the tensor has an owner. Blocks are reduced at their owners, and owners distribute them; a
//! collective does one of the two or both. Either all workers send to the owner (a parameter server, whose
//! hosts are among the workers or contribute nothing), or the block goes around the ring.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The step of a transfer between two workers, which no collective has: the numbers of the two are
/// independent.
pub(super) const TRANSFER: u16 = u16::MAX;

/// A worker's part in an operation of a direct job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// The operation's number: the same on all of its workers, and no other's meanwhile. Collectives are
    /// numbered by themselves, and so are the transfers from one worker to another.
    pub number: u32,
    pub pattern: Pattern,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    Collective {
        /// Whether the workers' values are reduced at the owners.
        reduces: bool,
        /// Whether the owners' values go to all workers.
        distributes: bool,
        /// The block of each rank; empty for a rank that owns none.
        owned: Vec<Range<usize>>,
        /// The ranks that contribute to reductions, and to which owners distribute. The others are servers,
        /// which have nothing but the blocks that they own.
        contributors: Range<u16>,
        /// Whether blocks go around the ring. Only for those that all workers take.
        ring: bool,
    },
    /// All values to this rank.
    Send { to: u16 },
    /// All values from this rank.
    Receive {
        from: u16,
        /// Whether values that are missing stay as they were (parameters); they become zero otherwise
        /// (gradients).
        keeps: bool,
    },
}

impl Exchange {
    /// The number of workers whose values a reduction has.
    pub(super) fn contributions(&self) -> u16 {
        match &self.pattern {
            Pattern::Collective { contributors, .. } => contributors.len() as u16,
            Pattern::Send { .. } | Pattern::Receive { .. } => 1,
        }
    }

    /// The block that `rank` reduces without values of its own.
    pub(super) fn served_by(&self, rank: u16) -> Option<Range<usize>> {
        match &self.pattern {
            Pattern::Collective { reduces: true, contributors, owned, .. }
                if !contributors.contains(&rank) =>
            {
                owned.get(usize::from(rank)).cloned()
            }
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Action {
    Send,
    /// Receives, and adds to the values that are here.
    Add,
    /// Receives, and replaces the values that are here. Where some are missing, those that are here are the
    /// reduction of so many workers' values; 0: they are not of the operation.
    Write {
        held: u16,
        keeps: bool,
    },
    /// Ends the reduction of a block at its owner.
    Finish,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Step {
    pub action: Action,
    /// The other side's rank; of no meaning in [`Action::Finish`].
    pub peer: u16,
    /// The step's number in packets: the same on both sides.
    pub number: u16,
    pub range: Range<usize>,
    /// The steps that must have ended before.
    pub after: Vec<usize>,
}

/// The steps of one worker.
pub(super) fn steps(exchange: &Exchange, rank: u16, world: u16, count: usize) -> Vec<Step> {
    let whole =
        |action, peer| vec![Step { action, peer, number: TRANSFER, range: 0..count, after: Vec::new() }];
    match &exchange.pattern {
        Pattern::Send { to } => whole(Action::Send, *to),
        Pattern::Receive { from, keeps } => whole(Action::Write { held: 0, keeps: *keeps }, *from),
        Pattern::Collective { reduces, distributes, owned, contributors, ring } => {
            let mut plan = Plan { steps: Vec::new(), rank, world, owned, contributors };
            match ring {
                true => plan.ring(*reduces, *distributes),
                false => plan.owners(*reduces, *distributes),
            }
            plan.steps
        }
    }
}

struct Plan<'a> {
    steps: Vec<Step>,
    rank: u16,
    world: u16,
    owned: &'a [Range<usize>],
    contributors: &'a Range<u16>,
}

impl Plan<'_> {
    /// The block of a rank, which counts around the ring.
    fn block(&self, rank: u16) -> Range<usize> {
        self.owned.get(usize::from(rank % self.world)).cloned().unwrap_or_default()
    }

    /// Appends a step unless its block is empty; returns its index.
    fn push(&mut self, action: Action, peer: u16, number: u16, of: u16, after: Vec<usize>) -> Option<usize> {
        let range = self.block(of);
        if range.is_empty() {
            return None;
        }
        self.steps.push(Step { action, peer: peer % self.world, number, range, after });
        Some(self.steps.len() - 1)
    }

    fn others(&self) -> impl Iterator<Item = u16> + use<> {
        let rank = self.rank;
        // Every worker begins with another one, so that not all send to the same.
        let world = self.world;
        (1..world).map(move |distance| (rank + distance) % world)
    }

    /// All contributors send their values of a block to its owner, and the owner sends the block to all of
    /// them.
    fn owners(&mut self, reduces: bool, distributes: bool) {
        let (mut sent, mut received) = (vec![None; usize::from(self.world)], Vec::new());
        let contributors = self.contributors;
        let is_contributor = contributors.contains(&self.rank);
        if reduces {
            for peer in self.others() {
                if is_contributor {
                    sent[usize::from(peer)] = self.push(Action::Send, peer, 0, peer, Vec::new());
                }
                if contributors.contains(&peer) {
                    received.extend(self.push(Action::Add, peer, 0, self.rank, Vec::new()));
                }
            }
            received = self.push(Action::Finish, self.rank, 0, self.rank, received).into_iter().collect();
        }
        if distributes {
            let held = u16::from(reduces);
            for peer in self.others() {
                if contributors.contains(&peer) {
                    self.push(Action::Send, peer, 1, self.rank, received.clone());
                }
                if is_contributor {
                    let after = sent[usize::from(peer)].into_iter().collect();
                    self.push(Action::Write { held, keeps: true }, peer, 1, peer, after);
                }
            }
        }
    }

    /// Block `b` is reduced on its way from rank `b + 1` around to `b`, and distributed on another round from
    /// there.
    fn ring(&mut self, reduces: bool, distributes: bool) {
        let (rank, world) = (self.rank, self.world);
        let (next, previous) = (rank + 1, rank + world - 1);
        // The block that is `back` ranks behind this one.
        let behind = |back: u16| rank + 2 * world - back;
        let (mut reduced, mut finished) = (vec![None; usize::from(world)], None);
        if reduces {
            let mut arrived = None;
            for round in 0..world.saturating_sub(1) {
                let after = arrived.into_iter().collect();
                reduced[usize::from(round)] = self.push(Action::Send, next, round, behind(round + 1), after);
                arrived = self.push(Action::Add, previous, round, behind(round + 2), Vec::new());
            }
            finished = self.push(Action::Finish, rank, 0, rank, arrived.into_iter().collect());
        }
        if distributes {
            let mut arrived = finished;
            for round in 0..world.saturating_sub(1) {
                let (number, block) = (world + round, behind(round + 1));
                self.push(Action::Send, next, number, behind(round), arrived.into_iter().collect());
                let after = reduced[usize::from(round)].into_iter().collect();
                // Here the block holds the values of the workers that it passed first, and this one's.
                let held = if reduces { round + 1 } else { 0 };
                arrived = self.push(Action::Write { held, keeps: true }, previous, number, block, after);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps of a rank in a job of two servers and three workers, with an allreduce of ten values.
    fn of(rank: u16, reduces: bool, distributes: bool) -> Vec<(Action, u16, Range<usize>)> {
        let owned = vec![0..5, 5..10, 0..0, 0..0, 0..0];
        let pattern = Pattern::Collective { reduces, distributes, owned, contributors: 2..5, ring: false };
        let steps = steps(&Exchange { number: 0, pattern }, rank, 5, 10);
        steps.into_iter().map(|step| (step.action, step.peer, step.range)).collect()
    }

    #[test]
    fn servers_add_what_workers_send_and_send_it_to_workers() {
        let (write, at_server) = (Action::Write { held: 1, keeps: true }, 5..10);
        let [add, send] = [Action::Add, Action::Send]
            .map(|action| [2, 3, 4].map(|peer| (action, peer, at_server.clone())).to_vec());
        let finish = (Action::Finish, 1, at_server.clone());
        assert_eq!(of(1, true, true), [add.clone(), vec![finish.clone()], send.clone()].concat());
        assert_eq!(of(1, true, false), [add, vec![finish]].concat());
        assert_eq!(of(1, false, true), send);
        let blocks = |action| vec![(action, 0, 0..5), (action, 1, 5..10)];
        assert_eq!(of(3, true, false), blocks(Action::Send));
        assert_eq!(of(3, true, true), [blocks(Action::Send), blocks(write)].concat());
        assert_eq!(of(3, false, true), blocks(Action::Write { held: 0, keeps: true }));
    }

    #[test]
    fn servers_count_for_no_mean() {
        let owned = vec![0..10, 0..0, 0..0];
        let pattern =
            Pattern::Collective { reduces: true, distributes: true, owned, contributors: 1..3, ring: false };
        let exchange = Exchange { number: 0, pattern };
        assert_eq!(exchange.contributions(), 2);
        assert_eq!([0, 1, 2].map(|rank| exchange.served_by(rank)), [Some(0..10), None, None]);
    }
}

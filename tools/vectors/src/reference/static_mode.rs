//! Static jobs: each owns its slots (SwitchML).

use sumac_wire::{
    Reason, admit,
    header::flag,
    slot::{
        Action, Conclusion, Contribution, Then, Version,
        answer::{agreed, part, part_of_round, question, refusal, result, wanted},
        conclude, decide, decide_by_lane,
    },
    tables::lane_index,
    workers,
};

use super::{Outcome, Reference, Sent, host};
use crate::record::{Job, To};

impl Reference {
    /// Takes a packet of a worker, or of a rack at the root.
    pub(super) fn take_static(&mut self, sent: &Sent<'_>, bytes: &[u8]) -> Outcome {
        let rank = sent.sender()?;
        if !sent.is_for_us(host(&sent.job.workers, rank)?) {
            return Err(Reason::Foreign);
        }
        let request = admit::request(&sent.header, &sent.entry, sent.shard)?;
        match request {
            _ if !sent.has_checksum => Err(Reason::BadChecksum),
            Some(contribution) => {
                let below = sent.job.ranks.get(usize::from(rank)).copied().unwrap_or_default();
                let left_out = admit::left_out(&sent.header, &sent.entry, below)?;
                self.contribute(sent, rank, &Contribution { left_out, ..contribution })
            }
            None if !sent.is_intact => Err(Reason::BadChecksum),
            None => Ok((Reason::Probed, Some(sent.report(rank, bytes)))),
        }
    }

    fn contribute(&mut self, sent: &Sent<'_>, rank: u16, contribution: &Contribution) -> Outcome {
        let Sent { job, entry, header, .. } = sent;
        let index = entry.slot_base + header.slot;
        let lane = lane_index(header.job, contribution.lane);
        let (meta, mut values) = self.slots.get(&index).cloned().unwrap_or_default();
        let (mut after, action) = if job.bounded {
            decide_by_lane(&meta, contribution, self.lane_budgets.entry(lane).or_default())
        } else {
            decide(&meta, contribution)
        };
        if let Action::Ignore(reason) = action {
            self.slots.insert(index, (after, values));
            return Err(reason);
        }
        if !sent.is_intact {
            return Err(Reason::BadChecksum);
        }
        let action = match contribution.limit {
            0 => action,
            _ if job.bounded => action,
            _ => {
                let budget = self.budgets.entry(lane).or_default();
                after.bounded(action, contribution, budget, |workers| job.ranks_of(workers))
            }
        };
        take_in(action, &mut values[usize::from(contribution.version)], sent);
        if let Action::Store(Then::Complete) | Action::Add(Then::Complete) | Action::Held(Then::Complete) =
            action
        {
            let next = self.draw(lane, job, contribution);
            after.set_next(contribution.version, next);
        }
        let held = after.version(contribution.version);
        // What has no sum goes back, or up, as it came.
        let writes_sum = matches!(
            action,
            Action::Store(_) | Action::Add(_) | Action::Held(_) | Action::Reply | Action::Forward
        );
        let sum = values[usize::from(contribution.version)].clone();
        self.slots.insert(index, (after, values));
        contributed(action, sent, rank, &held, if writes_sum { &sum } else { &sent.values })
    }

    /// Returns the chunk that takes a version next, after the one that completed it.
    fn draw(&mut self, lane: u32, job: &Job, completed: &Contribution) -> u32 {
        if !job.reassigns {
            return completed.seq.wrapping_add(2 * completed.slots);
        }
        let next = self.lanes.entry(lane).or_insert(2 * completed.slots);
        let drawn = *next;
        *next = next.wrapping_add(1);
        drawn
    }

    /// Takes a packet of a rack's parent.
    pub(super) fn conclude_static(&mut self, sent: &Sent<'_>) -> Outcome {
        let Sent { job, entry, header, .. } = sent;
        let parent = host(&job.parents, 0)?.entry(0);
        let conclusion: Conclusion =
            admit::conclusion(header, sent.frame.src_ip, entry, &parent, sent.shard)?
                .ok_or(Reason::BadType)?;
        let asked_by = if header.has(flag::QUERY) && !admit::wants_of_all(entry) {
            Some(workers::rank(header.bitmap_0, entry.world).ok_or(Reason::WrongWorker)?)
        } else {
            None
        };
        if !sent.has_checksum {
            return Err(Reason::BadChecksum);
        }
        let index = entry.slot_base + header.slot;
        let (meta, mut values) = self.slots.get(&index).cloned().unwrap_or_default();
        let (after, action) = conclude(&meta, &conclusion);
        if let Action::Ignore(reason) = action {
            return Err(reason);
        }
        if !sent.is_intact {
            return Err(Reason::BadChecksum);
        }
        take_in(action, &mut values[usize::from(conclusion.version)], sent);
        self.slots.insert(index, (after, values));
        let held = after.version(conclusion.version);
        let (reason, header) = match action {
            Action::Store(_) => (Reason::Concluded, result(header, &held, entry)),
            Action::Ask(_) => (Reason::Concluded, agreed(header, &held, entry)),
            Action::Refuse => {
                (Reason::Mismatch, refusal(header, &Version { tensor: header.tensor, ..held }, entry))
            }
            Action::Want => (Reason::Wanted, wanted(header, entry)),
            _ => return Err(Reason::Internal),
        };
        let to = asked_by.filter(|_| action == Action::Want).map_or(To::All, To::Worker);
        Ok((reason, Some(sent.answer(to, header, &sent.values))))
    }
}

/// Applies a decision to the values of a version.
fn take_in(action: Action, values: &mut Vec<i32>, sent: &Sent<'_>) {
    match action {
        Action::Store(_) => values.clone_from(&sent.values),
        Action::Add(_) => {
            for (value, other) in values.iter_mut().zip(&sent.values) {
                let is_maximum = sent.header.has(flag::MAXIMUM);
                *value = if is_maximum { (*value).max(*other) } else { value.wrapping_add(*other) };
            }
        }
        _ => {}
    }
}

/// Returns the counter and the answer of a contribution that was not ignored.
fn contributed(action: Action, sent: &Sent<'_>, rank: u16, held: &Version, values: &[i32]) -> Outcome {
    let Sent { entry, header, .. } = sent;
    let (reason, to, header) = match action {
        Action::Store(Then::Complete) | Action::Add(Then::Complete) | Action::Held(Then::Complete) => {
            (Reason::Completed, To::All, result(header, held, entry))
        }
        Action::Ask(Then::Complete) => (Reason::Completed, To::All, agreed(header, held, entry)),
        Action::Store(Then::Up) | Action::Add(Then::Up) | Action::Held(Then::Up) | Action::Forward => {
            (Reason::Forwarded, To::Parent(0), part(header, held, entry))
        }
        Action::Ask(Then::Up) | Action::ForwardExponent => {
            (Reason::Forwarded, To::Parent(0), part_of_round(header, held, entry))
        }
        Action::Pass => (Reason::Forwarded, To::Parent(0), question(header, entry)),
        Action::Reply => (Reason::Replied, To::Worker(rank), result(header, held, entry)),
        Action::ReplyExponent => (Reason::Replied, To::Worker(rank), agreed(header, held, entry)),
        Action::Refuse => (Reason::Mismatch, To::Worker(rank), refusal(header, held, entry)),
        Action::Want => (Reason::Wanted, To::Worker(rank), wanted(header, entry)),
        Action::Store(Then::Wait) | Action::Add(Then::Wait) | Action::Ask(Then::Wait) => {
            return Ok((Reason::Added, None));
        }
        Action::Held(Then::Wait) => return Err(Reason::Duplicate),
        Action::Postpone => return Err(Reason::OutOfTurn),
        Action::Ignore(reason) => return Err(reason),
    };
    Ok((reason, Some(sent.answer(to, header, values))))
}

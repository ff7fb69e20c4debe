//! Dynamic jobs: their packets share slots (ATP).

use sumac_wire::{
    Header, Kind, Reason,
    admit::{self, dynamic::Down},
    dynamic::{Action, collided, decide, flushed, owner, passed, release, sum},
    header::{NO_SLOT, flag},
    tables::{job_flag, parent_index},
};

use super::{Outcome, Reference, Sent, host};
use crate::record::{Host, To};

/// No slot is taken back by its age: packets here have no times.
const SLOT_MAX_AGE: u32 = u32::MAX;

impl Reference {
    pub(super) fn take_dynamic(&mut self, sent: &Sent<'_>) -> Outcome {
        let Sent { job, entry, header, .. } = sent;
        let number = parent_index(0, sent.shard, entry.hosts) as u16;
        let parent = host(&job.parents, number)?;
        // A parameter host may have a worker's address: the kind of packet distinguishes them.
        if header.kind == Kind::Result as u8 || header.kind == Kind::Report as u8 {
            return self.conclude_dynamic(sent, parent);
        }
        // What workers send to the parameter host past the aggregator may be of another level.
        let rank = sent.sender().map_err(|reason| match reason {
            Reason::WrongSource => reason,
            _ if sent.frame.dst_ip == parent.ip.to_bits() => Reason::Foreign,
            _ => reason,
        })?;
        if !sent.is_for_us(host(&job.workers, rank)?) {
            return Err(Reason::Foreign);
        }
        let request = admit::dynamic::request(header, entry, sent.shard)?;
        if !sent.is_intact {
            return Err(Reason::BadChecksum);
        }
        let up = To::Parent(number);
        // A probe goes all the way.
        let Some(mut contribution) = request else {
            return Ok((Reason::Passed, Some(sent.answer(up, passed(header), &sent.values))));
        };
        contribution.flags = header.flags;
        let place = (sent.shard, header.slot);
        let (before, mut values) = self.shared.get(&place).cloned().unwrap_or_default();
        let (mut after, action) = match header.slot {
            NO_SLOT => (before, Action::Pass),
            _ => decide(&before, &contribution, 0, SLOT_MAX_AGE),
        };
        let mut held = if matches!(action, Action::Flush { .. }) { before } else { after };
        if action == Action::Store {
            values.clone_from(&sent.values);
        } else if matches!(action, Action::Add | Action::Complete | Action::Flush { adds: true })
            && add(&mut values, sent)
        {
            held.flags |= flag::OVERFLOW;
            if !matches!(action, Action::Flush { .. }) {
                after.flags |= flag::OVERFLOW;
            }
        }
        let on = |header: Header, values: &[i32]| Some(sent.answer(up, header, values));
        let outcome = match action {
            Action::Store | Action::Add => (Reason::Added, None),
            Action::Complete => (Reason::Forwarded, on(sum(header, &held), &values)),
            Action::Flush { .. } => (Reason::Flushed, on(flushed(header, &held), &values)),
            Action::Pass => (Reason::Passed, on(passed(header), &sent.values)),
            Action::Collide => (Reason::Collided, on(collided(header), &sent.values)),
            Action::Drop => (Reason::Duplicate, None),
        };
        if header.slot != NO_SLOT {
            self.shared.insert(place, (after, values));
        }
        Ok(outcome)
    }

    /// Takes a packet of a parameter host, or of a rack's root.
    fn conclude_dynamic(&mut self, sent: &Sent<'_>, parent: &Host) -> Outcome {
        let Sent { entry, header, .. } = sent;
        let is_parents = sent.frame.src_ip == parent.ip.to_bits();
        if !sent.is_for_us(parent) && (entry.flags & job_flag::CHILD != 0 || is_parents) {
            return Err(Reason::Foreign);
        }
        let down = admit::dynamic::result(header, sent.frame.src_ip, entry, &parent.entry(0), sent.shard)?;
        if !sent.is_intact {
            return Err(Reason::BadChecksum);
        }
        if let Down::One(rank) = down {
            let report = Header { flags: header.flags & !flag::LEVEL, ..*header };
            return Ok((Reason::Probed, Some(sent.answer(To::Worker(rank), report, &sent.values))));
        }
        let owner = owner(header.job, header.epoch, header.lane);
        if let Some((meta, _)) = self.shared.get_mut(&(sent.shard, header.slot)) {
            *meta = release(meta, owner, header.seq, 0, SLOT_MAX_AGE);
        }
        Ok((Reason::Concluded, Some(sent.answer(To::All, *header, &sent.values))))
    }
}

/// Adds a packet's values; returns whether a sum overflowed.
fn add(values: &mut [i32], sent: &Sent<'_>) -> bool {
    let mut overflowed = false;
    for (value, other) in values.iter_mut().zip(&sent.values) {
        if sent.header.has(flag::MAXIMUM) {
            *value = (*value).max(*other);
            continue;
        }
        overflowed |= value.checked_add(*other).is_none();
        *value = value.saturating_add(*other);
    }
    overflowed
}

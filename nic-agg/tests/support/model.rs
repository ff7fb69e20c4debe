//! A model of the program for dynamic jobs, in plain user space code over the shared decisions.

use std::collections::HashMap;

use sumac_agg_host::NewJob;
use sumac_wire::{
    Header, Kind, Reason,
    admit::{self, dynamic::Down},
    dynamic::{self, Action, SlotMeta, owner},
    header::{NO_SLOT, flag},
    tables::{JobEntry, parent_index},
};

/// Longer than any test.
const SLOT_MAX_AGE: u32 = u32::MAX;

/// A packet, with the facts that the program derives from its frame.
#[derive(Clone, Debug)]
pub struct Sent {
    pub header: Header,
    pub values: Vec<i32>,
    pub from: u32,
    pub shard: u16,
    /// Whether a router has marked it.
    pub is_marked: bool,
    /// Whether its checksum is right, or not verified.
    pub is_intact: bool,
}

/// A destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// All workers, a copy each.
    All,
    /// An address and a port.
    One(u32, u16),
}

/// The outcome of a packet.
pub type Became = (Reason, Option<(Header, Vec<i32>, To)>);

/// The slots that were used, by shard and number.
#[derive(Default)]
pub struct Model {
    pub slots: HashMap<(u16, u32), (SlotMeta, Vec<i32>)>,
}

impl Model {
    /// Handles a packet of an active job.
    pub fn show(&mut self, job: &NewJob, sent: &Sent) -> Became {
        self.take(job, sent).unwrap_or_else(|reason| (reason, None))
    }

    fn take(&mut self, job: &NewJob, sent: &Sent) -> Result<Became, Reason> {
        let (entry, header) = (&job.entry, &sent.header);
        if header.kind == Kind::Result as u8 || header.kind == Kind::Report as u8 {
            return self.take_from_above(job, sent);
        }
        let rank = admit::sender(header, entry)?;
        let worker = &job.workers[usize::from(rank)];
        admit::source(sent.from, worker)?;
        let wanted = admit::dynamic::request(header, entry, sent.shard)?;
        let marked = intact_and_marked(sent)?;
        let Some(mut contribution) = wanted else {
            let up = (dynamic::passed(&marked), sent.values.clone(), up(job, sent.shard));
            return Ok((Reason::Passed, Some(up)));
        };
        contribution.flags = marked.flags;
        let place = (sent.shard, header.slot);
        let (before, mut values) = self.slots.get(&place).cloned().unwrap_or_default();
        let (mut after, action) = match header.slot {
            NO_SLOT => (before, Action::Pass),
            _ => dynamic::decide(&before, &contribution, 0, SLOT_MAX_AGE),
        };
        let mut sum = if matches!(action, Action::Flush { .. }) { before } else { after };
        let adds = matches!(action, Action::Add | Action::Complete | Action::Flush { adds: true });
        if action == Action::Store {
            values.clone_from(&sent.values);
        } else if adds && add(&mut values, sent) {
            sum.flags |= flag::OVERFLOW;
            if !matches!(action, Action::Flush { .. }) {
                after.flags |= flag::OVERFLOW;
            }
        }
        let on = |header: Header, values: &[i32]| Some((header, values.to_vec(), up(job, sent.shard)));
        let became = match action {
            Action::Store | Action::Add => (Reason::Added, None),
            Action::Complete => (Reason::Forwarded, on(dynamic::sum(&marked, &sum), &values)),
            Action::Flush { .. } => (Reason::Flushed, on(dynamic::flushed(&marked, &sum), &values)),
            Action::Pass => (Reason::Passed, on(dynamic::passed(&marked), &sent.values)),
            Action::Collide => (Reason::Collided, on(dynamic::collided(&marked), &sent.values)),
            Action::Drop => (Reason::Duplicate, None),
        };
        if header.slot != NO_SLOT {
            self.slots.insert(place, (after, values));
        }
        Ok(became)
    }

    fn take_from_above(&mut self, job: &NewJob, sent: &Sent) -> Result<Became, Reason> {
        let header = &sent.header;
        let parent = &job.parents[index(&job.entry, sent.shard)];
        let down = admit::dynamic::result(header, sent.from, &job.entry, parent, sent.shard)?;
        let marked = intact_and_marked(sent)?;
        if let Down::One(rank) = down {
            let worker = &job.workers[usize::from(rank)];
            let report = Header { flags: marked.flags & !flag::LEVEL, ..marked };
            let to = To::One(worker.ip, worker.port + sent.shard);
            return Ok((Reason::Probed, Some((report, sent.values.clone(), to))));
        }
        let owner = owner(header.job, header.epoch, header.lane);
        if let Some((meta, _)) = self.slots.get_mut(&(sent.shard, header.slot)) {
            *meta = dynamic::release(meta, owner, header.seq, 0, SLOT_MAX_AGE);
        }
        Ok((Reason::Concluded, Some((marked, sent.values.clone(), To::All))))
    }
}

fn intact_and_marked(sent: &Sent) -> Result<Header, Reason> {
    if !sent.is_intact {
        return Err(Reason::BadChecksum);
    }
    let echo = if sent.is_marked { flag::ECN_ECHO } else { 0 };
    Ok(Header { flags: sent.header.flags | echo, ..sent.header })
}

fn index(entry: &JobEntry, shard: u16) -> usize {
    (parent_index(1, shard, entry.hosts) - parent_index(1, 0, entry.hosts)) as usize
}

fn up(job: &NewJob, shard: u16) -> To {
    let parent = &job.parents[index(&job.entry, shard)];
    To::One(parent.ip, parent.port + shard)
}

/// Adds a packet's values; returns whether a sum overflowed.
fn add(values: &mut [i32], sent: &Sent) -> bool {
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

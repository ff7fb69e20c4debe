//! An aggregator of the model: the shared checks, decisions and answers around sums of one word.

use sumac_wire::{
    Header, Kind, Reason, admit,
    budget::Budget,
    lane_budget::LaneBudget,
    slot::{Action, Contribution, SlotMeta, Then, answer, conclude, decide, decide_by_lane, state},
    stream::is_later,
    tables::{JobEntry, WorkerEntry, job_flag},
    workers,
};

use crate::packet::Packet;

/// Slots with their values, and the lane's counter.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Aggregator {
    slots: Vec<(SlotMeta, [u64; 2])>,
    next: u32,
    budget: Budget,
    /// Of a job that has one for its lane.
    lane_budget: LaneBudget,
    /// The workers below each of its senders, as bits.
    ranks: Vec<u32>,
    /// Whether it ignores `received` and infers from a complete chunk that all have the one before.
    infers: bool,
}

/// A packet that it sends, with the destination.
pub enum Sent {
    One(Packet),
    /// To the worker that asked, not to who sent what is answered.
    Worker(u16, Packet),
    All(Packet),
    Up(Packet),
}

impl Aggregator {
    pub fn new(job: &JobEntry, ranks: Vec<u32>, infers: bool) -> Aggregator {
        let slots = vec![(SlotMeta::default(), [0; 2]); job.slots as usize];
        let (budget, lane_budget) = Default::default();
        Aggregator { slots, next: 2 * job.lane_slots(), budget, lane_budget, ranks, infers }
    }

    /// Whether chunk `seq` had to make room in its version for a later one.
    pub fn has_given_up(&self, slot: u32, version: u8, seq: u32) -> bool {
        let held = self.slots[slot as usize].0.version(version);
        held.seen | u32::from(held.state) != 0 && is_later(held.seq, seq)
    }

    /// The chunks that it has begun and that have no result here yet: slot, version, chunk.
    pub fn begun(&self) -> impl Iterator<Item = (u32, u8, u32)> {
        let versions = self
            .slots
            .iter()
            .zip(0..)
            .flat_map(|((meta, _), slot)| [0, 1].map(|version| (slot, version, meta.version(version))));
        let begun = versions.filter(|(_, _, held)| held.seen != 0 && held.state & state::FINAL == 0);
        begun.map(|(slot, version, held)| (slot, version, held.seq))
    }

    /// The chunk that takes the version of chunk `seq` next.
    fn draw(&mut self, job: &JobEntry, seq: u32) -> u32 {
        let drawn = self.next;
        self.next += 1;
        if job.flags & job_flag::STEALING != 0 { drawn } else { seq + 2 * job.lane_slots() }
    }

    /// Takes a contribution, or a result of its parent's.
    pub fn receive(&mut self, job: &JobEntry, packet: &Packet) -> Result<Option<Sent>, Reason> {
        if packet.is_result() {
            self.conclude(job, &packet.header, packet.sum)
        } else {
            self.contribute(job, &packet.header, packet.sum)
        }
    }

    fn contribute(&mut self, job: &JobEntry, header: &Header, sum: u64) -> Result<Option<Sent>, Reason> {
        let sender = usize::from(admit::sender(header, job)?);
        let Some(contribution) = admit::request(header, job, 0)? else { return Ok(None) };
        let left_out = admit::left_out(header, job, self.ranks[sender])?;
        let contribution = Contribution { left_out, ..contribution };
        let version = contribution.version;
        let infers = self.infers;
        let (meta, values) = &mut self.slots[header.slot as usize];
        for held in meta.versions.iter_mut().filter(|held| infers && held.state & state::FINAL != 0) {
            held.received = job.all();
        }
        let ranks_of = |senders: u32| {
            let ranks = self.ranks.iter().enumerate();
            ranks.filter(|(sender, _)| senders >> sender & 1 == 1).fold(0, |all, (_, ranks)| all | ranks)
        };
        let (mut after, action) = if job.flags & job_flag::LANE_BUDGET != 0 {
            decide_by_lane(meta, &contribution, &mut self.lane_budget)
        } else {
            let (mut after, action) = decide(meta, &contribution);
            let action = after.bounded(action, &contribution, &mut self.budget, ranks_of);
            (after, action)
        };
        if let Action::Ignore(reason) = action {
            *meta = after;
            return Err(reason);
        }
        let values = &mut values[usize::from(version)];
        match action {
            Action::Store(_) => *values = sum,
            Action::Add(_) => *values = values.wrapping_add(sum),
            _ => {}
        }
        if let Action::Store(Then::Complete) | Action::Add(Then::Complete) | Action::Held(Then::Complete) =
            action
        {
            after.set_next(version, self.draw(job, header.seq));
        }
        let (meta, values) = &mut self.slots[header.slot as usize];
        *meta = after;
        let values = values[usize::from(version)];
        let held = after.version(version);
        let packet = |header: Header| Packet::new(header, values);
        Ok(match action {
            Action::Store(Then::Complete) | Action::Add(Then::Complete) | Action::Held(Then::Complete) => {
                Some(Sent::All(packet(answer::result(header, &held, job))))
            }
            Action::Ask(Then::Complete) => Some(Sent::All(packet(answer::agreed(header, &held, job)))),
            Action::Reply => Some(Sent::One(packet(answer::result(header, &held, job)))),
            Action::ReplyExponent => Some(Sent::One(packet(answer::agreed(header, &held, job)))),
            Action::Store(Then::Up) | Action::Add(Then::Up) | Action::Held(Then::Up) | Action::Forward => {
                Some(Sent::Up(packet(answer::part(header, &held, job))))
            }
            Action::Ask(Then::Up) | Action::ForwardExponent => {
                Some(Sent::Up(packet(answer::part_of_round(header, &held, job))))
            }
            Action::Refuse => Some(Sent::One(packet(answer::refusal(header, &held, job)))),
            Action::Want => Some(Sent::One(packet(answer::wanted(header, job)))),
            Action::Pass => Some(Sent::Up(packet(answer::question(header, job)))),
            _ => None,
        })
    }

    fn conclude(&mut self, job: &JobEntry, header: &Header, sum: u64) -> Result<Option<Sent>, Reason> {
        let parent = WorkerEntry::default();
        let Some(conclusion) = admit::conclusion(header, parent.ip, job, &parent, 0)? else {
            return Ok(None);
        };
        let (meta, values) = &mut self.slots[header.slot as usize];
        let (after, action) = conclude(meta, &conclusion);
        *meta = after;
        let held = after.version(conclusion.version);
        let header = match action {
            Action::Store(_) => {
                values[usize::from(conclusion.version)] = sum;
                answer::result(header, &held, job)
            }
            Action::Ask(_) => answer::agreed(header, &held, job),
            Action::Refuse => answer::refusal(header, &held, job),
            Action::Want if admit::wants_of_all(job) => answer::wanted(header, job),
            Action::Want => {
                let asked_by = workers::rank(header.bitmap_0, job.world).ok_or(Reason::WrongWorker)?;
                return Ok(Some(Sent::Worker(asked_by, Packet::new(answer::wanted(header, job), 0))));
            }
            Action::Ignore(reason) => return Err(reason),
            _ => return Err(Reason::Internal),
        };
        debug_assert_eq!(header.kind, Kind::Result as u8);
        Ok(Some(Sent::All(Packet::new(header, sum))))
    }
}
